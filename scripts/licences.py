#!/usr/bin/env python3
"""Prints the licences of the crates that are parts of the program `prism`, for packages.

It takes the texts from the sources that cargo has fetched. A crate without a text fails,
unless another crate has the licence that it names, or that asks for no text.
"""

import glob
import json
import os
import subprocess
import sys

COMMAND = ["cargo", "metadata", "--locked", "--format-version=1", "--features", "prism/otlp",
           "--filter-platform", "x86_64-unknown-linux-gnu"]
# The metadata also has optional crates that a feature of the form `crate?/feature` names.
BUILT = ["cargo", "tree", "--locked", "--package=prism", "--features=prism/otlp", "--edges=normal",
         "--target=x86_64-unknown-linux-gnu", "--prefix=none", "--format={p}"]
NO_TEXT = {"0BSD"}
NAMES = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "COPYRIGHT*")


def parts(metadata):
    """The packages that are linked into the program, by name."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    todo = [key for key, package in packages.items() if package["name"] == "prism"]
    found = set()
    while todo:
        key = todo.pop()
        if key in found or any("proc-macro" in target["kind"] for target in packages[key]["targets"]):
            continue
        found.add(key)
        todo += [dependency["pkg"] for dependency in nodes[key]["deps"]
                 if any(kind["kind"] is None for kind in dependency["dep_kinds"])]
    return sorted((packages[key] for key in found), key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The texts in a package's directory, and in those of libraries in C in it."""
    directory = os.path.dirname(package["manifest_path"])
    found = [path for name in NAMES for depth in ("", "*/")
             for path in glob.glob(os.path.join(directory, depth, name)) if os.path.isfile(path)]
    for path in sorted(set(found)):
        with open(path, encoding="utf-8", errors="replace") as file:
            yield file.read().strip()


def built():
    """The crates that are built, as pairs of name and version."""
    lines = subprocess.run(BUILT, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    return {(words[0], words[1].removeprefix("v")) for words in map(str.split, lines) if words}


def main():
    metadata = json.loads(subprocess.run(COMMAND, stdout=subprocess.PIPE, check=True).stdout)
    names = built()
    owners, without = {}, []
    crates = [package for package in parts(metadata)
              if package["source"] and (package["name"], package["version"]) in names]
    print("The program prism contains these crates. The texts of their licences are below.\n")
    for package in crates:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license']}")
        own = list(texts(package))
        for text in own:
            owners.setdefault(text, []).append(name)
        if not own:
            without.append((name, package["license"]))
    covered = NO_TEXT | {package["license"] for package in crates if any(texts(package))}
    for text, names in owners.items():
        print(f"\n\n{'-' * 80}\n{', '.join(names)}\n{'-' * 80}\n\n{text}")
    for name, licence in without:
        if licence not in covered:
            sys.exit(f"licences: {name} ({licence}) has no text of a licence, and no other crate has it")


if __name__ == "__main__":
    main()
