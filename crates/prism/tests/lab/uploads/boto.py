# Puts and gets objects with boto3 over HTTPS, with its default settings and
# with every checksum that needs no other library. Prints how many bodies came
# in chunks.
import hashlib, io, os, random
import boto3

s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
forms = []
s3.meta.events.register(
    "before-send.s3.PutObject",
    lambda request, **_: forms.append(request.headers.get("X-Amz-Content-SHA256")),
)
random.seed(5)
s3.create_bucket(Bucket="uploads")
for algorithm in (None, "CRC32", "SHA1", "SHA256"):
    extra = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    for size in (0, 1, 100 << 10, 3 << 20):
        for kind in (bytes, io.BytesIO):
            key = f"{algorithm}/{kind.__name__}/{size}"
            body = random.randbytes(size)
            put = s3.put_object(Bucket="uploads", Key=key, Body=kind(body), **extra)
            assert put["ETag"] == '"' + hashlib.md5(body).hexdigest() + '"', (key, put)
            if algorithm:
                assert put["Checksum" + algorithm], (key, put)
            got = s3.get_object(Bucket="uploads", Key=key, ChecksumMode="ENABLED")
            assert got["ContentLength"] == size and "ContentEncoding" not in got, (key, got)
            assert got["Body"].read() == body, key
            if algorithm:
                assert got["Checksum" + algorithm] == put["Checksum" + algorithm], (key, got)
chunked = [f for f in forms if f in (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")]
print(len(chunked))
