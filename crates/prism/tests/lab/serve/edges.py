"""What S3 does at its edges, asked for byte by byte: edges.py ENDPOINT.

Requests are signed here, as clients' libraries refuse to send some of these. The access
key is in the environment.
"""

import base64, datetime, hashlib, hmac, http.client, os, sys
from urllib.parse import urlsplit

endpoint = urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(endpoint.netloc, timeout=30)
ORIGIN = {"origin": b"https://page.example"}


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256)


def call(method, path, query="", headers=None, body=b"", signed=True):
    """Header values are bytes, and arrive as they are."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    payload = hashlib.sha256(body).hexdigest()
    sent = {"host": endpoint.netloc.encode(), **(headers or {})}
    if signed:
        sent |= {"x-amz-date": now.encode(), "x-amz-content-sha256": payload.encode()}
        names = sorted(sent)
        listed = ";".join(names)
        lines = b"".join(name.encode() + b":" + sent[name] + b"\n" for name in names)
        pairs = (pair.partition("=") for pair in query.split("&") if pair)
        arguments = "&".join(sorted(f"{n}={v}" for n, _, v in pairs))
        canonical = f"{method}\n{path}\n{arguments}\n".encode() + lines
        canonical += f"\n{listed}\n{payload}".encode()
        scope = [now[:8], "us-east-1", "s3", "aws4_request"]
        key = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
        for part in scope:
            key = mac(key, part.encode()).digest()
        scope = "/".join(scope)
        hashed = hashlib.sha256(canonical).hexdigest()
        signature = mac(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}".encode()).hexdigest()
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope},"
            f"SignedHeaders={listed},Signature={signature}"
        ).encode()
    connection.putrequest(method, path + ("?" + query if query else ""), skip_host=True,
                          skip_accept_encoding=True)
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer, answer.read()


def expect(status, code, *request, **more):
    answer, text = call(*request, **more)
    assert answer.status == status and code in text, (request, answer.status, text)
    return answer, text


expect(200, b"", "PUT", "/edges")

# Metadata in another script is text, and comes back in encoded words.
word = "=?UTF-8?B?w4RNw4Raw5XDkSBTMw==?="
for sent, told in [
    ("ÄMÄZÕÑ S3".encode(), word),
    (b"=?UTF-8?Q?=C3=84M=C3=84Z=C3=95=C3=91_S3?=", word),
    (word.encode(), word),
    (b"plain", "plain"),
]:
    expect(200, b"", "PUT", "/edges/meta", headers={"x-amz-meta-k": sent})
    expect(200, b"", "PUT", "/edges/copy", headers={"x-amz-copy-source": b"/edges/meta"})
    for path in ("/edges/meta", "/edges/copy"):
        answer, _ = expect(200, b"", "HEAD", path)
        assert answer.getheader("x-amz-meta-k") == told, (sent, answer.getheader("x-amz-meta-k"))

# Conditions of writes that S3 does not know.
expect(501, b"NotImplemented", "PUT", "/edges/meta", headers={"if-none-match": b'"etag"'})
expect(412, b"PreconditionFailed", "PUT", "/edges/meta", headers={"if-none-match": b"*"})
expect(200, b"", "PUT", "/edges/new", headers={"if-none-match": b"*"})

# Tags of the system, storage classes that are none.
expect(400, b"InvalidTag", "PUT", "/edges/tag", headers={"x-amz-tagging": b"aws%3Aof=1"})
tagging = b"<Tagging><TagSet><Tag><Key>aws:of</Key><Value/></Tag></TagSet></Tagging>"
expect(400, b"InvalidTag", "PUT", "/edges/new", "tagging=", body=tagging)
for name, status, code in [
    (b"FASTEST", 400, b"InvalidStorageClass"),
    (b"GLACIER", 501, b"NotImplemented"),
    (b"STANDARD", 200, b""),
]:
    expect(status, code, "PUT", "/edges/class", headers={"x-amz-storage-class": name})

# An upload whose last part is empty, completed again with this list and with others.
_, text = expect(200, b"", "POST", "/edges/parts", "uploads=")
upload = text.split(b"<UploadId>")[1].split(b"</UploadId>")[0].decode()
etags = []
for number, size in [(1, 5 << 20), (2, 0)]:
    query = f"partNumber={number}&uploadId={upload}"
    answer, _ = expect(200, b"", "PUT", "/edges/parts", query, body=b"p" * size)
    etags.append(answer.getheader("etag"))


def complete(status, code, *listed):
    parts = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in listed
    )
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    expect(status, code, "POST", "/edges/parts", f"uploadId={upload}", body=body)


both = [(1, etags[0]), (2, etags[1])]
complete(200, b"ETag", *both)
complete(200, b"ETag", *both)
complete(400, b"InvalidPart", both[0])
complete(400, b"InvalidPart", both[0], (3, etags[1]))
complete(400, b"InvalidPart", both[0], (2, etags[0]))
for method in ("GET", "HEAD"):
    for number, status, size in [(1, 206, 5 << 20), (2, 200, 0)]:
        answer, text = expect(status, b"", method, "/edges/parts", f"partNumber={number}")
        assert answer.getheader("content-length") == str(size), number
        assert answer.getheader("x-amz-mp-parts-count") == "2", number
        assert len(text) == (size if method == "GET" else 0), number
    expect(416, b"", method, "/edges/parts", "partNumber=3")

# A page may see every answer that its origin is allowed to, errors among them.
rules = b"""<CORSConfiguration><CORSRule><AllowedOrigin>https://page.example</AllowedOrigin>
<AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>
<AllowedMethod>POST</AllowedMethod></CORSRule></CORSConfiguration>"""
expect(200, b"", "PUT", "/edges", "cors=", body=rules)
delete = b"<Delete><Object><Key>new</Key></Object></Delete>"
md5 = {"content-md5": base64.b64encode(hashlib.md5(delete).digest())}
for status, request, more in [
    (200, ("GET", "/edges", "list-type=2"), {}),
    (200, ("GET", "/edges/meta"), {}),
    (200, ("POST", "/edges", "delete="), {"headers": ORIGIN | md5, "body": delete}),
    (200, ("PUT", "/edges", "cors="), {"body": rules}),
    (400, ("PUT", "/edges", "cors="), {"body": b"no rules"}),
    (404, ("GET", "/edges/missing"), {}),
    (403, ("GET", "/edges/meta"), {"signed": False}),
    (404, ("GET", "/edges", "lifecycle="), {}),
    (501, ("GET", "/edges", "torrent="), {}),
]:
    more = {"headers": ORIGIN, **more}
    answer, _ = expect(status, b"", *request, **more)
    allowed = answer.getheader("access-control-allow-origin")
    assert allowed == "https://page.example", (request, allowed)
    more["headers"] = {**more["headers"], "origin": b"https://other.example"}
    answer, _ = expect(status, b"", *request, **more)
    assert answer.getheader("access-control-allow-origin") is None, request
