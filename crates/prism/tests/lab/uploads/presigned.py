# Usage: presigned.py ENDPOINT
# Puts objects by presigned URLs that say what the body is, made and signed here from
# the description of the format alone. Other bytes are refused wherever the connection
# is, and leave what was there. Prints "done".
import base64, datetime, hashlib, hmac, http.client, os, random, sys, time, zlib
from urllib.parse import quote, urlsplit

endpoint = urlsplit(sys.argv[1])
region = os.environ["AWS_DEFAULT_REGION"]
HASH = "X-Amz-Content-Sha256"


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)


def presign(method, path, payload="UNSIGNED-PAYLOAD", **hoisted):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    parts = (now[:8], region, "s3", "aws4_request")
    scope = "/".join(parts)
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{os.environ['AWS_ACCESS_KEY_ID']}/{scope}",
        "X-Amz-Date": now,
        "X-Amz-Expires": "60",
        "X-Amz-SignedHeaders": "host",
        **{name.replace("_", "-"): value for name, value in hoisted.items()},
    }
    if payload != "UNSIGNED-PAYLOAD":
        query[HASH] = payload
    text = "&".join(f"{quote(n, '')}={quote(query[n], '')}" for n in sorted(query))
    host = endpoint.netloc
    canonical = f"{method}\n{path}\n{text}\nhost:{host}\n\nhost\n{payload}"
    key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for part in parts:
        key = mac(key, part).digest()
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    signature = mac(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}").hexdigest()
    return f"{path}?{text}&X-Amz-Signature={signature}"


connection = http.client.HTTPConnection(endpoint.netloc, timeout=30)


def call(method, url, body=b""):
    connection.request(method, url, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


for _ in range(50):
    status, text = call("PUT", presign("PUT", "/presigned"))
    if status == 200:
        break
    time.sleep(0.2)
assert status == 200, text
random.seed(8)


def refused(url, body, code, path, before):
    status, text = call("PUT", url, body)
    assert status == 400 and code in text, (path, status, text)
    status, text = call("GET", presign("GET", path))
    assert (status, text) == before or status == 404 and before is None, (path, status)


# Each key's first request brings the connection to its owner, or relays; those behind it
# are answered where the connection is.
for n in range(16):
    path, size = f"/presigned/key-{n}", [0, 1, 5000, 600_000][n % 4]
    data, other = random.randbytes(size), random.randbytes(size or 1)
    url = presign("PUT", path, hashlib.sha256(data).hexdigest())
    for _ in range(2):
        refused(url, other, b"XAmzContentSHA256Mismatch", path, None)
    status, text = call("PUT", url, data)
    assert status == 200, text
    refused(url, other, b"XAmzContentSHA256Mismatch", path, (200, data))

# In chunks: with a checksum behind them, or with signatures, which need a header.
for n in range(8):
    path, data = f"/presigned/chunks-{n}", random.randbytes(3000)

    def chunks(data, summed):
        crc = base64.b64encode(zlib.crc32(summed).to_bytes(4, "big"))
        ends = b"\r\n0\r\nx-amz-checksum-crc32:" + crc + b"\r\n\r\n"
        return f"{len(data):x}\r\n".encode() + data + ends

    said = {
        "x_amz_decoded_content_length": str(len(data)),
        "x_amz_trailer": "x-amz-checksum-crc32",
    }
    url = presign("PUT", path, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", **said)
    refused(url, chunks(data, data + b"!"), b"BadDigest", path, None)
    refused(url, chunks(data[1:], data[1:]), b"IncompleteBody", path, None)
    status, text = call("PUT", url, chunks(data, data))
    assert status == 200, text
    status, text = call("GET", presign("GET", path))
    assert (status, text) == (200, data), (path, status)
    signed = presign("PUT", path, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", **said)
    refused(signed, chunks(data, data), b"InvalidRequest", path, (200, data))

# SDKs for browsers presign the checksum of an empty body. The body has another one.
for n in range(8):
    path, data = f"/presigned/summed-{n}", random.randbytes(3000)
    summed = {"x_amz_checksum_crc32": "AAAAAA==", "x_amz_sdk_checksum_algorithm": "CRC32"}
    status, text = call("PUT", presign("PUT", path, **summed), data)
    assert status == 200, text
    status, text = call("GET", presign("GET", path))
    assert (status, text) == (200, data), (path, status)
print("done")
