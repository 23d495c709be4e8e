#!/usr/bin/env python3
"""Builds and runs all tests of the workspace, and prints a table of the results.

It runs the tests of `cargo test --release --workspace`, with these differences:

- The program has all of its features.
- Several test programs, or groups of a program's tests, run at a time. Groups that judge
  time or look at the whole machine run one by one.
- Each group has a time limit.
- Skipped tests are counted.
- A namespace that a test has left behind is a failure.
- A group that fails while the machine itself stands still runs again, with a message. A
  virtual machine may stand still for seconds.

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

from programs import FEATURES, build, groups_of

# The integration tests of these packages run one at a time within a process.
SERIAL_PACKAGES = {"prism", "prism-lab", "prism-lab-cli"}
# Groups that run at a time, of the groups in none of the lists below.
LANES = 2
# Groups that wait more than they compute. One more lane runs them, one by one.
WAITING = {
    "prism connections", "prism hostile", "prism page", "prism tls_sessions", "prism refill", "packages",
    "prism relaying", "prism migrate", "prism observe", "prism quota", "prism buckets", "prism slow_disk",
    "prism notify",
}
# Groups that count bytes and packets, and judge no time. They run after the groups above.
COUNTING = {"prism bulk"}
# Groups that run beside COUNTING, because they only wait for time to pass. The groups of
# LOW_PRIORITY_PACKAGES run beside COUNTING too.
BESIDE_COUNTING = {"prism owners", "prism-etcd etcd"}
# Groups that run last, one by one. They judge rates, times or memory, which other tests
# would change, or they check the removal of abandoned labs.
ALONE = {
    "prism impair", "prism-lab lab", "prism-lab pair", "prism-lab-cli demo", "prism-lab-cli pair", "prism-store memory", "prism-sys freeze", "prism-sys handoff",
    "prism-switch network",
}
# Packages whose tests use no network. They run at the lowest priority.
LOW_PRIORITY_PACKAGES = {
    "prism-bench", "prism-cluster", "prism-config", "prism-objects", "prism-replicas", "prism-service", "prism-gateway", "prism-membership", "prism-hash", "prism-http", "prism-proto", "prism-s3",
    "prism-store", "prism-tls", "prism-upstream",
}
# The longest groups begin first, so that no lane ends long after the others.
LONGEST = [
    "prism upstreams", "prism connections", "prism-lab-cli benches", "prism host_mode", "prism sessions",
    "prism acme", "prism chaos", "prism successor", "prism tls_clients", "prism refill", "prism hostile", "prism replicas",
    "prism tls_sessions", "prism mixture", "prism objects", "prism uploads", "prism clients", "prism cluster",
    "prism serve", "prism crash", "prism-store scrub", "prism-proto simulation", "prism-switch aging",
]
# The time limit of a group, far above its normal time. Long forms of tests need more.
LIMIT_S = int(os.environ.get("PRISM_TEST_LIMIT_S", "480"))
# A processor on which no thread runs for this time stands still, and timeouts in nodes
# expire. A busy processor runs a thread within some 0.05 s.
STALL_S = 0.2
# A group that failed in such a moment runs again, at most MOST_AGAIN times. Each time waits
# until the machine has not stood still for CALM_S, or MAX_WAIT_S have passed in all.
MOST_AGAIN, CALM_S, MAX_WAIT_S = 3, 10.0, 1200.0
DOCUMENTATION = ["cargo", "test", "--release", "--locked", "--workspace", *FEATURES, "--quiet", "--doc"]
COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
# A line of the list of failures at the end of a test program's output.
FAILED = re.compile(r"^    (\w.*)$", re.M)


class Job:
    """A test program, or a group of its tests, with its result."""

    def __init__(self, label, command, directory=".", environment=(), low_priority=False):
        self.label, self.command, self.directory, self.low_priority = label, command, directory, low_priority
        self.environment = {**os.environ, **dict(environment)}
        self.status, self.output, self.start, self.seconds, self.cpu_s = None, "", 0.0, 0.0, 0.0

    def run(self):
        """Runs it to its end, and then prints its output."""
        self.start = start = time.monotonic()
        command = (["nice", "-n", "19"] if self.low_priority else []) + self.command
        process = subprocess.Popen(
            command, cwd=self.directory, env=self.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        RUNNING.add(process)
        limit = threading.Timer(LIMIT_S, kill, [process])
        limit.start()
        self.output = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        limit.cancel()
        RUNNING.discard(process)
        self.seconds, self.cpu_s = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        if self.seconds >= LIMIT_S:
            self.output += f"killed after {LIMIT_S} s without a result\n"
        with SHOWING:
            print(f"\n== {self.label}\n{self.output}", end="", flush=True)


class Stalls:
    """Records the moments when a processor stood still. A thread on each reads the clock."""

    EVERY_S = 0.05

    def __init__(self):
        # The end and the length of each such moment.
        self.noted, self.left_s = [], MAX_WAIT_S
        for processor in os.sched_getaffinity(0):
            threading.Thread(target=self.watch, args=[processor], daemon=True).start()

    def watch(self, processor):
        # This sets the affinity of this thread only.
        os.sched_setaffinity(0, {processor})
        last = time.monotonic()
        while True:
            time.sleep(self.EVERY_S)
            now = time.monotonic()
            if now - last - self.EVERY_S > STALL_S:
                self.noted.append((now, now - last))
            last = now

    def wait_for_calm(self):
        """Waits until no processor has stood still for CALM_S, within MAX_WAIT_S in all."""
        while self.left_s > 0:
            start = time.monotonic()
            if start > max((at for at, _ in list(self.noted)), default=0.0) + CALM_S:
                break
            time.sleep(1)
            self.left_s -= time.monotonic() - start

    def longest(self, job):
        """The seconds of the longest such moment during a job; 0 without one."""
        end = job.start + job.seconds
        return max((length for at, length in list(self.noted) if job.start < at < end + length), default=0.0)


SHOWING = threading.Lock()
RUNNING = set()


def kill(process, how=signal.SIGKILL):
    if process.returncode is None:
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass


def jobs_of(package, kind, name, path, directory, words):
    """The jobs of a program's tests. Tests whose names contain none of `words` are left out."""
    for group, tests in groups_of(kind, name, path).items():
        tests = [test for test in tests if not words or any(word in test for word in words)]
        if not tests:
            continue
        command = [path] + (["--exact", *tests] if group or words else [])
        if package in SERIAL_PACKAGES and kind == "test":
            command.append("--test-threads=1")
        label = f"{package} {group or name}" if kind == "test" else f"{package} ({kind})"
        low_priority = package in LOW_PRIORITY_PACKAGES
        yield Job(label, command, directory, {"CARGO_MANIFEST_DIR": directory}, low_priority)


def packages_job(programs, words):
    """The tests of packages of the programs that the tests have built."""
    directories = {os.path.dirname(path) for path in programs if os.path.basename(path) == "prism"}
    if words and not any(word in "packages::" for word in words):
        return
    for directory in directories:
        yield Job("packages", ["scripts/test_packages.py", directory])


def run_all(jobs):
    """Runs the jobs: the lanes, then COUNTING and the jobs beside it, then ALONE."""
    jobs = sorted(jobs, key=lambda job: LONGEST.index(job.label) if job.label in LONGEST else len(LONGEST))

    def take_jobs(belongs):
        nonlocal jobs
        taken = [job for job in jobs if belongs(job)]
        jobs = [job for job in jobs if job not in taken]
        return taken

    low_priority = take_jobs(lambda job: job.low_priority)
    counting, beside, alone, waiting = (
        take_jobs(lambda job, labels=labels: job.label in labels)
        for labels in (COUNTING, BESIDE_COUNTING, ALONE, WAITING)
    )
    abreast([waiting] + [jobs + waiting] * LANES)
    abreast([counting, beside, low_priority])
    abreast([alone])


def abreast(lanes):
    """Runs the jobs of each lane in order. The first lane that reaches a job runs it."""
    taken, turn = set(), threading.Lock()

    def run(lane):
        for job in lane:
            with turn:
                if job in taken:
                    continue
                taken.add(job)
            job.run()

    threads = [threading.Thread(target=run, args=[lane], daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_again(jobs, stalls):
    """Runs jobs again that failed while the machine stood still. Returns messages."""
    said = []
    for job in jobs:
        for _ in range(MOST_AGAIN):
            (_, failures), stall_s = judge(job), stalls.longest(job)
            if not failures or not stall_s:
                break
            said += [f"{failure} (the machine stood still for {stall_s:.2f} s)" for failure in failures]
            stalls.wait_for_calm()
            job.run()
    return said


def namespaces():
    try:
        return {name for name in os.listdir("/run/netns") if name.startswith("prism")}
    except FileNotFoundError:
        return set()


def judge(job):
    """The counts of passed, failed and ignored tests, and the names of the failed ones."""
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
    programs, others = build("--workspace", *FEATURES)
    built_s = time.monotonic() - start
    jobs = [job for program in programs for job in jobs_of(*program, words)]
    jobs.append(Job("documentation", [*DOCUMENTATION, "--", *words], low_priority=True))
    jobs += packages_job(others, words)
    stalls = Stalls()
    try:
        run_all(jobs)
        again = run_again(jobs, stalls)
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
    print(f"(building: {built_s:.1f} s; skipped for lack of privilege or of a kernel feature: {skipped})")
    for failure in again:
        print(f"AGAIN   {failure}")
    for failure in failures:
        print(f"FAILED  {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
