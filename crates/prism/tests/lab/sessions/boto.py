"""boto3, with its transfer manager. A failure is not tried again."""

import base64
import os
import pathlib
import ssl
import urllib.request
import zlib

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import S3Transfer, TransferConfig
from botocore.client import Config

s3 = boto3.client(
    "s3",
    # urllib names the port of HTTP where botocore, which signs, does not.
    endpoint_url=os.environ["AWS_ENDPOINT_URL"],
    config=Config(signature_version="s3v4", retries={"max_attempts": 1}),
)
bucket, shared, scratch = os.environ["BUCKET"], pathlib.Path(os.environ["SHARED"]), pathlib.Path(os.environ["SCRATCH"])
large = (shared / "large").read_bytes()

s3.create_bucket(Bucket=bucket)
files = {str(path.relative_to(shared)): path.read_bytes() for path in (shared / "tree").rglob("*") if path.is_file()}
for key, body in files.items():
    s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"len": str(len(body))})
for key, body in files.items():
    answer = s3.get_object(Bucket=bucket, Key=key)
    assert answer["Body"].read() == body and answer["Metadata"] == {"len": str(len(body))}, key

parts = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=6)
s3.upload_file(str(shared / "large"), bucket, "large", Config=parts)
answer = s3.get_object(Bucket=bucket, Key="large", Range="bytes=1000001-1070000")
assert answer["Body"].read() == (shared / "slice").read_bytes()
s3.copy({"Bucket": bucket, "Key": "large"}, bucket, "copy", Config=parts)
s3.download_file(bucket, "copy", str(scratch / "back"), Config=parts)
assert (scratch / "back").read_bytes() == large
made = ["large", "copy", "signed"]

# A checksum of the whole file, which older versions of boto3 do not take.
if "ChecksumCRC32" in S3Transfer.ALLOWED_UPLOAD_ARGS:
    made.append("summed")
    whole = base64.b64encode(zlib.crc32(large).to_bytes(4, "big")).decode()
    other = base64.b64encode(zlib.crc32(b"other").to_bytes(4, "big")).decode()
    try:
        s3.upload_file(str(shared / "large"), bucket, "summed", ExtraArgs={"ChecksumCRC32": other}, Config=parts)
        raise SystemExit("a wrong checksum of the whole file was accepted")
    except S3UploadFailedError as error:
        assert "BadDigest" in str(error), error
    s3.upload_file(str(shared / "large"), bucket, "summed", ExtraArgs={"ChecksumCRC32": whole}, Config=parts)
    head = s3.head_object(Bucket=bucket, Key="summed", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (whole, "FULL_OBJECT"), head

context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "copy"})
with urllib.request.urlopen(url, context=context) as answer:
    assert answer.read() == large
url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "signed"})
with urllib.request.urlopen(urllib.request.Request(url, data=b"signed", method="PUT"), context=context):
    pass
assert s3.get_object(Bucket=bucket, Key="signed")["Body"].read() == b"signed"

keys = (shared / "keys").read_text().split()
folders = (shared / "folders").read_text().split()
for operation in ["list_objects_v2", "list_objects"]:
    pages = s3.get_paginator(operation).paginate(Bucket="keys")
    assert [o["Key"] for page in pages for o in page["Contents"]] == keys
    pages = s3.get_paginator(operation).paginate(Bucket="keys", Delimiter="/", PaginationConfig={"PageSize": 30})
    assert [p["Prefix"] for page in pages for p in page["CommonPrefixes"]] == folders

names = [{"Key": key} for key in [*files, *made]]
answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": names})
assert len(answer["Deleted"]) == len(names) and not answer.get("Errors"), answer
assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
s3.delete_bucket(Bucket=bucket)
