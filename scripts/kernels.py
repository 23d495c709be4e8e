#!/usr/bin/env python3
"""Runs tests on Debian's kernels 6.1 and 6.12, under emulation.

The programs that `make test` builds run once more inside QEMU, on a kernel that users
have. These kernels have kTLS and netem, which the kernel of a build machine may lack. The
table below lists the tests, and none of them may be skipped. They check correctness only,
because an emulated processor says nothing about time. The kernels run side by side.

A kernel that locks up, stalls or oopses prints the backtraces of all processors and of all
tasks, and ends at once. A kernel that is silent beyond the limit of a row gets an NMI, with
the same result. The log is kept, and the failure names the row.

Usage: scripts/kernels.py [--kernel 6.1] [--one-by-one] [WORD...]
       (only the rows of the table whose label contains one of the words)
       scripts/kernels.py --one-by-one --repeat 3 --set PRISM_NETEM_ROUNDS=50 'prism netem'
       (a hunt for a rare fault: each row several times in one boot, each of 50 rounds)
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from kernel_image import Archive, ImageError, kernel
from programs import FEATURES, build, groups_of

# The series, and the Debian package that depends on its newest kernel.
KERNELS = [("6.1", "linux-image-amd64"), ("6.12", "linux-image-6.12-amd64")]

# The tests that depend on the kernel: package; test program or group ("lib" for the tests
# inside the crate); parts of the names of tests (all tests if empty).
TESTS = [
    ("prism-sys", "lib", []),
    ("prism-netns", "netns", []),
    ("prism-sys", "diag", []),
    ("prism-sys", "handoff", []),
    ("prism-sys", "queues", []),
    ("prism-sys", "lifecycle", []),
    ("prism-sys", "netem", []),
    ("prism-sys", "ktls", []),
    ("prism-sys", "freeze", []),
    ("prism-sys", "initial_window", []),
    ("prism-tls", "lib", []),
    ("prism-switch", "lib", []),
    ("prism-switch", "steering", []),
    ("prism-switch", "tables", []),
    ("prism-switch", "contained", []),
    ("prism-switch", "terms", []),
    ("prism-switch", "checksums", ["rewritten"]),
    ("prism-switch", "closing", []),
    ("prism-switch", "icmp", []),
    ("prism-switch", "extensions", []),
    ("prism-switch", "syn", []),
    ("prism-switch", "frontends", []),
    ("prism-switch", "host_mode", []),
    ("prism-switch", "tunnels", []),
    ("prism-switch", "differential", []),
    ("prism-switch", "network", ["bulk_data", "appear_later", "flows_survive"]),
    ("prism", "netem", []),
    ("prism", "windows", []),
    ("prism", "ktls", []),
    ("prism", "owners", ["killed"]),
    ("prism", "connections", ["stalls"]),
]
# The test programs of these packages run one test at a time, because tests share names.
SERIAL = {"prism", "prism-lab"}

# Kernel modules that are loaded at the start, with their dependencies.
MODULES = ["tun", "veth", "tls", "tcp_diag", "unix_diag", "sch_netem", "sch_ingress", "sch_tbf",
           "cls_bpf", "act_bpf",
           "gcm", "ctr", "aesni_intel", "ghash_clmulni_intel",
           "chacha20poly1305", "chacha_x86_64", "poly1305_x86_64"]
# Programs that the tests and the first process call.
COMMANDS = ["dash", "ip", "ss", "tc", "nsenter", "unshare", "mount", "umount", "sysctl", "kmod", "timeout",
            "mkdir", "ls", "dd", "seq", "sleep", "cat", "kill", "dmesg", "curl", "tcpdump"]
FILES = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services"]

MEMORY_MIB = 2048
# Without cx16: kernel 6.12 double-faults with it under QEMU 7.2.
QEMU = ["qemu-system-x86_64", "-cpu", "max,-cx16", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none",
        "-no-reboot", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]
# Any fault of the kernel is a panic that shows all processors (0x40) and all tasks (0x01).
# Registers and backtraces have the level of warnings, which loglevel=5 shows.
KERNEL_ARGUMENTS = " ".join([
    "console=ttyS0 quiet loglevel=5 panic=-1 mitigations=off nokaslr",
    "oops=panic softlockup_panic=1 softlockup_all_cpu_backtrace=1 unknown_nmi_panic=1",
    "sysctl.kernel.panic_on_rcu_stall=1 panic_print=0x41 log_buf_len=4M",
])
# QEMU's status for status 0 of the first process: isa-debug-exit doubles it and adds one.
ALL_WELL = 1
BOOT_LIMIT_S = 90
# The limit of a row of the table, and of all of them. An emulated kernel takes seconds to
# verify the switch's programs, which most tests load anew.
ROW_LIMIT_S = 300
KERNEL_LIMIT_S = 1800
# A kernel has this time to end a row after its limit, and then to print after an NMI.
SILENCE_S, LAST_WORDS_S = 30, 60
TAIL_LINES = 60

COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
# A line of the list of failures at the end of a test program's output.
FAILED = re.compile(r"^    (\w[\w:]+)$", re.M)
# Messages of a kernel about a fault of its own.
COMPLAINT = re.compile(
    r"\[ *\d+\.\d+\] (?:watchdog: |rcu: )?(BUG:|WARNING:|Oops|general protection|Kernel panic|INFO: ).*")


def built():
    """Builds the test programs. Returns {(package, name): (path, directory, tests)}, with
    "lib", a group or a program as name, and the paths of the programs that they start."""
    # With fewer packages cargo would compile some again, with fewer features.
    programs, others = build("--workspace", *FEATURES)
    tests = {}
    for package, kind, name, path, directory in programs:
        for group, names in groups_of(kind, name, path).items():
            tests[package, "lib" if kind == "lib" else group or name] = (path, directory, names)
    return tests, others


def label_of(package, name, words):
    return f"{package} {name}" + (f" ({', '.join(words)})" if words else "")


def quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


def image(rows, programs, others, modules, options, path):
    """Writes the initial file system: system, test programs, and their list."""
    archive = Archive()
    here = os.path.dirname(os.path.abspath(__file__))
    for place in ("proc", "sys", "dev", "run", "tmp", "etc", "var/lib", "sbin"):
        archive.directory(place)
    for command in COMMANDS:
        archive.command(command)
    archive.link("bin/sh", "dash")
    archive.link("bin/modprobe", "kmod")
    archive.link("sbin/modprobe", "/bin/kmod")
    for file in FILES:
        archive.file(file)
    archive.modules(modules, MODULES)
    lines = ["load " + " ".join(MODULES)]
    if options.load:
        lines.append(f"keep_busy {options.cpus}")
    runs = []
    for package, name, words in rows:
        program, directory, tests = programs[package, name]
        tests = [test for test in tests if not words or any(word in test for word in words)]
        if not tests:
            raise ImageError(f"no test is {label_of(package, name, words)}")
        archive.program(program)
        # Cargo's directory for files of tests, beside "release".
        archive.directory(os.path.normpath(os.path.join(os.path.dirname(program), "../../tmp")))
        arguments = [program, "--exact", *tests] + (["--test-threads=1"] if package in SERIAL else [])
        label = label_of(package, name, words)
        runs.append(" ".join(["run", quoted(label), str(ROW_LIMIT_S), quoted(directory), *map(quoted, arguments)]))
    if any(package in SERIAL for package, *_ in rows):
        for program in others:
            archive.program(program)
    archive.text("tests", "\n".join(lines + runs * options.repeat) + "\n")
    with open(os.path.join(here, "kernel-init.sh"), encoding="utf-8") as file:
        archive.text("init", file.read(), 0o755)
    archive.write(path)


class Run:
    """One boot: reads the output of the emulated system, and collects the results."""

    def __init__(self, series, release, kernel_image, place, options):
        self.series, self.release, self.kernel_image, self.place = series, release, kernel_image, place
        self.options = options
        self.qemu, self.seconds = None, 0.0
        self.rows, self.failures, self.lines = [], [], []
        self.current, self.over, self.said, self.shown = None, False, None, []

    def boot(self):
        start = time.monotonic()
        try:
            self.emulate()
        except OSError as error:
            self.failures.append(str(error))
        self.seconds = time.monotonic() - start

    def log_path(self):
        return os.path.join(self.place, f"{self.series}.log")

    def control_path(self):
        return os.path.join(self.place, f"{self.series}.qmp")

    def command(self):
        return QEMU + [
            "-accel", f"tcg,thread={self.options.thread}", "-smp", str(self.options.cpus),
            "-qmp", f"unix:{self.control_path()},server=on,wait=off",
            "-kernel", self.kernel_image, "-initrd", os.path.join(self.place, f"{self.series}.cpio"),
            # The kernel gives arguments with "=" that it does not know to the first process.
            "-append", " ".join([KERNEL_ARGUMENTS, *self.options.set]),
        ]

    def emulate(self):
        self.qemu = qemu = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        watch = threading.Thread(target=self.watch, daemon=True)
        watch.start()
        try:
            with open(self.log_path(), "w", encoding="utf-8") as log:
                for raw in qemu.stdout:
                    line = raw.decode(errors="replace").replace("\r", "")
                    log.write(line)
                    log.flush()
                    self.take(line)
            status = qemu.wait()
        finally:
            self.kill()
        watch.join()
        self.finish(status)

    def kill(self):
        if self.qemu and self.qemu.poll() is None:
            os.killpg(self.qemu.pid, signal.SIGKILL)
            self.qemu.wait()

    def watch(self):
        """Ends an emulation that passes one of its limits; a kernel that shows its state first."""
        start = time.monotonic()
        limit_s = KERNEL_LIMIT_S * self.options.repeat
        while self.qemu.poll() is None:
            time.sleep(0.5)
            now, current = time.monotonic(), self.current
            if not (self.rows or current) and now > start + BOOT_LIMIT_S:
                return self.stop(f"no test begun within {BOOT_LIMIT_S} s")
            if current and now > current[1] + ROW_LIMIT_S + SILENCE_S:
                return self.stop(f"{current[0]}: the kernel does not end it")
            if now > start + limit_s:
                return self.stop(f"not done within {limit_s} s")
        return None

    def stop(self, why):
        self.failures.append(why)
        try:
            self.inject_nmi()
            self.qemu.wait(LAST_WORDS_S)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def inject_nmi(self):
        """A non-maskable interrupt: the kernel panics, with the state of all processors."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(5)
            control.connect(self.control_path())
            answers = control.makefile("rb")
            answers.readline()
            for command in ("qmp_capabilities", "inject-nmi"):
                control.sendall(json.dumps({"execute": command}).encode())
                answers.readline()

    def take(self, line):
        self.lines.append(line)
        if not line.startswith("@@ "):
            return
        _, word, *rest = line.split()
        if word == "begin":
            self.current = (" ".join(rest), time.monotonic(), len(self.lines))
        elif word == "end" and self.current:
            self.end(int(rest[0]))
        elif word == "kernel":
            self.said = len(self.lines)
        elif word == "over":
            self.over = rest == ["0"]
        else:
            self.failures.append(" ".join([word, *rest]))

    def end(self, status):
        label, begun, first = self.current
        self.current = None
        output = "".join(self.lines[first:])
        counts = [sum(int(m[i]) for m in COUNTS.findall(output)) for i in range(3)]
        seconds = time.monotonic() - begun
        self.rows.append((label, *counts, seconds))
        named = FAILED.findall(output.rpartition("\nfailures:\n")[2]) if counts[1] else []
        self.failures += [f"{label}: {test}" for test in named]
        if status in (124, 137):
            self.failures.append(f"{label}: not done within its limit")
        elif status != 0 and not named:
            self.failures.append(f"{label}: ended with status {status}")
        elif counts[0] == 0:
            self.failures.append(f"{label}: no test has run")
        skipped = output.count("SKIPPED")
        if skipped:
            self.failures.append(f"{label}: {skipped} skipped; on these kernels none may be")
        if status != 0:
            self.shown += [f"\n== {label}\n", *self.lines[first:][-TAIL_LINES:]]
        print(f"  {self.series}  {label}: {counts[0]} passed, {counts[1]} failed, {seconds:.1f} s", flush=True)

    def finish(self, status):
        if self.current:
            self.failures.append(f"{self.current[0]}: the kernel ended during it")
        elif not self.over or status != ALL_WELL:
            self.failures.append(f"the emulation ended with status {status}")
        for number, line in enumerate(self.lines):
            found = COMPLAINT.search(line)
            if found:
                self.failures.append(f"the kernel says: {found.group(0).strip()}")
                self.shown += self.lines[number:number + 2 * TAIL_LINES]
                break

    def show_failed(self):
        """Prints the last lines of each program that failed, or of the whole log."""
        if self.failures:
            print("".join(self.shown or self.lines[:self.said][-TAIL_LINES:]))
            print(f"(the whole log: {self.log_path()})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kernel", choices=[series for series, _ in KERNELS])
    parser.add_argument("--one-by-one", action="store_true", help="one kernel at a time, to save memory")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run all rows N times in one boot")
    parser.add_argument("--load", action="store_true", help="keep the emulated processors busy beside the tests")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a variable of the tests' environment")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="emulated processors (default: 2)")
    parser.add_argument("--thread", choices=["multi", "single"], default="multi",
                        help="a thread of the emulator for each processor, or one for all (default: multi)")
    parser.add_argument("word", nargs="*")
    options = parser.parse_args()
    rows = [row for row in TESTS
            if not options.word or any(word in label_of(*row) for word in options.word)]
    if not rows:
        parser.error("no label of the table contains such a word")
    if not shutil.which(QEMU[0]):
        sys.exit(f"kernels: {QEMU[0]} is missing; run: scripts/setup.sh kernels")
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    place = os.path.abspath(os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "kernels"))
    start = time.monotonic()
    programs, others = built()
    built_s = time.monotonic() - start
    runs = []
    for series, package in KERNELS:
        if options.kernel in (None, series):
            release, kernel_image, modules = kernel(series, package, os.path.join(place, "cache"))
            image(rows, programs, others, modules, options, os.path.join(place, f"{series}.cpio"))
            runs.append(Run(series, release, kernel_image, place, options))
    print("== Linux " + ", ".join(run.release for run in runs), flush=True)
    threads = [threading.Thread(target=run.boot) for run in runs]
    # The `finally` below then ends the emulations, as after an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for thread in threads:
            thread.start()
            if options.one_by_one:
                thread.join()
        for thread in threads:
            thread.join()
    finally:
        for run in runs:
            run.kill()
    for run in runs:
        run.show_failed()
    summary(runs, built_s, time.monotonic() - start)


def print_row(label, series, rows):
    passed, failed, ignored, seconds = (sum(row[i] for row in rows) for i in range(1, 5))
    print(f"{label:<52} {series:>6} {len(rows):>5} {passed:>7} {failed:>7} {ignored:>8} {seconds:>8.1f}")


def summary(runs, built_s, seconds):
    print(f"\n{'TESTS':<52} {'KERNEL':>6} {'RUNS':>5} {'PASSED':>7} {'FAILED':>7} {'IGNORED':>8} {'SECONDS':>8}")
    for run in runs:
        for label in dict.fromkeys(row[0] for row in run.rows):
            print_row(label, run.series, [row for row in run.rows if row[0] == label])
    for run in runs:
        print_row("in all: " + run.release, run.series, run.rows)
    print(f"(building: {built_s:.1f} s; in all {seconds:.1f} s)")
    failures = [f"{run.series}: {failure}" for run in runs for failure in run.failures]
    for failure in failures:
        print(f"FAILED  {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    try:
        main()
    except ImageError as error:
        sys.exit(f"kernels: {error}")
