"""A site behind a proxy, for tests: site.py NAME ADDRESS

The application is on port 8080, its programming interface on 8081, and the server that
knows its users on 8082. Most answers are the request as it has arrived, as JSON.
"""

import http.server
import json
import sys
import threading
import time

name, address = sys.argv[1:]
# Seconds that a report takes.
REPORT_S = 4


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def send(self, status, fields=()):
        """Answers with the request's method, target and fields."""
        seen = {"method": self.command, "target": self.path, "port": self.server.server_port}
        seen["fields"] = {field.lower(): self.headers.get_all(field) for field in self.headers}
        body = json.dumps(seen).encode()
        self.send_response(status)
        for field in (("Content-Length", str(len(body))), ("X-Host", name), *fields):
            self.send_header(*field)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path.startswith("/reports/"):
            time.sleep(REPORT_S)
        self.send(200, [("X-Frame-Options", "of the server")])

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_):
        pass


class Users(Site):
    """Knows the user by a cookie. Browsers are sent to the page for a login."""

    def do_GET(self):
        cookies = self.headers.get("Cookie", "").split("; ")
        user = next((cookie[5:] for cookie in cookies if cookie.startswith("user=")), None)
        host, uri = (self.headers.get(f"X-Forwarded-{part}") for part in ("Host", "Uri"))
        if user:
            secret = ("X-Secret", "of the server")
            self.send(200, [("X-User", user), secret, ("Set-Cookie", "known=1")])
        elif "text/html" in self.headers.get("Accept", ""):
            page = f"https://{host}/login?next={uri}"
            self.send(302, [("Location", page), ("Set-Cookie", "known=0")])
        else:
            self.send(401, [("WWW-Authenticate", "Bearer")])


servers = [
    http.server.ThreadingHTTPServer((address, port), handler)
    for port, handler in ((8080, Site), (8081, Site), (8082, Users))
]
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
servers[0].serve_forever()
