#!/usr/bin/env python3
"""Measures what one user can do to all others at a lab: the owner of a bucket, a writer of one,
and a stranger do their worst, each for a turn.

Each user has a lab of its own, with etcd. Other clients read and write meanwhile at fixed times,
at a fifth of the rate that they reach when they do not wait. A quiet turn comes before each turn
of a user, who has an address of its own, and half a core for all its connections. The user's
worst is in `scripts/isolation_users.py`, the load of the others in `scripts/isolation_load.py`.

The verdict is `ok` if no request of the others failed, their p99 is at most `--ratio` times that
of the quiet turn before (the median of the rounds), and no node has more than `--growth` MiB
above the most of its first quiet turn. The status is 1 otherwise. It needs root and etcd
(`scripts/setup.sh tests`).

Usage: scripts/isolation.py [--seconds N] [--rounds N] [--only USER] [--limits FILE]
                            [--rows FILE]
"""

import argparse
import contextlib
import ipaddress
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "release"
USERS = ["owner", "writer", "stranger"]
RESULT, SYSTEM = "isolation", "prism"
OTHERS = "others"
# The load of the others, over what they reach without waiting, in so many seconds.
SHARE, CLOSED_S = 0.2, 10
# The length of a period of the cap on processor time. A short one spreads the user's time evenly.
PERIOD_US = 10_000
# The smallest cap of the kernel in a period.
LEAST_QUOTA_US = 1_000
# The time from the beginning of the user's worst to that of the others' turn: bodies of 1 GiB
# are sent, and a policy reaches the frontends.
WARM_UP_S = 5
# The time after a user's worst, in which connections end.
REST_S = 5
# An address of the lab's network that no host has.
SOURCE = 250
# The writer's bucket has a quota, as objects are in memory.
QUOTA = "256M"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


class Lab:
    """A lab with the buckets and keys of one user."""

    def __init__(self, options, user):
        self.options, self.user, self.name = options, user, options.name
        self.prism = options.prism.resolve()
        self.keys = {}

    def command(self, name, *arguments):
        return [self.options.prism_lab, name, "--name", self.name, *arguments]

    def on(self, host, *command):
        return self.command("exec", host, "--", *command)

    def python(self, script, given):
        return self.on("client", sys.executable, HERE / script, json.dumps(given))

    def ctl(self, *arguments, **options):
        config = f"/run/prism-lab/{self.name}/prism.toml"
        run(*self.on("fe0", self.prism, "ctl", *arguments, "--config", config), stdout=subprocess.DEVNULL, **options)

    def hosts(self):
        text = run(*self.command("status", "--json"), stdout=subprocess.PIPE).stdout
        return {host["name"]: host for host in json.loads(text)["hosts"]}

    @contextlib.contextmanager
    def up(self):
        backends = ["--backends", self.options.backends, "--etcd", "--prism", self.prism]
        run(*self.command("up", *backends), stdout=subprocess.DEVNULL)
        try:
            self.prepare()
            yield self
        finally:
            run(*self.command("down"), stdout=subprocess.DEVNULL)

    def limit(self, limits):
        """Has the service limit its users by these tables."""
        with open(f"/run/prism-lab/{self.name}/prism.toml", "a", encoding="utf-8") as config:
            config.write(limits)
        self.ctl("reload")

    def prepare(self):
        if self.options.limits:
            self.limit(self.options.limits.read_text(encoding="utf-8"))
        client = ipaddress.ip_address(self.hosts()["client"]["address"])
        self.source = str(ipaddress.ip_network(f"{client}/24", strict=False)[SOURCE])
        run(*self.on("client", "ip", "address", "add", f"{self.source}/32", "dev", "eth0"))
        run(*self.on("switch", "ip", "route", "add", f"{self.source}/32", "via", str(client), "dev", "client"))
        self.ctl("rebalance", "--replicas", self.options.replicas, "--wait")
        run(*self.python("isolation_load.py", {"buckets": [OTHERS, self.bucket()]}))
        if self.user == "stranger":
            return
        self.keys = {"access_key": self.user.upper(), "secret_key": f"the-secret-of-the-{self.user}"}
        self.ctl("key", "new", self.keys["access_key"], "--secret-stdin", input=self.keys["secret_key"])
        rights = {"owner": ["--owner", "--read", "--write"], "writer": ["--read", "--write"]}[self.user]
        self.ctl("bucket", "allow", self.bucket(), "--key", self.keys["access_key"], *rights)
        if self.user == "writer":
            self.ctl("bucket", "quota", self.bucket(), "--bytes", QUOTA)

    def bucket(self):
        """The bucket of the user. The stranger asks for those of the others."""
        return OTHERS if self.user == "stranger" else f"of-the-{self.user}"

    def nodes(self):
        return {name: host["pid"] for name, host in self.hosts().items() if name[:2] in ("fe", "be")}

    def turn(self, rate, seconds):
        """The latencies of the others in a turn, and the most memory of the nodes."""
        nodes = self.nodes()
        for pid in nodes.values():
            # Sets VmHWM to the memory of now: proc(5).
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        given = {"bucket": OTHERS, "rate": rate, "seconds": seconds}
        values = json.loads(run(*self.python("isolation_load.py", given), stdout=subprocess.PIPE).stdout)
        if self.nodes() != nodes:
            sys.exit("isolation: a node has ended")
        return values | {f"{name}_rss_mib": most_memory_mib(pid) for name, pid in nodes.items()}

    @contextlib.contextmanager
    def worst(self):
        """The user does its worst. Gives a dictionary that has its report afterwards."""
        report, group = {}, cap(f"prism-lab-{self.name}", self.options.cores)
        given = {"user": self.user, "bucket": self.bucket(), "source": self.source, **self.keys}
        enter = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', group / "cgroup.procs"]
        command = [str(word) for word in [*enter, *self.python("isolation_users.py", given)]]
        begun = time.monotonic()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout.readline() != "ready\n":
                    sys.exit("isolation: the user has ended")
                time.sleep(WARM_UP_S)
                yield report
                report.update(json.loads(process.communicate()[0]), seconds=time.monotonic() - begun)
            finally:
                process.kill()
        time.sleep(REST_S)


def most_memory_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmHWM:\s*(\d+) kB", text, re.M)[1]) / 1024


def cap(lab, cores):
    """A control group with a part of a core. It is below the lab's, which `prism-lab down`
    removes."""
    quota_us = round(cores * PERIOD_US)
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for _, mount, kind, names, *_ in mounts:
        group = pathlib.Path(mount, lab, "user")
        if kind == "cgroup" and "cpu" in names.split(","):
            group.mkdir(parents=True, exist_ok=True)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
            return group
        if kind == "cgroup2" and "cpu" in pathlib.Path(mount, "cgroup.controllers").read_text(encoding="ascii").split():
            group.mkdir(parents=True, exist_ok=True)
            for parent in (group.parent.parent, group.parent):
                (parent / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")
            return group
    sys.exit("isolation: no control groups for processor time are mounted")


def measure(user, options):
    """The rows of one user: a quiet turn and one of its worst in each round."""
    rows = []
    with Lab(options, user).up() as lab:
        rate = options.rate or SHARE * lab.turn(None, min(CLOSED_S, options.seconds))["rate"]
        for number in range(options.rounds):
            rows.append(row_of(options, user, "quiet", number, lab.turn(rate, options.seconds)))
            with lab.worst() as report:
                values = lab.turn(rate, options.seconds)
            cores = report["cpu_s"] / report["seconds"]
            rows.append(row_of(options, user, "worst", number, values | {"user_cores": cores}))
            print_report(report)
    return rows


def row_of(options, user, turn, number, values):
    """A row as those of `prism-lab bench`. It is printed, and added to the file."""
    failed = values.pop("failed")
    case = {"user": user, "turn": turn, "seconds": options.seconds, "backends": options.backends,
            "replicas": options.replicas, "cap_cores": options.cores, "limits": bool(options.limits)}
    row = {"result": RESULT, "case": case, "system": SYSTEM, "round": number, "values": values}
    if options.rows:
        with open(options.rows, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    times = " ".join(f"{values[name] / 1000:>9.1f}" for name in ("p50_us", "p99_us", "p99_9_us"))
    memory = " ".join(f"{name.partition('_')[0]} {value:.0f}" for name, value in values.items() if "_rss_" in name)
    print(f"{user:<9} {turn:<6} {values['rate']:>7.0f} {values['requests']:>8} {values['failures']:>7} {times}  {memory}",
          flush=True)
    for fault in failed:
        print(f"    failed: {fault}")
    return row


def print_report(report):
    """The proof that the user did what it should."""
    for name, answers in report["answers"].items():
        text = ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))
        print(f"    {name}: {report['open'].get(name, 0)} open; {text or 'no answer'}")
    print(f"    the user took {report['cpu_s'] / report['seconds']:.2f} cores", flush=True)


def judge(user, rows, options):
    """Prints the verdict on a user. Returns whether it is good."""
    quiet, worst = ([row["values"] for row in rows if row["case"]["turn"] == turn] for turn in ("quiet", "worst"))
    ratio = statistics.median(bad["p99_us"] / good["p99_us"] for good, bad in zip(quiet, worst))
    growth = max((values[name] - quiet[0][name], name.partition("_")[0])
                 for values in worst for name in values if "_rss_" in name)
    failures = sum(row["values"]["failures"] for row in rows)
    is_good = failures == 0 and ratio <= options.ratio and growth[0] <= options.growth
    print(f"{user}: {'ok' if is_good else 'FAILED'}: p99 {ratio:.2f} times the quiet one (at most {options.ratio:g}), "
          f"{growth[1]} grew by {growth[0]:.0f} MiB (at most {options.growth:g}), {failures} failures (none)", flush=True)
    return is_good


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="length of a turn, 1 to 600")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each user")
    parser.add_argument("--only", choices=USERS, action="append", help="only this user")
    parser.add_argument("--backends", type=int, default=3, help="backends of the lab")
    parser.add_argument("--replicas", type=int, default=2, help="replicas of each object")
    parser.add_argument("--rate", type=float, help="requests of the others in a second, in place of a fifth")
    parser.add_argument("--cores", type=float, default=0.5, help="processor time of the user")
    parser.add_argument("--ratio", type=float, default=3, help="most times that p99 may be the quiet one")
    parser.add_argument("--growth", type=float, default=256, help="most MiB that a node may grow by")
    parser.add_argument("--limits", type=pathlib.Path, help="a file of [[service.limit]] for the labs")
    parser.add_argument("--rows", metavar="FILE", help="adds rows as those of prism-lab bench")
    parser.add_argument("--name", default=RESULT, help="name of the labs")
    parser.add_argument("--prism", type=pathlib.Path, default=PROGRAMS / "prism", help="the program of the nodes")
    parser.add_argument("--prism-lab", type=pathlib.Path, default=PROGRAMS / "prism-lab", help="the program of labs")
    options = parser.parse_args()
    if not 1 <= options.seconds <= 600:
        parser.error("--seconds must be 1 to 600: signatures are valid for 15 minutes")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.cores * PERIOD_US < LEAST_QUOTA_US:
        parser.error(f"--cores must be at least {LEAST_QUOTA_US / PERIOD_US:g}: the kernel has no smaller cap")
    return options


def main():
    options = parse_options()
    print(f"{'USER':<9} {'TURN':<6} {'RATE/s':>7} {'REQUESTS':>8} {'FAILED':>7} "
          f"{'P50 ms':>9} {'P99 ms':>9} {'P99.9 ms':>9}  MOST MiB OF EACH NODE", flush=True)
    users = options.only or USERS
    verdicts = [judge(user, measure(user, options), options) for user in users]
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
