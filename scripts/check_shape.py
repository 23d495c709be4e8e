#!/usr/bin/env python3
"""Checks the shape of the source: lengths of crates, files and functions, circles of modules,
names that several types have, statements packed into one, and comments that are too wide.

The bounds exist for readers. If a structure stops fitting, change the structure: lines that are
packed to meet a bound are a worse fault.

Usage: scripts/check_shape.py [--list]   (--list prints the figures, and always succeeds)
"""

import re
import subprocess
import sys
from collections import defaultdict

CRATE_LINES, PROGRAM_LINES, FILE_LINES, FUNCTION_LINES = 11_500, 6_000, 480, 80
CIRCLE_MODULES, TYPE_PLACES, TYPES_BEYOND = 5, 3, 16
PACKED_STATEMENTS, COMMENT_COLUMNS = 150, 100
# Names that each program or module may have.
USUAL_TYPES = {"Args", "Command", "Config", "Error", "Event", "State"}
TEXT = re.compile(
    r"""(?P<line>//[^\n]*)|/\*.*?\*/|b?r(?P<raw>\#*)".*?"(?P=raw)|b?"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\\n])'""",
    re.S,
)
USED = re.compile(r"\bcrate::(\{[^;]*\}|\w+)")


def sources():
    """The product's and the tools' source files, without tests, as text and without texts."""
    names = subprocess.run(["git", "ls-files", "*.rs"], capture_output=True, text=True, check=True).stdout
    for path in names.split():
        if "/tests/" in path or path.startswith("fuzz/") or path.endswith(("_tests.rs", "/build.rs")):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        text = re.split(r"^#\[cfg\(test\)\]\n(?:pub\(crate\) )?mod \w+ \{", text, maxsplit=1, flags=re.M)[0]
        yield path, text, TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def functions(code):
    """The name of each function, and the number of lines of its body."""
    for match in re.finditer(r"\bfn (\w+)", code):
        depth, at, body = 0, match.end(), None
        while at < len(code):
            body = at if body is None and depth == 0 and code[at] == "{" else body
            depth += (code[at] in "([{") - (code[at] in ")]}")
            if depth == 0 and code[at] in ";}":
                break
            at += 1
        yield match.group(1), code.count("\n", body or at, at)


def circles(edges):
    """The sets of modules of which each reaches all others."""
    reached = {}
    for start in edges:
        seen, left = set(), list(edges[start])
        while left:
            if (module := left.pop()) not in seen:
                seen.add(module)
                left.extend(edges.get(module, ()))
        reached[start] = seen
    return {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in edges if a in reached[a]}


def measure():
    """Each figure that has a bound: its name, its value and the bound."""
    lines, edges, exports, types = defaultdict(int), defaultdict(lambda: defaultdict(set)), defaultdict(dict), defaultdict(set)
    packed, figures = 0, []
    for path, text, code in sources():
        crate = "/".join(path.split("/")[:2])
        count = text.count("\n")
        lines[crate] += count
        figures.append((f"lines of {path}", count, FILE_LINES))
        figures += [(f"lines of the function {name} in {path}", length, FUNCTION_LINES) for name, length in functions(code)]
        packed += len(re.findall(r"\blet \((?:mut )?\w+, (?:mut )?\w+[^)=]*\) = \(|^\s*true => ", code, flags=re.M))
        wide = sum(len(line) > COMMENT_COLUMNS and "http" not in line for line in text.split("\n") if re.match(r"\s*//", line))
        figures.append((f"wide comments in {path}", wide, 0))
        for name in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait) (\w+)", code, flags=re.M):
            types[name].add(path)
        module = re.match(r"[^/]+/[^/]+/src/(\w+)", path)
        if module and module.group(1) in ("lib", "main"):
            for owner, names in re.findall(r"\buse (?:crate::|self::)?(\w+)::(\{[^;]*\}|\w+);", code):
                exports[crate].update({name: owner for name in re.findall(r"\w+", names)})
        elif module:
            for used in USED.findall(code):
                # Of a list, only the first name of each path.
                names = re.findall(r"(?:^\{|[,{])\s*(\w+)", used) if used.startswith("{") else [used]
                edges[crate][module.group(1)].update(names)
    for crate, uses in edges.items():
        resolved = {
            module: {exports[crate].get(name, name) for name in names} & set(uses) - {module} for module, names in uses.items()
        }
        largest = max(map(len, circles(resolved)), default=0)
        figures.append((f"circle of modules in {crate}", largest, CIRCLE_MODULES))
    figures += [(f"lines of {crate}", count, PROGRAM_LINES if crate == "crates/prism" else CRATE_LINES) for crate, count in lines.items()]
    beyond = [name for name, places in types.items() if len(places) > TYPE_PLACES and name not in USUAL_TYPES]
    figures.append((f"types in more than {TYPE_PLACES} places ({', '.join(sorted(beyond))})", len(beyond), TYPES_BEYOND))
    figures.append(("packed statements", packed, PACKED_STATEMENTS))
    return figures


def main():
    figures = measure()
    if "--list" in sys.argv:
        for name, value, bound in sorted(figures, key=lambda figure: -figure[1] / max(1, figure[2]))[:60]:
            print(f"{value:>7}  of {bound:>6}  {name}")
        return
    faults = [figure for figure in figures if figure[1] > figure[2]]
    for name, value, bound in faults:
        print(f"{name}: {value}, above {bound}; change the structure, see scripts/check_shape.py")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
