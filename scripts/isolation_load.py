#!/usr/bin/env python3
"""Clients that read and write at fixed times, however long the answers take.

A latency counts from the time at which the request was due. A stall therefore counts for each
request that it delays. `scripts/isolation.py` runs this on the client's host of a lab.

Usage: isolation_load.py JSON

  {"buckets": [...]}                    makes these buckets, and stores the objects in the first
  {"bucket": NAME, "rate": N, "seconds": N}
                                        sends N requests a second, or with `null` as many as
                                        the connections carry. Prints JSON: requests, rate,
                                        failures, failed (some of them), p50_us, p99_us, p99_9_us
"""

import collections
import gc
import http.client
import json
import math
import os
import random
import re
import selectors
import socket
import sys
import time
import urllib.parse
from dataclasses import dataclass

from operator_load import signed

# Short answers are relayed, long ones move the connection.
LENGTHS = (4 << 10, 64 << 10)
# Objects of each length.
OBJECTS = 40
# Of so many requests one writes.
WRITES_ONE_OF = 4
CONNECTIONS = 16
# A connection is closed after so many requests, and its next request opens another one.
REQUESTS_OF_CONNECTION = 16
# A request without an answer so long after the end has failed.
LIMIT_S = 10.0
# The lab has other processes on the same cores. Clients have machines of their own elsewhere.
NICE = -10
# Longest time until the nodes of a new lab know each other.
START_S = 30.0
MOST_SHOWN = 10
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


@dataclass
class Request:
    """A request, and the body of its answer."""

    name: str
    data: bytes
    answer: bytes


def environment():
    """The keys of the lab's administrator, and the address of its service."""
    url = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    keys = {"access_key": os.environ["AWS_ACCESS_KEY_ID"], "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"]}
    return keys, (url.hostname, url.port or 80)


def request_bytes(method, target, headers, body=b""):
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body


def requests_of(bucket):
    """All requests, in the order in which they are sent again and again."""
    keys, (host, _) = environment()
    reads, writes = [], []
    for length in LENGTHS:
        for number in range(OBJECTS):
            path = f"/{bucket}/{length}-{number}"
            body = random.Random(path).randbytes(length)
            headers = signed(keys, "GET", path, host)
            reads.append(Request(f"GET {path}", request_bytes("GET", path, headers), body))
            headers = {**signed(keys, "PUT", path, host), "content-length": length}
            writes.append(Request(f"PUT {path}", request_bytes("PUT", path, headers, body), b""))
    mixed = reads * (WRITES_ONE_OF - 1) + writes
    random.Random(bucket).shuffle(mixed)
    return mixed


class Connection:
    """A connection that has one request at a time. It is opened by its first one."""

    def __init__(self, load):
        self.load, self.socket, self.served = load, None, 0
        self.request, self.due = None, 0.0
        self.output, self.input = memoryview(b""), bytearray()

    def begin(self, request, due):
        self.request, self.due = request, due
        self.output, self.input = memoryview(request.data), bytearray()
        if self.socket is None:
            self.socket, self.served = socket.socket(), 0
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.connect_ex(self.load.address)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self.load.selector.register(self.socket, both, self)

    def advance(self, events):
        try:
            if events & selectors.EVENT_WRITE:
                self.output = self.output[self.socket.send(self.output):]
                if not self.output:
                    self.load.selector.modify(self.socket, selectors.EVENT_READ, self)
            if events & selectors.EVENT_READ:
                self.receive()
        except BlockingIOError:
            pass
        except OSError as error:
            self.end(repr(error))

    def receive(self):
        data = self.socket.recv(1 << 18)
        if not data:
            self.end(f"the answer ends after {len(self.input)} bytes")
            return
        self.input += data
        head = self.input.find(b"\r\n\r\n")
        if head < 0:
            return
        length = LENGTH.search(self.input, 0, head)
        if len(self.input) < head + 4 + int(length[1] if length else 0):
            return
        if not self.input.startswith(b"HTTP/1.1 200 "):
            self.end(self.input[:300].decode(errors="replace"))
        elif self.input[head + 4:] != self.request.answer:
            self.end("another body")
        else:
            self.end(None)

    def end(self, fault):
        """Ends the request, which has failed if there is a fault."""
        self.load.selector.unregister(self.socket)
        self.load.record(self.request, self.due, fault)
        self.served += 1
        if fault or self.served == REQUESTS_OF_CONNECTION:
            self.socket.close()
            self.socket = None
        self.load.idle.append(self)


class Load:
    """The connections, their requests, and the latencies."""

    def __init__(self, bucket, address):
        self.requests, self.address = requests_of(bucket), address
        # The timeouts of `epoll` are whole milliseconds.
        self.selector = selectors.SelectSelector()
        self.idle = collections.deque(Connection(self) for _ in range(CONNECTIONS))
        self.latencies, self.failed = [], []

    def record(self, request, due, fault):
        latency = time.perf_counter() - due
        self.latencies.append(latency)
        if fault:
            self.failed.append(f"{request.name} after {latency:.3f} s: {fault}")

    def run(self, rate, seconds):
        begun = time.perf_counter()
        end, sent, waiting = begun + seconds, 0, collections.deque()
        while (now := time.perf_counter()) < end + LIMIT_S:
            if rate is None and now < end:
                waiting.extend([now] * len(self.idle))
            while rate and (due := begun + (sent + len(waiting)) / rate) <= min(now, end):
                waiting.append(due)
            while waiting and self.idle:
                self.idle.popleft().begin(self.requests[sent % len(self.requests)], waiting.popleft())
                sent += 1
            if now >= end and not waiting and len(self.idle) == CONNECTIONS:
                break
            due = begun + (sent + len(waiting)) / rate if rate else end
            for key, events in self.select(max(0.0, min(due, end + LIMIT_S) - now)):
                key.data.advance(events)
        for connection in [key.data for key in self.selector.get_map().values()]:
            connection.end("no answer")
        self.failed += [f"not sent {LIMIT_S:.0f} s after the end" for _ in waiting]
        self.latencies += [time.perf_counter() - due for due in waiting]
        return self.summary(seconds)

    def select(self, timeout_s):
        if self.selector.get_map():
            return self.selector.select(timeout_s)
        time.sleep(timeout_s)
        return []

    def summary(self, seconds):
        ascending = sorted(self.latencies)
        rank = lambda share: ascending[math.ceil(len(ascending) * share) - 1] * 1e6
        return {"requests": len(ascending), "rate": len(ascending) / seconds,
                "failures": len(self.failed), "failed": self.failed[:MOST_SHOWN],
                "p50_us": rank(0.5), "p99_us": rank(0.99), "p99_9_us": rank(0.999)}


def prepare(buckets):
    """Makes the buckets, when the nodes know each other, and stores the objects in the first."""
    keys, address = environment()
    deadline = time.monotonic() + START_S
    puts = [Request(f"PUT /{name}", b"", b"") for name in buckets]
    puts += [request for request in requests_of(buckets[0]) if request.name.startswith("PUT")]
    connection = http.client.HTTPConnection(*address, timeout=LIMIT_S)
    for put in puts:
        path, body = put.name.split()[1], put.data.partition(b"\r\n\r\n")[2]
        while True:
            connection.request("PUT", path, body, signed(keys, "PUT", path, address[0]))
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                break
            if answer.status != 503 or time.monotonic() > deadline:
                sys.exit(f"isolation: {put.name} is answered {answer.status}: {text[:300]}")
            time.sleep(0.2)


def main():
    given = json.loads(sys.argv[1])
    if "buckets" in given:
        prepare(given["buckets"])
        return
    load = Load(given["bucket"], environment()[1])
    os.nice(NICE)
    gc.disable()
    print(json.dumps(load.run(given["rate"], given["seconds"])))


if __name__ == "__main__":
    main()
