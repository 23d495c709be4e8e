# Usage: chunks.py ENDPOINT
# Puts objects in chunks, made and signed here from the description of the
# format alone: every form, every checksum, both framings of HTTP, and bodies
# that must be refused and leave what was there. Prints "done".
import base64, datetime, hashlib, hmac, http.client, os, random, ssl, sys, time, zlib
from urllib.parse import urlsplit

endpoint = urlsplit(sys.argv[1])
region = os.environ["AWS_DEFAULT_REGION"]
access_key = os.environ["AWS_ACCESS_KEY_ID"]
EMPTY = hashlib.sha256(b"").hexdigest()
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = SIGNED + "-TRAILER"


def crc(data, polynomial, bits):
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (polynomial if n & 1 else 0)
        table.append(n)
    ones = (1 << bits) - 1
    value = ones
    for byte in data:
        value = table[(value ^ byte) & 255] ^ value >> 8
    return (value ^ ones).to_bytes(bits // 8, "big")


CHECKSUMS = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: crc(data, 0x82F63B78, 32),
    "crc64nvme": lambda data: crc(data, 0x9A6C9329AC4BC9B5, 64),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)


class Request:
    """One signed request; `payload` is the value of x-amz-content-sha256."""

    def __init__(self, method, path, payload, headers=()):
        self.time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        self.method, self.path = method, path
        self.headers = {
            "host": endpoint.netloc,
            "x-amz-date": self.time,
            "x-amz-content-sha256": payload,
            **dict(headers),
        }
        names = ";".join(sorted(self.headers))
        lines = "".join(f"{n}:{self.headers[n]}\n" for n in sorted(self.headers))
        canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{payload}"
        parts = (self.time[:8], region, "s3", "aws4_request")
        self.scope = "/".join(parts)
        self.key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
        for part in parts:
            self.key = mac(self.key, part).digest()
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        self.signature = self.sign("AWS4-HMAC-SHA256", hashed)
        self.headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={access_key}/{self.scope},"
            f"SignedHeaders={names},Signature={self.signature}"
        )

    def sign(self, kind, *rest):
        return mac(self.key, "\n".join((kind, self.time, self.scope, *rest))).hexdigest()

    def chain(self, kind, *rest):
        self.signature = self.sign(kind, self.signature, *rest)
        return self.signature

    def send(self, connection, body=b"", chunked=False):
        headers = dict(self.headers)
        if chunked:
            headers["transfer-encoding"] = "chunked"
            pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
            connection.request(self.method, self.path, iter(pieces), headers, encode_chunked=True)
        else:
            headers["content-length"] = str(len(body))
            connection.request(self.method, self.path, body, headers)
        answer = connection.getresponse()
        return answer, answer.read()


def upload(connection, key, form, data, size=65536, name="crc32", chunked=False, **wrong):
    """PUTs `data` in chunks of `size`; `wrong` says what to damage."""
    trailer = form.endswith("-TRAILER")
    headers = {
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": str(len(data) + wrong.get("longer", 0)),
    }
    if trailer:
        headers["x-amz-trailer"] = "x-amz-checksum-" + name
    request = Request("PUT", f"/chunks/{key}", form, headers)
    body = b""
    for at in [*range(0, len(data), size), len(data)]:
        chunk = data[at : at + size]
        line = f"{len(chunk):x}"
        if form != UNSIGNED:
            signed = chunk + (b"!" if wrong.get("chunk") == at else b"")
            hashed = hashlib.sha256(signed).hexdigest()
            line += ";chunk-signature=" + request.chain("AWS4-HMAC-SHA256-PAYLOAD", EMPTY, hashed)
        body += line.encode() + b"\r\n" + chunk + (b"\r\n" if chunk else b"")
    if trailer:
        value = CHECKSUMS[name](data + wrong.get("checksum", b""))
        line = f"x-amz-checksum-{name}:{base64.b64encode(value).decode()}"
        body += line.encode() + b"\r\n"
        if form != UNSIGNED:
            hashed = hashlib.sha256((line + wrong.get("trailer", "") + "\n").encode()).hexdigest()
            signature = request.chain("AWS4-HMAC-SHA256-TRAILER", hashed)
            body += f"x-amz-trailer-signature:{signature}\r\n".encode()
    body += b"\r\n"
    body = body[: len(body) - wrong.get("cut", 0)]
    return request.send(connection, body, chunked)


def expect(connection, key, data):
    answer, body = Request("GET", f"/chunks/{key}", EMPTY).send(connection)
    assert answer.status == 200 and body == data, (key, answer.status, len(body))
    assert answer.getheader("content-encoding") is None, key


def connect():
    if endpoint.scheme == "http":
        return http.client.HTTPConnection(endpoint.netloc, timeout=30)
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    return http.client.HTTPSConnection(endpoint.netloc, timeout=30, context=context)


connection = connect()
for _ in range(50):
    answer, text = Request("PUT", "/chunks", EMPTY).send(connection)
    if answer.status == 200:
        break
    time.sleep(0.2)
assert answer.status == 200, text
random.seed(6)

for form in (UNSIGNED, SIGNED, SIGNED_TRAILER):
    for size in (0, 1, 100 << 10, 3 << 20):
        for chunked in (False, True):
            key = f"{form[-7:]}-{len(form)}-{size}-{chunked}"
            data = random.randbytes(size)
            answer, text = upload(connection, key, form, data, chunked=chunked)
            assert answer.status == 200, (key, text)
            etag = '"' + hashlib.md5(data).hexdigest() + '"'
            assert answer.getheader("etag") == etag, key
            expect(connection, key, data)

for name in CHECKSUMS:
    for form in (UNSIGNED, SIGNED_TRAILER):
        data = random.randbytes(20_000)
        answer, text = upload(connection, name, form, data, 8192, name)
        assert answer.status == 200, (name, text)
        assert answer.getheader("x-amz-checksum-" + name), name
        expect(connection, name, data)
        answer, text = upload(connection, name, form, data, 8192, name, checksum=b"!")
        assert answer.status == 400 and b"BadDigest" in text, (name, text)

REFUSED = [
    (UNSIGNED, {"longer": 1}, 400, b"IncompleteBody"),
    (UNSIGNED, {"longer": -1}, 400, b"IncompleteBody"),
    (UNSIGNED, {"cut": 100}, 400, b"IncompleteBody"),
    (UNSIGNED, {"cut": 4}, 400, b"IncompleteBody"),
    (SIGNED, {"chunk": 0}, 403, b"SignatureDoesNotMatch"),
    (SIGNED, {"chunk": 16384}, 403, b"SignatureDoesNotMatch"),
    (SIGNED, {"chunk": 20_000}, 403, b"SignatureDoesNotMatch"),
    (SIGNED, {"cut": 2}, 400, b"IncompleteBody"),
    (SIGNED_TRAILER, {"chunk": 8192}, 403, b"SignatureDoesNotMatch"),
    (SIGNED_TRAILER, {"trailer": "!"}, 403, b"SignatureDoesNotMatch"),
]
old = random.randbytes(5000)
for n, (form, wrong, status, code) in enumerate(REFUSED):
    for chunked in (False, True):
        key = f"refused-{n}"
        assert upload(connection, key, UNSIGNED, old)[0].status == 200
        new = random.randbytes(20_000)
        answer, text = upload(connection, key, form, new, 8192, chunked=chunked, **wrong)
        assert answer.status == status and code in text, (n, answer.status, text)
        expect(connection, key, old)
print("done")
