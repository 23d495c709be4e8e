#!/usr/bin/env python3
"""Counts the instructions in user space that a request takes at the nodes of a lab.

The nodes run under valgrind. A count is the difference between a run with many requests and
one with few, so that the start of the nodes and the preparation of the lab do not count.
Programs are compared in turns. Rounds of one program spread by 1 to 3 %, those of `upstream` by
up to 20 %: timers, the allocator and the keys of new connections differ. It needs x86-64.

Usage: scripts/instructions.py [--rounds N] [--only KIND] PROGRAM...
       (each PROGRAM is a path of `prism`; the first one is what the others are compared with)

KINDS:
  get       a signed GET at the owner of a small object, over a kept connection
  hand-off  the same, and each request moves the connection to another backend
  relay     a signed GET that the frontend relays
  put       a signed PUT of a small object at its owner
  upstream  a GET that a backend passes to nginx beside it
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse

HERE = os.path.abspath(__file__)
LAB = os.path.join(os.path.dirname(HERE), "..", "target", "release", "prism-lab")
NAME = "instructions"
KINDS = ["get", "hand-off", "relay", "put", "upstream"]
FEW, MANY = 500, 4500
OBJECT = b"x" * 1000
BUCKET, KEYS = "counted", [f"key{n}" for n in range(16)]
NGINX = """daemon off; worker_processes 1; pid {0}/nginx.pid; error_log /dev/null;
events {{}} http {{ access_log off; client_body_temp_path {0}/body; keepalive_requests 1000000;
server {{ listen 127.0.0.1:9000; location / {{ return 200 "{1}"; }} }} }}
"""

# prctl(2) and seccomp(2).
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_GET_AUXV = 22, 38, 0x41555856
FILTER_MODE, PRCTL_NUMBER, EINVAL = 2, 157, 22
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | EINVAL


def hide_auxv():
    """Makes prctl(PR_GET_AUXV) fail. Valgrind passes it to the kernel, whose answer names the
    address of a vDSO that valgrind has unmapped."""
    steps = [
        (LOAD, 0, 0, 0), (IF_EQUAL, 0, 3, PRCTL_NUMBER), (LOAD, 0, 0, 16),
        (IF_EQUAL, 0, 1, PR_GET_AUXV), (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, program, 0, 0):
        sys.exit(f"instructions: seccomp: {os.strerror(ctypes.get_errno())}")


def run_program(directory, program, *arguments):
    """What a lab's host runs in place of `prism`: the program, and a node under valgrind."""
    if arguments[0] != "node":
        os.execv(program, [program, *arguments])
    hide_auxv()
    output = f"--cachegrind-out-file={directory}/%p.counts"
    os.execvp("valgrind", ["valgrind", "-q", "--tool=cachegrind", "--cache-sim=no", output, program, *arguments])


class Client:
    """A connection to the lab's service, from its client's host."""

    def __init__(self):
        self.url = os.environ["AWS_ENDPOINT_URL"]
        url = urllib.parse.urlsplit(self.url)
        self.host = url.hostname
        connection = socket.create_connection((url.hostname, url.port or 80), 120)
        self.port, self.stream = connection.getsockname()[1], connection.makefile("rwb")

    def signed(self, method, path, body=b""):
        """The bytes of a request that is signed in its head."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        request = AWSRequest(method, self.url + path, headers={"Host": self.host}, data=body)
        keys = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
        S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
        fields = [*request.headers.items(), *([("Content-Length", len(body))] if method == "PUT" else [])]
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body

    def send(self, request):
        """Sends a request, reads the answer to its end, and returns its status."""
        self.stream.write(request)
        self.stream.flush()
        status, length = self.stream.readline().split()[1], 0
        while (line := self.stream.readline().strip()):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.stream.read(length)
        return int(status)

    def expect(self, request):
        """The same for a request that succeeds."""
        status = self.send(request)
        if status != 200:
            sys.exit(f"instructions: an answer has status {status}")


def prepare():
    """Stores the objects, when the nodes know each other."""
    client = Client()
    for _ in range(50):
        if client.send(client.signed("PUT", f"/{BUCKET}")) != 503:
            break
        time.sleep(0.2)
    for key in KEYS:
        client.expect(client.signed("PUT", f"/{BUCKET}/{key}", OBJECT))


def hold(key):
    """Reads an object, prints the port of the connection, and keeps it until the input ends."""
    client = Client()
    client.expect(client.signed("GET", f"/{BUCKET}/{key}"))
    print(client.port, flush=True)
    sys.stdin.read()


def load(kind, count, *keys):
    """Sends the requests that are counted."""
    client = Client()
    method, body = ("PUT", OBJECT) if kind == "put" else ("GET", b"")
    requests = [client.signed(method, f"/{BUCKET}/{key}", body) for key in keys]
    if kind == "upstream":
        requests = [f"GET / HTTP/1.1\r\nHost: {client.host}\r\n\r\n".encode()]
    for n in range(int(count)):
        client.expect(requests[n % len(requests)])


def lab(command, *arguments):
    return [LAB, command, "--name", NAME, *arguments]


def on_client(*arguments):
    return lab("exec", "client", "--", sys.executable, HERE, "--as", *map(str, arguments))


def owner_of(key, program):
    """The backend that has the connection after a GET of the object."""
    holder = subprocess.Popen(on_client("hold", key), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    port = holder.stdout.readline().decode().strip()
    flows = lab("exec", "switch", "--", program, "ctl", "flows", "--json", "--pin", f"prism-lab-{NAME}")
    text = subprocess.run(flows, check=True, stdout=subprocess.PIPE, text=True).stdout
    holder.communicate()
    [owner] = [flow["via"] for flow in json.loads(text) if flow["client"].endswith(f":{port}")]
    return owner


@contextlib.contextmanager
def running(kind, program, directory):
    """A lab whose nodes run under valgrind."""
    wrapper = os.path.join(directory, "prism")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {sys.executable} {HERE} --as run_program {directory} {program} "$@"\n')
    os.chmod(wrapper, 0o755)
    options = ["--relay-up-to", "1000000" if kind == "relay" else "0"]
    if kind == "upstream":
        with open(f"{directory}/nginx.conf", "w", encoding="utf-8") as file:
            file.write(NGINX.format(directory, OBJECT.decode()))
        options += ["--upstream", "127.0.0.1:9000", "--server", f"exec nginx -c {directory}/nginx.conf"]
    subprocess.run(lab("up", "--backends", "2", "--prism", wrapper, *options), check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(lab("down"), check=True, stdout=subprocess.DEVNULL)


def instructions(kind, program, count):
    """The instructions of all nodes of a lab in which `count` requests are sent."""
    with tempfile.TemporaryDirectory(prefix="prism-instructions-") as directory:
        with running(kind, program, directory):
            keys = KEYS if kind == "relay" else KEYS[:1]
            if kind != "upstream":
                subprocess.run(on_client("prepare"), check=True)
            if kind == "hand-off":
                first = owner_of(KEYS[0], program)
                keys = [KEYS[0], next(key for key in KEYS if owner_of(key, program) != first)]
            subprocess.run(on_client("load", kind, count, *keys), check=True)
        texts = [path.read_text(encoding="utf-8") for path in pathlib.Path(directory).glob("*.counts")]
    if len(texts) != 3:
        sys.exit(f"instructions: {len(texts)} of 3 nodes have left counts")
    return sum(int(re.search(r"^summary: (\d+)", text, re.M)[1]) for text in texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which each program has its turn")
    parser.add_argument("--only", choices=KINDS, action="append", help="only this kind")
    parser.add_argument("program", nargs="+", help="a path of `prism`")
    options = parser.parse_args()
    programs = [os.path.abspath(program) for program in options.program]
    print(f"{'KIND':<10} {'PROGRAM':<40} {'MEDIAN':>9} {'RATIO':>7}  ROUNDS")
    for kind in options.only or KINDS:
        counts = {program: [] for program in programs}
        for _ in range(options.rounds):
            for program in programs:
                difference = instructions(kind, program, MANY) - instructions(kind, program, FEW)
                counts[program].append(round(difference / (MANY - FEW)))
        for program in programs:
            median = statistics.median(counts[program])
            ratio = median / statistics.median(counts[programs[0]])
            print(f"{kind:<10} {program:<40} {median:>9.0f} {ratio:>7.3f}  {counts[program]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        {"run_program": run_program, "prepare": prepare, "hold": hold, "load": load}[sys.argv[2]](*sys.argv[3:])
    else:
        main()
