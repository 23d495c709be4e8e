#!/usr/bin/env python3
"""Builds and runs all tests of the workspace, and sums up.

Runs what `cargo test --release --workspace` runs, and further: several test
programs (or groups of a program's tests) at a time, but those one by one that judge
time or watch the machine; each has a time limit; tests that were skipped for want of
privilege are listed; and namespaces that a test left behind are a failure. What fails
while the machine itself stands still, as a virtual one may for seconds, is run again,
and that is said.

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
# At a time, of those that are in none of the lists below.
LANES = 2
# They wait more than they compute: another lane takes them, one by one.
WAITING = {
    "prism chaos", "prism connections", "prism hostile", "prism tls_sessions", "prism refill",
}
# They count bytes and packets on a busy processor, and have no clock; behind the
# above, and beside them those that only wait for time to pass, and the patient.
COUNTING = {"prism bulk"}
BESIDE_COUNTING = {"prism owners", "prism-etcd etcd"}
# One by one behind all others: they judge rates, times or memory that another test would
# change, or what becomes of labs that nobody owns.
ALONE = {
    "prism demo", "prism impair",
    "prism-lab lab", "prism-store memory", "prism-sys freeze", "prism-sys handoff",
    "prism-switch network",
}
# Without network, and in no hurry: at the lowest priority.
PATIENT_PACKAGES = {
    "prism-bench", "prism-cluster", "prism-config", "prism-hash", "prism-http", "prism-proto", "prism-replica", "prism-s3",
    "prism-store", "prism-tls",
}
# The longest begin first, so that no lane ends long after the others.
LONGEST = [
    "prism connections", "prism sessions", "prism tls_clients", "prism refill", "prism hostile", "prism replicas",
    "prism tls_sessions", "prism mixture", "prism objects", "prism uploads", "prism clients", "prism cluster",
    "prism serve", "prism crash", "prism-store scrub", "prism-proto simulation", "prism-switch aging",
]
# Far above what any of them takes; a hang ends here. What is long when asked takes longer.
LIMIT_S = int(os.environ.get("PRISM_TEST_LIMIT_S", "480"))
# A processor that nobody gets for so long stands still, and nodes run out of patience. A
# busy one is got within a few hundredths.
STALL_S = 0.2
# So often is run again what failed in such a moment, when there has been none for so
# long, or that has been waited for so long in all.
MOST_AGAIN, CALM_S, MAX_WAIT_S = 3, 10.0, 1200.0
DOCUMENTATION = ["cargo", "test", "--release", "--locked", "--workspace", "--quiet", "--doc"]
COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
# In the list at a test program's end.
FAILED = re.compile(r"^    (\w.*)$", re.M)


class Job:
    """A test program, or a group of its tests, and what came of it."""

    def __init__(self, label, command, directory=".", environment=(), patient=False):
        self.label, self.command, self.directory, self.patient = label, command, directory, patient
        self.environment = {**os.environ, **dict(environment)}
        self.status, self.output, self.start, self.seconds, self.cpu_s = None, "", 0.0, 0.0, 0.0

    def run(self):
        """Runs it to its end, and shows then what it said."""
        self.start = start = time.monotonic()
        command = (["nice", "-n", "19"] if self.patient else []) + self.command
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
            self.output += f"ended after {LIMIT_S} s without result\n"
        with SHOWING:
            print(f"\n== {self.label}\n{self.output}", end="", flush=True)


class Stalls:
    """Notes when a processor stood still: a thread on each looks at the clock."""

    EVERY_S = 0.05

    def __init__(self):
        # Of each when it ended, and how long it was.
        self.noted, self.left_s = [], MAX_WAIT_S
        for processor in os.sched_getaffinity(0):
            threading.Thread(target=self.watch, args=[processor], daemon=True).start()

    def watch(self, processor):
        # Of this thread alone.
        os.sched_setaffinity(0, {processor})
        last = time.monotonic()
        while True:
            time.sleep(self.EVERY_S)
            now = time.monotonic()
            if now - last - self.EVERY_S > STALL_S:
                self.noted.append((now, now - last))
            last = now

    def wait_for_calm(self):
        """Until there has been none for a while, as long as that may be waited for."""
        while self.left_s > 0:
            start = time.monotonic()
            if start > max((at for at, _ in list(self.noted)), default=0.0) + CALM_S:
                break
            time.sleep(1)
            self.left_s -= time.monotonic() - start

    def longest(self, job):
        """Seconds of the longest while a job ran; 0 if there was none."""
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
    """The jobs that a program's tests make, those with none of `words` left out."""
    for group, tests in groups_of(kind, name, path).items():
        tests = [test for test in tests if not words or any(word in test for word in words)]
        if not tests:
            continue
        command = [path] + (["--exact", *tests] if group or words else [])
        if package in SERIAL_PACKAGES and kind == "test":
            command.append("--test-threads=1")
        label = f"{package} {group or name}" if kind == "test" else f"{package} ({kind})"
        patient = package in PATIENT_PACKAGES
        yield Job(label, command, directory, {"CARGO_MANIFEST_DIR": directory}, patient)


def run_all(jobs):
    """Runs the jobs: those of the lanes, then those that count, then those one by
    one."""
    jobs = sorted(jobs, key=lambda job: LONGEST.index(job.label) if job.label in LONGEST else len(LONGEST))

    def take(belongs):
        nonlocal jobs
        taken = [job for job in jobs if belongs(job)]
        jobs = [job for job in jobs if job not in taken]
        return taken

    patient = take(lambda job: job.patient)
    counting, beside, alone, waiting = (
        take(lambda job, labels=labels: job.label in labels)
        for labels in (COUNTING, BESIDE_COUNTING, ALONE, WAITING)
    )
    abreast([waiting] + [jobs + waiting] * LANES)
    abreast([counting, beside, patient])
    abreast([alone])


def abreast(lanes):
    """Runs the jobs of each lane in order; one that is in several, in the first to
    get there."""
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
    """Runs again what failed while the machine stood still. Gives what there is to say
    of it."""
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
    jobs.append(Job("documentation", [*DOCUMENTATION, "--", *words], patient=True))
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
    print(f"(of which building: {built_s:.1f} s; skipped, as privilege or a feature of the kernel is missing: {skipped})")
    for failure in again:
        print(f"AGAIN   {failure}")
    for failure in failures:
        print(f"FAILED  {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
