#!/usr/bin/env python3
"""Checks the Markdown files: `make lint` runs it.

- Lines have 90 columns at most. Tables, code, and lines with links are exempt.
- Relative links lead to files, and their anchors to headings.
- Paths in backticks exist, if they begin with a folder of the repository.
"""

import os
import re
import subprocess
import sys

COLUMNS = 90
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PATH = re.compile(r"`((?:bench|bpf|contrib|crates|docs|fuzz|packaging|scripts|tools)/[\w./-]+)`")


def headings(text):
    """The anchors that GitHub makes of a file's headings."""
    found = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def faults(path):
    text, folder, is_code = read(path), os.path.dirname(path), False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        if is_code:
            continue
        where = f"{path}:{number}"
        if len(line) > COLUMNS and not line.lstrip().startswith("|") and "](" not in line:
            yield f"{where}: {len(line)} columns; wrap it at {COLUMNS}"
        for link, anchor in LINK.findall(line):
            if link.startswith(("http:", "https:")):
                continue
            target = os.path.normpath(os.path.join(folder, link)) if link else path
            if not os.path.exists(target):
                yield f"{where}: {link} leads nowhere"
            elif anchor and target.endswith(".md") and anchor not in headings(read(target)):
                yield f"{where}: {target} has no heading for #{anchor}"
        for named in PATH.findall(line):
            if not os.path.exists(named.rstrip(".")):
                yield f"{where}: there is no {named}"


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True)
    found = [fault for path in listed.stdout.split() for fault in faults(path)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
