"""An application beside its objects: redirects.py ENDPOINT PORT.

The application listens on PORT, behind the endpoint. It answers `/get/KEY` with the object of that
key, without reading it. The access key is in the environment.
"""

import sys, threading, time, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3

ENDPOINT, PORT = sys.argv[1], int(sys.argv[2])
BODY = b"an object of the application" * 10_000


class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"the application"
        self.send_response(200)
        if self.path.startswith("/get/"):
            self.send_header("X-Accel-Redirect", "@store/files/" + self.path[5:])
            self.send_header("Content-Type", "application/x-test")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def get(path):
    for _ in range(100):
        try:
            with urllib.request.urlopen(ENDPOINT + path, timeout=10) as answer:
                return answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            # Nothing listened when it was tried last.
            if error.code < 500:
                raise
            time.sleep(0.1)
    raise SystemExit(f"{path}: no answer")


server = ThreadingHTTPServer(("127.0.0.1", PORT), Application)
threading.Thread(target=server.serve_forever, daemon=True).start()
s3 = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1")
s3.create_bucket(Bucket="files")
s3.put_object(Bucket="files", Key="a key", Body=BODY)
assert get("/")[1] == b"the application"
headers, body = get("/get/a%20key")
assert body == BODY and headers["Content-Type"] == "application/x-test", headers
assert s3.get_object(Bucket="files", Key="a key")["Body"].read() == BODY
try:
    get("/get/none")
    raise SystemExit("a missing object was found")
except urllib.error.HTTPError as error:
    assert error.code == 404, error.code
