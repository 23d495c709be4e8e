#!/usr/bin/env python3
"""Users that do their worst: the owner of a bucket, a writer of one, and a stranger.

Each has an address of its own, and many connections. `scripts/isolation.py` runs this on the
client's host of a lab, with a part of a core for all connections together.

Usage: isolation_users.py JSON   (user, bucket, source; access_key and secret_key if it has them)

It prints `ready`, and goes on until its standard input ends. Then it prints JSON: the connections
that are open, and the answers by status, of each kind; and its processor time.
"""

import base64
import collections
import hashlib
import http.client
import json
import re
import resource
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass

from isolation_load import environment, request_bytes
from operator_load import signed

# Bounds of S3, or of docs/s3.md.
KEY_BYTES = 1024
POLICY_BYTES = 20 << 10
DELETED_KEYS = 1_000
LIST_BYTES = 6 << 20
CORS_RULES = 100
# A list or an object that is held open lacks so many bytes. One is sent in each tick.
LACKING_BYTES = 600
TICK_S = 1.0
HELD_LISTS = 100
HELD_OVERWRITES = 50
OVERWRITE_BYTES = 1 << 20
# Requests that are sent at once over one connection.
BATCH = 16
UPLOADERS = 4
POLICY_TRIES = 60
LIMIT_S = 30.0
# IP_BIND_ADDRESS_NO_PORT of Linux: the kernel chooses the port when the socket connects.
BIND_NO_PORT = 24
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass
class Kind:
    """Connections that do the same."""

    name: str
    connections: int
    # Bytes that are sent once.
    first: bytes = b""
    # Bytes that follow without end.
    again: bytes = b""
    # A byte that is sent in each tick after `first`.
    slow: bytes = b""


class User:
    """A user, and single requests of it."""

    def __init__(self, given):
        self.given, self.bucket, self.source = given, given["bucket"], given["source"]
        self.address = environment()[1]
        self.host = self.address[0]

    def request(self, method, path, query="", body=b"", length=None, is_signed=True):
        """The bytes of a request. `length` is that of the whole body, if more follows."""
        headers = signed(self.given, method, path, self.host, query) if is_signed else {"host": self.host}
        if method in ("PUT", "POST"):
            headers["content-length"] = len(body) if length is None else length
            # DeleteObjects needs one. It is compared when the whole body has come.
            headers["content-md5"] = base64.b64encode(hashlib.md5(body).digest()).decode()
        return request_bytes(method, f"{path}?{query}" if query else path, headers, body)

    def connect(self):
        return http.client.HTTPConnection(*self.address, timeout=LIMIT_S, source_address=(self.source, 0))

    def call(self, connection, method, path, query="", body=b""):
        """Sends a request, and returns the status and the body of its answer."""
        headers = signed(self.given, method, path, self.host, query)
        connection.request(method, f"{path}?{query}" if query else path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def costliest_policy(self):
        """Makes the costliest policies that the service accepts: with as many patterns as it takes."""
        pattern = f"arn:aws:s3:::{self.bucket}/*{'a' * 200}b"
        low, high = 0, (POLICY_BYTES - 200) // (len(pattern) + 3)
        count = high
        while low < high:
            status = self.put_policy(self.policy(pattern, count))
            if status == 400:
                high = count - 1
            elif status in (200, 204):
                low = count
            else:
                sys.exit(f"isolation: PutBucketPolicy is answered {status}")
            count = (low + high + 1) // 2
        if low == 0:
            sys.exit("isolation: the service accepts no policy with a pattern")
        return lambda number: self.policy(pattern, low, number)

    def put_policy(self, policy):
        """The status of PutBucketPolicy. It is sent again while changes come too fast."""
        connection = self.connect()
        for _ in range(POLICY_TRIES):
            status, _ = self.call(connection, "PUT", f"/{self.bucket}", "policy=", policy)
            if status not in (429, 503):
                break
            time.sleep(TICK_S)
        return status

    def policy(self, pattern, count, number=0):
        statement = {"Sid": f"s{number}", "Effect": "Deny", "Principal": "*", "Action": "*",
                     "Resource": [pattern] * count}
        return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":")).encode()

    def cors(self, number):
        rule = "<CORSRule><ID>{}-{}</ID><AllowedOrigin>http://{}.example</AllowedOrigin>" \
               "<AllowedMethod>GET</AllowedMethod><AllowedHeader>{}</AllowedHeader></CORSRule>"
        rules = (rule.format(number, n, "h" * 220, "x" * 180) for n in range(CORS_RULES))
        return f"<CORSConfiguration>{''.join(rules)}</CORSConfiguration>".encode()

    def deletion(self):
        """DeleteObjects with the longest keys."""
        keys = (f"<Object><Key>{n:04}{'a' * (KEY_BYTES - 4)}</Key></Object>" for n in range(DELETED_KEYS))
        return self.request("POST", f"/{self.bucket}", "delete=", f"<Delete>{''.join(keys)}</Delete>".encode())

    def held(self, method, path, query, length):
        """A request whose body lacks its last bytes."""
        body = b" " * (length - LACKING_BYTES)
        return self.request(method, path, query, body, length)

    def upload_in_parts(self, tally):
        """Makes small objects, each by an upload in one part, without end."""
        connection, path = self.connect(), f"/{self.bucket}/small"
        while True:
            try:
                status, text = self.call(connection, "POST", path, "uploads=")
                if status == 200:
                    upload = upload_id(text)
                    self.call(connection, "PUT", path, f"partNumber=1&uploadId={upload}", b"x" * 1024)
                    etag = hashlib.md5(b"x" * 1024).hexdigest()
                    parts = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag>" \
                            "</Part></CompleteMultipartUpload>"
                    status, _ = self.call(connection, "POST", path, f"uploadId={upload}", parts.encode())
                tally[status] += 1
            except (OSError, http.client.HTTPException):
                tally["broken"] += 1
                connection.close()


def upload_id(text):
    return re.search(rb"<UploadId>(.*?)</UploadId>", text)[1].decode()


def owner(user, _):
    policy = user.costliest_policy()
    path, bucket = f"/{user.bucket}/{'a' * KEY_BYTES}", f"/{user.bucket}"
    policies = (user.request("PUT", bucket, "policy=", policy(number)) for number in range(2))
    rules = (user.request("PUT", bucket, "cors=", user.cors(number)) for number in range(2))
    return [
        Kind("judged GETs", 4, again=user.request("GET", path, is_signed=False) * BATCH),
        Kind("judged DeleteObjects", 4, again=user.deletion()),
        Kind("PutBucketPolicy", 2, again=b"".join(policies)),
        Kind("PutBucketCors", 2, again=b"".join(rules)),
    ]


def writer(user, tallies):
    path, connection = f"/{user.bucket}/held", user.connect()
    status, text = user.call(connection, "POST", path, "uploads=")
    if status != 200:
        sys.exit(f"isolation: CreateMultipartUpload is answered {status}: {text[:300]}")
    user.call(connection, "PUT", path, "", b"x" * OVERWRITE_BYTES)
    for _ in range(UPLOADERS):
        uploading = threading.Thread(target=user.upload_in_parts, args=[tallies["small uploads"]], daemon=True)
        uploading.start()
    list_of_parts = f"uploadId={upload_id(text)}"
    return [
        Kind("DeleteObjects", 16, again=user.deletion()),
        Kind("held DeleteObjects", HELD_LISTS, slow=b" ",
             first=user.held("POST", f"/{user.bucket}", "delete=", LIST_BYTES)),
        Kind("held CompleteMultipartUpload", HELD_LISTS, slow=b" ",
             first=user.held("POST", path, list_of_parts, LIST_BYTES)),
        Kind("held overwrites", HELD_OVERWRITES, slow=b" ",
             first=user.held("PUT", path, "", OVERWRITE_BYTES)),
    ]


def stranger(user, _):
    path = f"/{user.bucket}/k"
    user.given.update(access_key="NOBODY", secret_key="nothing")
    refused = user.request("GET", path, is_signed=False)
    long_head = lambda length: request_bytes("GET", path, {"host": user.host, "x-long": "x" * length})
    return [
        Kind("refused GETs", 4, again=refused * BATCH),
        Kind("refused PUTs", 2, again=user.request("PUT", path, body=b"x", is_signed=False)),
        Kind("bad signatures", 4, again=user.request("GET", path) * BATCH),
        Kind("longest heads", 2, again=long_head(15 << 10) * BATCH),
        Kind("heads too long", 2, again=long_head(64 << 10)),
        Kind("slow heads", 200, slow=b"a", first=f"GET {path} HTTP/1.1\r\nHost: ".encode()),
        Kind("idle", 500),
    ]


USERS = {kind.__name__: kind for kind in (owner, writer, stranger)}


class Connection:
    """A connection of a kind. One that sends without end is opened again at once, others in
    the next tick."""

    def __init__(self, kind, user, selector, tally):
        self.kind, self.user, self.selector, self.tally = kind, user, selector, tally
        self.socket, self.output = None, memoryview(b"")
        self.open()

    def open(self):
        self.socket, self.output = socket.socket(), memoryview(self.kind.first)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_IP, BIND_NO_PORT, 1)
        self.selector.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        try:
            self.socket.bind((self.user.source, 0))
            self.socket.connect_ex(self.user.address)
        except OSError:
            self.close()

    def close(self):
        self.selector.unregister(self.socket)
        self.socket.close()
        self.socket = None
        self.tally["closed"] += 1

    def advance(self, events):
        try:
            if events & selectors.EVENT_READ:
                self.receive()
            if events & selectors.EVENT_WRITE:
                self.send()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            if self.kind.again:
                self.open()

    def receive(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError
        self.tally.update(map(bytes.decode, STATUS.findall(data)))

    def send(self):
        if not self.output:
            self.output = memoryview(self.kind.again)
        if self.output:
            self.output = self.output[self.socket.send(self.output):]
        else:
            self.selector.modify(self.socket, selectors.EVENT_READ, self)

    def tick(self):
        if self.socket is None:
            self.open()
        elif self.kind.slow and not self.output:
            self.output = memoryview(self.kind.slow)
            self.selector.modify(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)


def run(user, kinds, tallies):
    """Does all of it until the standard input ends. Returns the connections."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    connections = [Connection(kind, user, selector, tallies[kind.name])
                   for kind in kinds for _ in range(kind.connections)]
    tick = time.monotonic()
    while True:
        for key, events in selector.select(TICK_S):
            if key.data is None:
                return connections
            key.data.advance(events)
        if time.monotonic() - tick >= TICK_S:
            tick = time.monotonic()
            for connection in connections:
                connection.tick()


def main():
    given, tallies = json.loads(sys.argv[1]), collections.defaultdict(collections.Counter)
    user = User(given)
    kinds = USERS[given["user"]](user, tallies)
    print("ready", flush=True)
    connections = run(user, kinds, tallies)
    is_open = collections.Counter(each.kind.name for each in connections if each.socket)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"answers": tallies, "open": is_open, "cpu_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
