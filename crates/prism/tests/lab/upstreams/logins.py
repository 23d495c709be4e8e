"""A server that knows NTLM, as IIS does it: the last login on a connection is the user of every
request on it. It asks for no password.

Usage: logins.py ADDRESS PORT
"""

import base64
import contextlib
import http.server
import struct
import sys
import threading

MAGIC = b"NTLMSSP\0"
OEM_NAMES, NTLM = 0x2, 0x200
lock = threading.Lock()
logged_in = 0


def challenge():
    flags = struct.pack("<I", OEM_NAMES | NTLM)
    message = MAGIC + struct.pack("<I", 2) + bytes(8) + flags + b"12345678" + bytes(16)
    return base64.b64encode(message).decode()


def user_of(message):
    length, _, offset = struct.unpack_from("<HHI", message, 36)
    return message[offset : offset + length].decode("ascii")


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # Each answer is one segment.
    wbufsize = -1
    user = None

    def handle(self):
        # A proxy may end its connection by a reset.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self):
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        message = base64.b64decode(token)
        if message[:9] == MAGIC + b"\1":
            return self.answer(401, "challenge", [f"{scheme} {challenge()}"])
        if message[:9] == MAGIC + b"\3":
            self.log_in(user_of(message))
        if self.path == "/open":
            return self.answer(200, f"open to {self.user}")
        if self.path == "/logged-in":
            return self.answer(200, str(logged_in))
        if self.user is None:
            return self.answer(401, "who?", ["Negotiate", "NTLM"])
        return self.answer(200, f"mail of {self.user}")

    def log_in(self, user):
        global logged_in
        with lock:
            logged_in += self.user is None
        self.user = user

    def answer(self, status, text, offers=()):
        self.send_response(status)
        for offer in offers:
            self.send_header("WWW-Authenticate", offer)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def finish(self):
        global logged_in
        with lock:
            logged_in -= self.user is not None
        super().finish()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
