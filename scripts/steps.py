"""Tests that are the steps of one procedure: each needs the ones before it."""

import os
import signal
import subprocess
import sys
import time
import traceback

from debian_root import Failed


def equal(found, wanted):
    if found != wanted:
        raise Failed(f"found {found!r}\nwanted {wanted!r}")


def contains(text, *wanted):
    for part in wanted:
        if part not in text:
            raise Failed(f"no {part!r} in:\n{text}")


def failing(call, *arguments, **named):
    """What a call says that has to fail."""
    try:
        said = call(*arguments, **named)
    except Failed as failed:
        return str(failed)
    raise Failed(f"{arguments} has not failed:\n{said}")


def eventually(what, condition, limit_s=30):
    """Waits until the condition holds, and returns what it gave."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {limit_s} s: {what}")
        time.sleep(0.1)
    return found


def enter_as_root():
    """Enters the directory of the sources. Ends the program if it does not run as root."""
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if os.geteuid() != 0:
        if "CI" in os.environ:
            sys.exit("CI must run these tests as root")
        print("SKIPPED: needs root")
        print("test result: ok. 0 passed; 0 failed; 0 ignored")
        sys.exit()
    # Systems in directories end also with a test that is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def run_steps(steps, subject):
    """Runs the steps until one fails, and ends the program."""
    passed, failed = 0, []
    for step in steps:
        start = time.monotonic()
        try:
            step(subject)
        except (Failed, OSError, KeyError, TypeError, ValueError, subprocess.SubprocessError):
            traceback.print_exc(file=sys.stdout)
            failed.append(step.__name__)
            break
        passed += 1
        print(f"test {step.__name__} ... ok ({time.monotonic() - start:.1f} s)", flush=True)
    if failed:
        print("\nfailures:\n" + "".join(f"    {name}\n" for name in failed))
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {len(failed)} failed; 0 ignored")
    sys.exit(1 if failed else 0)
