"""The test programs of the workspace, as cargo builds them, and their tests."""

import json
import os
import subprocess
import sys

# Test programs whose modules are groups of tests that could be programs too, had
# they not so much in common: each group runs in a process of its own.
GROUPED = {"it", "lab"}


def build(*arguments):
    """Builds with `cargo test ARGUMENTS`. Gives the test programs, each as
    (package, kind, name, path, directory) with kind "lib", "bin" or "test", and
    the paths of the programs that they start."""
    command = ["cargo", "test", "--release", "--locked", "--no-run",
               "--message-format=json-render-diagnostics", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    tests, others = [], []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        path, directory = message["executable"], os.path.dirname(message["manifest_path"])
        if message["profile"]["test"]:
            target = message["target"]
            tests.append((package_of(directory), target["kind"][0], target["name"], path, directory))
        else:
            others.append(path)
    return sorted(tests), others


def package_of(directory):
    """The package in a directory: of its name, but for the lab's."""
    name = os.path.basename(directory)
    return name if name.startswith("prism") else f"prism-{name}"


def tests_of(path):
    """The names of all tests of a program."""
    output = subprocess.run([path, "--list", "--format=terse"], stdout=subprocess.PIPE, check=True)
    lines = output.stdout.decode().splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def groups_of(kind, name, path):
    """A program's tests by group; a program that is not grouped has one, None."""
    groups = {}
    for test in tests_of(path):
        group = test.partition("::")[0] if kind == "test" and name in GROUPED else None
        groups.setdefault(group, []).append(test)
    return groups
