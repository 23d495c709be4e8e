#!/usr/bin/env python3
"""Builds and runs tests of the workspace, and prints a table of the results.

It runs the tests of `cargo test --release --workspace`, with these differences:

- The program has all of its features.
- Several test programs, or groups of a program's tests, run at a time, by the times that
  are recorded in test-times.json. Groups that judge time or look at the whole machine run
  one by one.
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
       (the groups of a tier, with the recorded seconds of each)
       scripts/test.py --tier TIER --record
       (records the times, after a group has become much longer or shorter)
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
# Groups that run last, one by one. They judge rates, times or memory, which other tests
# would change, or they check the removal of abandoned labs.
ALONE = {
    "prism impair", "prism-lab lab", "prism-lab pair", "prism-lab-cli demo", "prism-lab-cli demo_upstream", "prism-lab-cli pair", "prism-store memory", "prism-sys freeze", "prism-sys handoff",
    "prism-switch network",
}
# Packages whose tests use no network. They run at the lowest priority.
LOW_PRIORITY_PACKAGES = {
    "prism-audit", "prism-bench", "prism-cluster", "prism-common", "prism-config", "prism-figures", "prism-objects", "prism-replicas", "prism-service", "prism-gateway", "prism-membership", "prism-hash", "prism-http", "prism-pki", "prism-proto", "prism-s3",
    "prism-store", "prism-tls", "prism-upstream",
}
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
# The seconds that each group took, and its seconds of processor time. By them the groups are
# scheduled. `--record` writes them.
TIMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test-times.json")
# A group that has no times yet.
UNKNOWN = {"seconds": 60.0, "cpu_s": 40.0}
# Groups that run at a time. Their processor time together is at most this share of all
# processors; more would expire timeouts in nodes.
MOST_AT_A_TIME, MOST_LOAD = 5, 0.85
# A group of the lowest priority takes processors from no other one, so it counts less.
LOW_PRIORITY_LOAD = 0.4
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
    """Runs the jobs side by side, then those of ALONE one by one."""
    times = recorded_times()
    alone = [job for job in jobs if job.label in ALONE]
    others = [job for job in jobs if job.label not in ALONE]
    side_by_side(others, times, MOST_LOAD * len(os.sched_getaffinity(0)))
    side_by_side(alone, times, 0)


def load(job, times):
    """The processors that a job takes while it runs."""
    time_of = times.get(job.label, UNKNOWN)
    share = time_of["cpu_s"] / max(time_of["seconds"], 0.1)
    return share * (LOW_PRIORITY_LOAD if job.low_priority else 1)


def side_by_side(jobs, times, most_load):
    """Runs jobs while their loads together are at most `most_load`; at least one runs. The
    longest job that fits begins first."""
    waiting = sorted(jobs, key=lambda job: -times.get(job.label, UNKNOWN)["seconds"])
    running, changed = {}, threading.Condition()

    def run(job):
        job.run()
        with changed:
            del running[job]
            changed.notify()

    with changed:
        while waiting:
            left = most_load - sum(running.values())
            fitting = (job for job in waiting if not running or load(job, times) <= left)
            job = next(fitting, None) if len(running) < MOST_AT_A_TIME else None
            if job is None:
                changed.wait()
                continue
            waiting.remove(job)
            running[job] = load(job, times)
            threading.Thread(target=run, args=[job], daemon=True).start()
        while running:
            changed.wait()


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
    """Prints the jobs, with the recorded seconds of each."""
    times = recorded_times()
    print(f"\n{'GROUPS':<72} {'TIER':<6} {'SECONDS':>8}")
    for job in jobs:
        seconds = f"{times[job.label]['seconds']:.1f}" if job.label in times else "-"
        print(f"{job.label:<72} {job.tier:<6} {seconds:>8}")
    total = sum(times.get(job.label, UNKNOWN)["seconds"] for job in jobs)
    print(f"({len(jobs)} groups; {total:.0f} s one by one)")


def recorded_times():
    try:
        with open(TIMES, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def record_times(jobs):
    """Records the times of groups that passed, beside those of other tiers."""
    times = recorded_times()
    for job in jobs:
        if job.status == 0:
            times[job.label] = {"seconds": round(job.seconds, 1), "cpu_s": round(job.cpu_s, 1)}
    lines = (f"{json.dumps(label)}: {json.dumps(times[label])}" for label in sorted(times))
    with open(TIMES, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tier", choices=TIERS, help="the groups of this tier; `test` includes `check`")
    parser.add_argument("--list", action="store_true", help="build, list the groups and run none")
    parser.add_argument("--record", action="store_true", help=f"record the times of groups in {os.path.basename(TIMES)}")
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
        side_by_side(forms, {}, 0)
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
    if options.record:
        record_times(jobs)
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
