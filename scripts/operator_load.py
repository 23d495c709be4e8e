#!/usr/bin/env python3
"""Clients that read and write over HTTP and HTTPS, and never repeat a request. They compare
each body with what they wrote.

Usage: operator_load.py JSON   (http, https, ca, bucket, access_key, secret_key)

At the end of its standard input it prints a JSON object: the number of requests, the seconds
of the longest, and a list of failures.
"""

import datetime
import hashlib
import hmac
import http.client
import json
import random
import ssl
import sys
import threading
import time

REGION = "us-east-1"
CLIENTS = 8
# Short answers are relayed, long ones move the connection.
LENGTHS = (3_000, 43_000, 200_000, 1_000_000)
# A request that takes longer has failed.
LIMIT_S = 10.0
# The time from one request of a client to the next. The hosts share one machine.
PAUSE_S = 0.01
MOST_FAILURES = 50


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signed(given, method, path, host, query=""):
    """The headers of a request with a signature of version 4. The body is not signed. `query` is
    sorted, and each of its names has a "="."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{given['secret_key']}".encode()
    for word in scope.split("/"):
        key = digest(key, word)
    headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={given['access_key']}/{scope}, "
                                f"SignedHeaders={names}, Signature={digest(key, text).hex()}")
    return headers


class Client:
    """One client, which keeps its connection or opens one for each request."""

    def __init__(self, given, number):
        self.given, self.number = given, number
        self.tls, self.keeps = number % 2 == 0, number < CLIENTS // 2
        self.connection, self.done, self.longest_s, self.failed = None, 0, 0.0, []
        self.bodies = [random.Random(f"{number} {length}").randbytes(length) for length in LENGTHS]

    def connect(self):
        if self.tls:
            context = ssl.create_default_context(cafile=self.given["ca"])
            return http.client.HTTPSConnection(self.given["https"], timeout=LIMIT_S, context=context)
        return http.client.HTTPConnection(self.given["http"], timeout=LIMIT_S)

    def request(self, which, writes):
        if self.connection is None:
            self.connection = self.connect()
        method, path = "PUT" if writes else "GET", f"/{self.given['bucket']}/{self.number}-{which}"
        host = self.given["https" if self.tls else "http"]
        body = self.bodies[which]
        self.connection.request(method, path, body if writes else None,
                                signed(self.given, method, path, host))
        answer = self.connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}: {found[:300]}")
        if not writes and found != body:
            raise http.client.HTTPException(f"another body of {len(found)} bytes")
        if answer.will_close or not self.keeps:
            self.close()

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def run(self, ends):
        turn = 0
        while not ends.wait(PAUSE_S):
            begun = time.monotonic()
            writes = turn < len(LENGTHS) or turn % 3 == 0
            try:
                self.request(turn % len(LENGTHS), writes)
            except (OSError, http.client.HTTPException) as error:
                kind = f"{'HTTPS' if self.tls else 'HTTP'} {'kept' if self.keeps else 'new'}"
                at = datetime.datetime.now().strftime("%H:%M:%S.%f")
                self.failed.append(f"{at} {kind} {'PUT' if writes else 'GET'} {LENGTHS[turn % len(LENGTHS)]} "
                                   f"after {time.monotonic() - begun:.3f} s: {error!r}")
                self.close()
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.done, turn = self.done + 1, turn + 1
        self.close()


def main():
    given, ends = json.loads(sys.argv[1]), threading.Event()
    clients = [Client(given, number) for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.run, args=[ends]) for client in clients]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ends.set()
    for thread in threads:
        thread.join()
    failed = sorted(failure for client in clients for failure in client.failed)
    print(json.dumps({"requests": sum(client.done for client in clients), "failures": len(failed),
                      "longest_s": max(client.longest_s for client in clients), "failed": failed[:MOST_FAILURES]}))


if __name__ == "__main__":
    main()
