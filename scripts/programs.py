"""The test programs of the workspace, as cargo builds them, and their tests."""

import json
import os
import subprocess
import sys

# The tests run the program with all of its features.
FEATURES = ["--features", "prism/otlp"]
# Test programs whose modules are groups. Each group runs in its own process.
GROUPED = {"it", "lab"}


def build(*arguments):
    """Builds with `cargo test ARGUMENTS`. Returns the test programs, and the paths of the
    programs that they start: of the whole workspace `prism`, and `prism-lab` beside it,
    which runs `prism`. A test program is (package, kind, name, path, directory), with
    the kind "lib", "bin" or "test"."""
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
    """The package of a directory: its name, or prism-NAME for a tool."""
    name = os.path.basename(directory)
    return name if name.startswith("prism") else f"prism-{name}"


def tests_of(path):
    """The names of all tests of a program."""
    output = subprocess.run([path, "--list", "--format=terse"], stdout=subprocess.PIPE, check=True)
    lines = output.stdout.decode().splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def groups_of(kind, name, path):
    """A program's tests by group. A program without groups has the one group None."""
    groups = {}
    for test in tests_of(path):
        group = test.partition("::")[0] if kind == "test" and name in GROUPED else None
        groups.setdefault(group, []).append(test)
    return groups
