#!/usr/bin/env python3
"""Builds and runs all tests of the workspace, and sums up.

Does what `cargo test --release --workspace` does, and further: tests of the
lab and of the program run one at a time, since they measure and share this
machine; each test program has a time limit; tests that were skipped for want
of privilege are listed; and namespaces that a test left behind are a failure.

Usage: scripts/test.py [FILTER]   (only tests whose name contains FILTER)
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

# Their integration tests run one at a time.
SERIAL_PACKAGES = {"prism", "prism-lab"}
# Far above what any test program takes; a hang ends here.
LIMIT_S = 480
CARGO = ["cargo", "test", "--release", "--locked", "--workspace"]
COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
FAILED = re.compile(r"^test (\S+) .*FAILED$|^test (\S+) - .*FAILED$", re.M)


def build():
    """Builds the test programs; gives (package, kind, name, path, directory)."""
    command = CARGO + ["--no-run", "--message-format=json-render-diagnostics"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if output.returncode != 0:
        sys.exit(output.returncode)
    programs = []
    for line in output.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if not message.get("executable"):
            continue
        directory = os.path.dirname(message["manifest_path"])
        package = re.sub(r"@.*", "", message["package_id"].rpartition("#")[2])
        if re.fullmatch(r"[\d.]+", package):
            package = os.path.basename(message["package_id"].partition("#")[0])
        target = message["target"]
        programs.append((package, target["kind"][0], target["name"], message["executable"], directory))
    # Unprivileged and quick first.
    return sorted(programs, key=lambda p: (p[0] in SERIAL_PACKAGES, p[1] == "test", p[0], p[2]))


def run(command, directory, environment):
    """Runs a test program with its output shown; gives (status, output, seconds)."""
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=directory, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )

    def stop(*_):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    lines = []
    try:
        for line in process.stdout:
            text = line.decode(errors="replace")
            lines.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        status = process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise
    finally:
        signal.alarm(0)
    seconds = time.monotonic() - start
    if seconds >= LIMIT_S:
        lines.append(f"ended after {LIMIT_S} s without result\n")
        sys.stdout.write(lines[-1])
    return status, "".join(lines), seconds


def namespaces():
    try:
        return {name for name in os.listdir("/run/netns") if name.startswith("prism")}
    except FileNotFoundError:
        return set()


def main():
    words = sys.argv[1:]
    start = time.monotonic()
    before = namespaces()
    if os.geteuid() != 0:
        print("test: not root: tests that need privilege (tiers 2 to 4) are skipped", flush=True)
    programs = build()
    built_s = time.monotonic() - start
    rows, failures, skipped = [], [], 0
    totals = [0, 0, 0]
    jobs = []
    for package, kind, name, path, directory in programs:
        command = [path, *words]
        if package in SERIAL_PACKAGES and kind == "test":
            command.append("--test-threads=1")
        label = f"{package} {name}" if kind == "test" else f"{package} ({kind})"
        jobs.append((label, command, directory, {"CARGO_MANIFEST_DIR": directory}))
    jobs.append(("documentation", CARGO + ["--quiet", "--doc", *words], ".", {}))
    for label, command, directory, more in jobs:
        print(f"\n== {label}", flush=True)
        status, output, seconds = run(command, directory, {**os.environ, **more})
        counts = [sum(int(m[i]) for m in COUNTS.findall(output)) for i in range(3)]
        totals = [total + count for total, count in zip(totals, counts)]
        skipped += output.count("SKIPPED")
        named = [a or b for a, b in FAILED.findall(output)]
        failures += [f"{label}: {test}" for test in named]
        if status != 0 and not named:
            failures.append(f"{label}: ended with status {status}")
        if sum(counts) or status:
            rows.append((label, *counts, seconds))
    left = namespaces() - before
    failures += [f"left behind: namespace {name}" for name in sorted(left)]

    print(f"\n{'TESTS':<44} {'PASSED':>7} {'FAILED':>7} {'IGNORED':>8} {'SECONDS':>8}")
    for label, passed, failed, ignored, seconds in rows:
        print(f"{label:<44} {passed:>7} {failed:>7} {ignored:>8} {seconds:>8.1f}")
    print(f"{'in all':<44} {totals[0]:>7} {totals[1]:>7} {totals[2]:>8} {time.monotonic() - start:>8.1f}")
    print(f"(of which building: {built_s:.1f} s; skipped for want of privilege: {skipped})")
    for failure in failures:
        print(f"FAILED  {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
