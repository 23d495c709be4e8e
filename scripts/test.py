#!/usr/bin/env python3
"""Builds and runs tests of the workspace, and prints a table of the results.

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
       scripts/test.py --tier check|test|long
       (`make check`, `make test`, and the part of `make test-long` that this program runs)
       scripts/test.py --tier TIER --list
       (the groups of a tier, with the seconds that each took last)
"""

import argparse
import json
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
    "prism impair", "prism-lab lab", "prism-lab pair", "prism-lab-cli demo", "prism-lab-cli demo_upstream", "prism-lab-cli pair", "prism-store memory", "prism-sys freeze", "prism-sys handoff",
    "prism-switch network",
}
# Packages whose tests use no network. They run at the lowest priority.
LOW_PRIORITY_PACKAGES = {
    "prism-bench", "prism-cluster", "prism-common", "prism-config", "prism-figures", "prism-objects", "prism-replicas", "prism-service", "prism-gateway", "prism-membership", "prism-hash", "prism-http", "prism-pki", "prism-proto", "prism-s3",
    "prism-store", "prism-tls", "prism-upstream",
}
# The longest groups begin first, so that no lane ends long after the others.
LONGEST = [
    "prism upstreams", "prism connections", "prism-lab-cli benches", "prism host_mode", "prism sessions",
    "prism chaos", "prism successor", "prism tls_clients", "prism refill", "prism hostile", "prism replicas",
    "prism tls_sessions", "prism mixture", "prism objects", "prism uploads", "prism clients", "prism cluster",
    "prism serve", "prism crash", "prism-store scrub", "prism-proto simulation", "prism-switch aging",
]
# Each group is in one tier. CHECK has the tests inside the crates, the tests of
# LOW_PRIORITY_PACKAGES, the documentation, and the groups of this list. The tier `test` also
# runs CHECK.
CHECK = {"prism-lab-cli demo"}
# The groups that `make test` leaves out. They are long, and the daily work on nodes and switch
# does not touch their subjects: packages, the configurations of docs/migrate.md, the
# benchmarks, the page in a browser, orders and renewals of certificates, notifications, quotas,
# a slow disk, and forms of the lab's program.
LONG = {
    "packages", "prism migrate", "prism-lab-cli benches", "prism page", "prism acme", "prism notify",
    "prism quota", "prism renewal", "prism slow_disk", "prism-lab-cli demo_upstream", "prism-lab-cli pair",
}
# All other groups are in the tier `test`. A filter finds a test of any tier, unless --tier
# limits it.
TIERS = ("check", "test", "long")
# The long forms of tests, which the tier `long` runs too: the beginning of the labels, a part
# of the tests' names, and the environment. CONTRIBUTING.md describes the variables.
LONG_FORMS = [
    ("prism ", "histories_are", {"PRISM_REPLICA_KILLS": "50"}),
    ("prism-cluster simulation", "", {"PRISM_SIM_TIMES": "15"}),
    ("prism-cluster restores", "", {"PRISM_SIM_TIMES": "15"}),
    ("prism-proto simulation", "", {"PRISM_SIM_TIMES": "5"}),
    ("prism-tls sequences", "", {"PRISM_SIM_TIMES": "15"}),
    ("prism-store ", "catching_up", {"PRISM_CATCH_UP_ROUNDS": "50"}),
    ("prism-store ", "random_changes_of_versions", {"PRISM_CATCH_UP_ROUNDS": "50"}),
    ("prism ", "what_clients_see", {"PRISM_REFILL_ROUNDS": "6"}),
    ("prism ", "versions_outlive", {"PRISM_VERSIONS_ROUNDS": "5"}),
    ("prism ", "restarts_under_load", {"PRISM_ROLLING_ROUNDS": "5"}),
    ("prism ", "clients_of_many_makes", {"PRISM_SESSIONS": "full"}),
    ("prism ", "crash::", {"PRISM_CRASH_KILLS": "80"}),
    ("prism-store ", "crash::", {"PRISM_CRASH_KILLS": "300"}),
    ("prism ", "switches::", {"PRISM_SWITCH_CONNECTIONS": "300", "PRISM_SWITCH_DEATHS": "15"}),
    ("prism ", "chaos::nothing_answered_is_lost_while_all", {"PRISM_CHAOS_S": "240"}),
    ("prism ", "chaos::nothing_answered_is_lost_while_older", {"PRISM_CHAOS_RESTORES": "100"}),
    ("prism-store ", "disk::", {"PRISM_POWER_CUTS": "60"}),
    ("prism-sys ", "freeze::", {"PRISM_FREEZE_TIMES": "5"}),
]
# The time limit of a group, far above its normal time, and of a long form.
LIMIT_S = int(os.environ.get("PRISM_TEST_LIMIT_S", "480"))
LONG_LIMIT_S = max(LIMIT_S, 1800)
# The seconds that each group took last, for --list.
LAST_TIMES = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "test-seconds.json")
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

    def __init__(self, label, command, directory=".", environment=(), low_priority=False, tier="test"):
        self.label, self.command, self.directory, self.low_priority = label, command, directory, low_priority
        self.environment = {**os.environ, **dict(environment)}
        self.tier, self.limit_s = ("long" if label in LONG else tier), LIMIT_S
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
        limit = threading.Timer(self.limit_s, kill, [process])
        limit.start()
        self.output = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        limit.cancel()
        RUNNING.discard(process)
        self.seconds, self.cpu_s = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        if self.seconds >= self.limit_s:
            self.output += f"killed after {self.limit_s} s without a result\n"
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
        tier = "check" if kind != "test" or low_priority or label in CHECK else "test"
        yield Job(label, command, directory, {"CARGO_MANIFEST_DIR": directory}, low_priority, tier)


def long_forms(programs):
    """The jobs of LONG_FORMS."""
    for beginning, word, environment in LONG_FORMS:
        found = False
        for package, kind, *rest in programs:
            if kind != "test" or not beginning.startswith(f"{package} "):
                continue
            for job in jobs_of(package, kind, *rest, [word] if word else []):
                if not job.label.startswith(beginning):
                    continue
                found, job.tier, job.limit_s = True, "long", LONG_LIMIT_S
                job.environment.update(environment)
                job.label += "".join(f" {name.removeprefix('PRISM_')}={value}" for name, value in environment.items())
                yield job
        if not found:
            sys.exit(f"test: no test of {beginning.strip()} has {word!r} in its name; see LONG_FORMS")


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


def belongs(job, tier):
    """Whether a tier runs a job. Without a tier, all groups run."""
    return tier is None or job.tier == tier or (tier, job.tier) == ("test", "check")


def list_jobs(jobs):
    """Prints the jobs, with the seconds that each took last."""
    last = last_seconds()
    print(f"\n{'GROUPS':<72} {'TIER':<6} {'SECONDS':>8}")
    for job in jobs:
        seconds = f"{last[job.label]:.1f}" if job.label in last else "-"
        print(f"{job.label:<72} {job.tier:<6} {seconds:>8}")
    total = sum(last.get(job.label, 0) for job in jobs)
    print(f"({len(jobs)} groups; the sum of the last times known is {total:.0f} s, before groups run side by side)")


def last_seconds():
    try:
        with open(LAST_TIMES, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return {}


def note_seconds(jobs):
    """Notes the seconds of whole groups that passed."""
    last = {**last_seconds(), **{job.label: round(job.seconds, 1) for job in jobs if job.status == 0}}
    with open(LAST_TIMES, "w", encoding="utf-8") as file:
        json.dump(last, file, indent=1, sort_keys=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tier", choices=TIERS, help="the groups of this tier; `test` includes `check`")
    parser.add_argument("--list", action="store_true", help="build, list the groups and run none")
    parser.add_argument("word", nargs="*", help="only tests whose name contains one of the words")
    options = parser.parse_args()
    words = options.word
    start = time.monotonic()
    before = namespaces()
    if os.geteuid() != 0:
        print("test: not root: tests that need privilege (tiers 2 to 4) are skipped", flush=True)
    programs, others = build("--workspace", *FEATURES)
    built_s = time.monotonic() - start
    jobs = [job for program in programs for job in jobs_of(*program, words)]
    jobs.append(Job("documentation", [*DOCUMENTATION, "--", *words], low_priority=True, tier="check"))
    jobs += packages_job(others, words)
    jobs = [job for job in jobs if belongs(job, options.tier)]
    forms = list(long_forms(programs)) if options.tier == "long" and not words else []
    if options.list:
        return list_jobs(jobs + forms)
    stalls = Stalls()
    try:
        run_all(jobs)
        abreast([forms])
        jobs += forms
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
    if not words:
        note_seconds(jobs)
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
