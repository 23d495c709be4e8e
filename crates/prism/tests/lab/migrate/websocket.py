"""A WebSocket over TLS to ADDRESS:443 of which every message has to come back; see
../migrate.rs. Prints the answer's fields that clients look at."""

import base64
import hashlib
import os
import socket
import ssl
import struct
import sys
import time

KEY = base64.b64encode(bytes(range(16))).decode()
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(opcode, payload):
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))


def read_frame(stream):
    opcode, length = stream.read(2)
    if length == 126:
        length = struct.unpack("!H", stream.read(2))[0]
    elif length == 127:
        length = struct.unpack("!Q", stream.read(8))[0]
    return opcode & 15, stream.read(length)


def main():
    context = ssl._create_unverified_context()
    raw = socket.create_connection((sys.argv[1], 443), timeout=20)
    connection = context.wrap_socket(raw, server_hostname="shop.example.com")
    stream = connection.makefile("rb")
    connection.sendall(
        b"GET /websocket HTTP/1.1\r\nHost: shop.example.com\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        + KEY.encode() + b"\r\n\r\n"
    )
    status = stream.readline().split()[1].decode()
    fields = {}
    while line := stream.readline().strip().decode():
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    accept = base64.b64encode(hashlib.sha1((KEY + GUID).encode()).digest()).decode()
    assert fields["sec-websocket-accept"] == accept, fields
    for n in range(200):
        length = [3, 125, 126, 5_000, 65_536, 200_000][n % 6] if n < 24 else 40
        if n == 100:
            # Longer than a body may stall.
            time.sleep(3)
        message = bytes((n + k) % 251 for k in range(length))
        connection.sendall(frame(2, message))
        assert read_frame(stream) == (2, message), f"message {n} is another one"
    connection.sendall(frame(8, struct.pack("!H", 1000)))
    assert read_frame(stream)[0] == 8
    print(status, fields["upgrade"].lower(), fields["connection"].lower())
    # The cookie by which the client stays, without its value.
    print(fields["set-cookie"].partition("=")[0])


main()
