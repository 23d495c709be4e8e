#!/usr/bin/env python3
"""Builds and runs all tests of the workspace, and sums up.

Runs what `cargo test --release --workspace` runs, and further: two test programs
(or groups of a program's tests) at a time, but those alone that judge time or
watch the machine; each has a time limit; tests that were skipped for want of
privilege are listed; and namespaces that a test left behind are a failure.

Usage: scripts/test.py [FILTER...]
       (only tests whose name contains a FILTER; "bulk::" is a whole group)
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time

from programs import build, groups_of

# Their integration tests run one at a time within a process.
SERIAL_PACKAGES = {"prism", "prism-lab"}
# At a time. Most tests of labs wait more than they compute.
LANES = 2
# These have the machine to themselves: they judge rates or times that another
# test would change, or what becomes of labs that nobody owns.
ALONE = {
    "prism bulk", "prism demo", "prism impair", "prism owners",
    "prism-lab lab", "prism-sys freeze", "prism-sys handoff", "prism-switch network",
}
# The longest begin first, so that no lane ends long after the others.
LONGEST = [
    "prism bulk", "prism connections", "prism tls_clients", "prism sessions", "prism impair", "prism hostile",
    "prism owners", "prism cluster", "prism refill", "prism replicas", "prism tls_sessions", "prism mixture",
    "prism objects", "prism uploads", "prism clients", "prism-store scrub", "prism demo", "prism crash",
    "prism serve", "prism-switch aging",
]
# Far above what any of them takes; a hang ends here.
LIMIT_S = 480
DOCUMENTATION = ["cargo", "test", "--release", "--locked", "--workspace", "--quiet", "--doc"]
COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
# In the list at a test program's end.
FAILED = re.compile(r"^    (\w.*)$", re.M)


class Job:
    """A test program, or a group of its tests, and what came of it."""

    def __init__(self, label, command, directory=".", environment=()):
        self.label, self.command, self.directory = label, command, directory
        self.environment = {**os.environ, **dict(environment)}
        self.status, self.output, self.seconds, self.cpu_s = None, "", 0.0, 0.0

    def run(self, show):
        """Runs it to its end; `show` is called with each line."""
        start = time.monotonic()
        process = subprocess.Popen(
            self.command, cwd=self.directory, env=self.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        RUNNING.add(process)
        limit = threading.Timer(LIMIT_S, kill, [process])
        limit.start()
        lines = []
        for line in process.stdout:
            lines.append(line.decode(errors="replace"))
            show(lines[-1])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        limit.cancel()
        RUNNING.discard(process)
        self.seconds, self.cpu_s = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        if self.seconds >= LIMIT_S:
            lines.append(f"ended after {LIMIT_S} s without result\n")
            show(lines[-1])
        self.output = "".join(lines)


RUNNING = set()


def kill(process, how=signal.SIGKILL):
    if process.returncode is None:
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass


def jobs_of(package, kind, name, path, directory, words):
    """The jobs that a program's tests make, those with none of `words` left out."""
    for group, tests in groups_of(kind, name, path).items():
        tests = [test for test in tests if not words or any(word in test for word in words)]
        if not tests:
            continue
        command = [path] + (["--exact", *tests] if group or words else [])
        if package in SERIAL_PACKAGES and kind == "test":
            command.append("--test-threads=1")
        label = f"{package} {group or name}" if kind == "test" else f"{package} ({kind})"
        yield Job(label, command, directory, {"CARGO_MANIFEST_DIR": directory})


def run_all(jobs):
    """Runs the jobs, those of the lanes first."""
    together = [job for job in jobs if job.label not in ALONE]
    together.sort(key=lambda job: LONGEST.index(job.label) if job.label in LONGEST else len(LONGEST))
    waiting, turn = iter(together), threading.Lock()

    def lane():
        while True:
            with turn:
                job = next(waiting, None)
            if job is None:
                return
            job.run(lambda line: None)
            with turn:
                sys.stdout.write(f"\n== {job.label}\n{job.output}")
                sys.stdout.flush()

    def shown(line):
        sys.stdout.write(line)
        sys.stdout.flush()

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(LANES)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    for job in jobs:
        if job.label in ALONE:
            print(f"\n== {job.label} (alone)", flush=True)
            job.run(shown)


def namespaces():
    try:
        return {name for name in os.listdir("/run/netns") if name.startswith("prism")}
    except FileNotFoundError:
        return set()


def judge(job):
    """Counts of passed, failed and ignored tests, and what failed."""
    counts = [sum(int(m[i]) for m in COUNTS.findall(job.output)) for i in range(3)]
    named = FAILED.findall(job.output.rpartition("\nfailures:\n")[2]) if counts[1] else []
    failures = [f"{job.label}: {test}" for test in named]
    if job.status != 0 and not named:
        failures.append(f"{job.label}: ended with status {job.status}")
    return counts, failures


def main():
    words = sys.argv[1:]
    start = time.monotonic()
    before = namespaces()
    if os.geteuid() != 0:
        print("test: not root: tests that need privilege (tiers 2 to 4) are skipped", flush=True)
    programs, _ = build("--workspace")
    built_s = time.monotonic() - start
    jobs = [job for program in programs for job in jobs_of(*program, words)]
    jobs.append(Job("documentation", [*DOCUMENTATION, *words]))
    try:
        run_all(jobs)
    except KeyboardInterrupt:
        for process in list(RUNNING):
            kill(process, signal.SIGINT)
        sys.exit(130)

    print(f"\n{'TESTS':<40} {'PASSED':>7} {'FAILED':>7} {'IGNORED':>8} {'SECONDS':>8} {'CPU':>7}")
    totals, failures = [0, 0, 0], []
    for job in jobs:
        counts, failed = judge(job)
        totals = [total + count for total, count in zip(totals, counts)]
        failures += failed
        if sum(counts) or job.status:
            columns = " ".join(f"{count:>{width}}" for count, width in zip(counts, (7, 7, 8)))
            print(f"{job.label:<40} {columns} {job.seconds:>8.1f} {job.cpu_s:>7.1f}")
    failures += [f"left behind: namespace {name}" for name in sorted(namespaces() - before)]
    skipped = sum(job.output.count("SKIPPED") for job in jobs)
    print(f"{'in all':<40} {totals[0]:>7} {totals[1]:>7} {totals[2]:>8} {time.monotonic() - start:>8.1f}")
    print(f"(of which building: {built_s:.1f} s; skipped for want of privilege: {skipped})")
    for failure in failures:
        print(f"FAILED  {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
