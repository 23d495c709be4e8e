"""Uploads in parts by boto3: made, listed, read in every way, copied, ended."""

import base64
import hashlib
import io
import os
import random
import zlib

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.client import Config
from botocore.exceptions import ClientError

MIB = 1 << 20
options = {}
try:
    Config(request_checksum_calculation="when_required")
    options["request_checksum_calculation"] = "when_required"
except TypeError:
    pass
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=Config(**options))
random.seed(5)
BUCKET = "parts"
s3.create_bucket(Bucket=BUCKET)


def refused(code, call, **arguments):
    try:
        call(Bucket=BUCKET, **arguments)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        assert got == code or error.response["ResponseMetadata"]["HTTPStatusCode"] == code, error
        return
    raise SystemExit(f"{call} was not refused with {code}")


def etag_of(parts):
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'


# One upload, call by call.
parts = [random.randbytes(n) for n in (5 * MIB, 5 * MIB + 12345, 17)]
whole = b"".join(parts)
made = s3.create_multipart_upload(
    Bucket=BUCKET, Key="dir/a b+\u00e9", ContentType="text/x", Metadata={"k": "v"}, Tagging="t=1&u=%20"
)
upload = {"Key": made["Key"], "UploadId": made["UploadId"]}
assert made["Key"] == "dir/a b+\u00e9"
sent = {}
for number in (3, 1, 2):
    answer = s3.upload_part(Bucket=BUCKET, **upload, PartNumber=number, Body=b"x" * 100)
    answer = s3.upload_part(Bucket=BUCKET, **upload, PartNumber=number, Body=parts[number - 1])
    assert answer["ETag"] == f'"{hashlib.md5(parts[number - 1]).hexdigest()}"'
    sent[number] = answer["ETag"]
s3.upload_part(Bucket=BUCKET, **upload, PartNumber=10000, Body=b"left out")
refused("InvalidArgument", s3.upload_part, **upload, PartNumber=10001, Body=b"")
refused("NoSuchUpload", s3.upload_part, Key="other", UploadId=upload["UploadId"], PartNumber=1, Body=b"")
refused("NoSuchUpload", s3.upload_part, Key=upload["Key"], UploadId="no", PartNumber=1, Body=b"")
listed = s3.list_parts(Bucket=BUCKET, **upload)
assert [p["PartNumber"] for p in listed["Parts"]] == [1, 2, 3, 10000]
assert [p["Size"] for p in listed["Parts"]] == [len(p) for p in parts] + [8]
page = s3.list_parts(Bucket=BUCKET, **upload, MaxParts=2, PartNumberMarker=1)
assert [p["PartNumber"] for p in page["Parts"]] == [2, 3] and page["IsTruncated"], page
assert page["NextPartNumberMarker"] == 3
found = s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
assert [(u["Key"], u["UploadId"]) for u in found] == [(upload["Key"], upload["UploadId"])]
refused("NoSuchKey", s3.get_object, Key=upload["Key"])

named = [{"PartNumber": n, "ETag": sent[n]} for n in (1, 2, 3)]
complete = s3.complete_multipart_upload
refused("InvalidPartOrder", complete, **upload, MultipartUpload={"Parts": named[::-1]})
wrong = [dict(named[0], ETag='"' + "0" * 32 + '"')]
refused("InvalidPart", complete, **upload, MultipartUpload={"Parts": wrong})
missing = [named[0], {"PartNumber": 7, "ETag": sent[1]}]
refused("InvalidPart", complete, **upload, MultipartUpload={"Parts": missing})
small = [named[0], named[2], {"PartNumber": 10000, "ETag": f'"{hashlib.md5(b"left out").hexdigest()}"'}]
refused("EntityTooSmall", complete, **upload, MultipartUpload={"Parts": small})
done = complete(Bucket=BUCKET, **upload, MultipartUpload={"Parts": named})
assert done["ETag"] == etag_of(parts), done
again = complete(Bucket=BUCKET, **upload, MultipartUpload={"Parts": named})
assert again["ETag"] == done["ETag"]
refused("NoSuchUpload", s3.list_parts, **upload)
assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)

# Read in every way.
key = upload["Key"]
got = s3.get_object(Bucket=BUCKET, Key=key)
assert got["Body"].read() == whole and got["ETag"] == done["ETag"]
assert got["ContentType"] == "text/x" and got["Metadata"] == {"k": "v"} and got["TagCount"] == 2
for _ in range(20):
    first = random.randrange(len(whole))
    last = random.randrange(first, len(whole))
    part = s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={first}-{last}")
    assert part["Body"].read() == whole[first : last + 1], (first, last)
edge = 5 * MIB
part = s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={edge - 1}-{edge}")
assert part["Body"].read() == whole[edge - 1 : edge + 1]
assert s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=-18")["Body"].read() == whole[-18:]
for number, bytes_of in enumerate(parts, 1):
    part = s3.get_object(Bucket=BUCKET, Key=key, PartNumber=number)
    assert part["Body"].read() == bytes_of and part["PartsCount"] == 3
    head = s3.head_object(Bucket=BUCKET, Key=key, PartNumber=number)
    assert head["ContentLength"] == len(bytes_of) and head["PartsCount"] == 3
refused(416, s3.get_object, Key=key, PartNumber=4)
attributes = s3.get_object_attributes(
    Bucket=BUCKET, Key=key, ObjectAttributes=["ETag", "ObjectParts", "ObjectSize", "StorageClass"]
)
assert attributes["ETag"] == done["ETag"].strip('"') and attributes["ObjectSize"] == len(whole)
assert attributes["ObjectParts"]["TotalPartsCount"] == 3

# Without a checksum of the client's: the whole has the same as an object of one piece.
CRC64 = "x-amz-checksum-crc64nvme"
plain = s3.put_object(Bucket=BUCKET, Key="plain", Body=whole)
head = s3.head_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
head = head["ResponseMetadata"]["HTTPHeaders"]
assert head[CRC64] == plain["ResponseMetadata"]["HTTPHeaders"][CRC64], (head, plain)
assert head["x-amz-checksum-type"] == "FULL_OBJECT", head

# With checksums, of both kinds.
for algorithm, kind in (("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("SHA256", None)):
    extra = {"ChecksumType": kind} if kind else {}
    try:
        made = s3.create_multipart_upload(Bucket=BUCKET, Key="sums", ChecksumAlgorithm=algorithm, **extra)
    except Exception as error:
        if "Unknown parameter" in str(error):
            continue
        raise
    named = []
    for number, body in enumerate(parts, 1):
        answer = s3.upload_part(
            Bucket=BUCKET, Key="sums", UploadId=made["UploadId"], PartNumber=number, Body=body,
            ChecksumAlgorithm=algorithm,
        )
        name = f"Checksum{algorithm}"
        named.append({"PartNumber": number, "ETag": answer["ETag"], name: answer[name]})
    done = complete(Bucket=BUCKET, Key="sums", UploadId=made["UploadId"], MultipartUpload={"Parts": named})
    if kind == "FULL_OBJECT":
        wanted = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
    else:
        hashed = b"".join(base64.b64decode(p[name]) for p in named)
        digest = hashlib.sha256(hashed).digest() if algorithm == "SHA256" else zlib.crc32(hashed).to_bytes(4, "big")
        wanted = base64.b64encode(digest).decode() + "-3"
    assert done[name] == wanted, (done, wanted)
    head = s3.head_object(Bucket=BUCKET, Key="sums", ChecksumMode="ENABLED")
    assert head[name] == wanted, head
    assert s3.get_object(Bucket=BUCKET, Key="sums", ChecksumMode="ENABLED")["Body"].read() == whole
    attributes = s3.get_object_attributes(
        Bucket=BUCKET, Key="sums", ObjectAttributes=["Checksum", "ObjectParts"], MaxParts=2
    )
    assert attributes["Checksum"][name] == wanted
    assert len(attributes["ObjectParts"]["Parts"]) == 2 and attributes["ObjectParts"]["IsTruncated"]

# Parts that are copied.
made = s3.create_multipart_upload(Bucket=BUCKET, Key="copied")
source = {"Bucket": BUCKET, "Key": key}
named = []
for number, (first, last) in enumerate(((3, 5 * MIB + 2), (0, 99)), 1):
    answer = s3.upload_part_copy(
        Bucket=BUCKET, Key="copied", UploadId=made["UploadId"], PartNumber=number,
        CopySource=source, CopySourceRange=f"bytes={first}-{last}",
    )
    named.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
refused(
    "InvalidArgument", s3.upload_part_copy, Key="copied", UploadId=made["UploadId"], PartNumber=9,
    CopySource=source, CopySourceRange=f"bytes=0-{len(whole)}",
)
complete(Bucket=BUCKET, Key="copied", UploadId=made["UploadId"], MultipartUpload={"Parts": named})
got = s3.get_object(Bucket=BUCKET, Key="copied")["Body"].read()
assert got == whole[3 : 5 * MIB + 3] + whole[:100]

# As the transfer manager does it: parts from many threads, over many connections.
big = random.randbytes(50 * MIB + 1)
config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=6 * MIB, max_concurrency=6)
s3.upload_fileobj(io.BytesIO(big), BUCKET, "big", Config=config)
back = io.BytesIO()
s3.download_fileobj(BUCKET, "big", back, Config=config)
assert back.getvalue() == big
assert s3.head_object(Bucket=BUCKET, Key="big")["ETag"].endswith('-9"')

# Ended, and gone.
for n in range(7):
    s3.create_multipart_upload(Bucket=BUCKET, Key=f"left/{n % 3}/{n}")
pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET, PaginationConfig={"PageSize": 2})
left = [u for page in pages for u in page["Uploads"]]
assert [u["Key"] for u in left] == sorted(f"left/{n % 3}/{n}" for n in range(7)), left
folded = s3.list_multipart_uploads(Bucket=BUCKET, Prefix="left/", Delimiter="/")
assert [p["Prefix"] for p in folded["CommonPrefixes"]] == ["left/0/", "left/1/", "left/2/"]
for u in left[:3]:
    s3.abort_multipart_upload(Bucket=BUCKET, Key=u["Key"], UploadId=u["UploadId"])
refused("NoSuchUpload", s3.abort_multipart_upload, Key=left[0]["Key"], UploadId=left[0]["UploadId"])
refused("BucketNotEmpty", s3.delete_bucket)
for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]:
    s3.delete_object(Bucket=BUCKET, Key=entry["Key"])
s3.delete_bucket(Bucket=BUCKET)
print("done")
