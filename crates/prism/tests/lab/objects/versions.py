"""Versions by boto3: made, read, hidden, listed, copied, tagged, suspended, deleted."""

import os
import random

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

endpoint = os.environ["AWS_ENDPOINT_URL"]
s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", retries={"max_attempts": 1}))
random.seed(8)
B = "versions"
s3.create_bucket(Bucket=B)


def refused(code, call, **arguments):
    arguments.setdefault("Bucket", B)
    try:
        call(**arguments)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert code in (got, status), error.response
        return error.response["ResponseMetadata"]["HTTPHeaders"]
    raise SystemExit(f"{call} was not refused with {code}")


def put(key, body, **more):
    return s3.put_object(Bucket=B, Key=key, Body=body, **more).get("VersionId")


def get(key, **more):
    return s3.get_object(Bucket=B, Key=key, **more)["Body"].read()


def state(status, **more):
    s3.put_bucket_versioning(Bucket=B, VersioningConfiguration={"Status": status, **more})


# Before there are any.
assert "Status" not in s3.get_bucket_versioning(Bucket=B)
assert put("old", b"null") is None
assert "VersionId" not in s3.delete_object(Bucket=B, Key="none")
refused("NoSuchBucket", s3.put_bucket_versioning, Bucket="nowhere", VersioningConfiguration={"Status": "Enabled"})
refused("NotImplemented", s3.put_bucket_versioning, VersioningConfiguration={"Status": "Enabled", "MFADelete": "Enabled"})
refused("MalformedXML", s3.put_bucket_versioning, VersioningConfiguration={"Status": "On"})

# Every write makes one, and each can be read, whole or in part, with its own headers.
state("Enabled")
assert s3.get_bucket_versioning(Bucket=B)["Status"] == "Enabled"
bodies = [random.randbytes(n) for n in (10, 200_000, 3 << 20)]
ids = [put("k", body, Metadata={"n": str(n)}) for n, body in enumerate(bodies)]
assert len(set(ids)) == 3 and all(ids)
for n, (id, body) in enumerate(zip(ids, bodies)):
    answer = s3.get_object(Bucket=B, Key="k", VersionId=id)
    assert answer["Body"].read() == body and answer["VersionId"] == id and answer["Metadata"] == {"n": str(n)}
    assert get("k", VersionId=id, Range="bytes=3-5") == body[3:6]
    assert s3.head_object(Bucket=B, Key="k", VersionId=id)["ContentLength"] == len(body)
    sizes = s3.get_object_attributes(Bucket=B, Key="k", VersionId=id, ObjectAttributes=["ObjectSize"])
    assert sizes["ObjectSize"] == len(body) and sizes["VersionId"] == id
assert s3.get_object(Bucket=B, Key="k")["VersionId"] == ids[-1]
refused(400, s3.get_object, Key="k", VersionId="junk")
refused("NoSuchVersion", s3.get_object, Key="other", VersionId=ids[0])
put("old", b"new")
assert get("old", VersionId="null") == b"null" and get("old") == b"new"

# Tags belong to a version; a copy is made of one, and is one.
s3.put_object_tagging(Bucket=B, Key="k", VersionId=ids[0], Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
assert s3.get_object_tagging(Bucket=B, Key="k", VersionId=ids[0])["TagSet"] == [{"Key": "a", "Value": "b"}]
assert s3.get_object_tagging(Bucket=B, Key="k")["TagSet"] == []
s3.delete_object_tagging(Bucket=B, Key="k", VersionId=ids[0])
for n in range(6):
    copied = s3.copy_object(Bucket=B, Key=f"copy {n}", CopySource={"Bucket": B, "Key": "k", "VersionId": ids[n % 3]})
    assert copied["CopySourceVersionId"] == ids[n % 3] and copied["VersionId"]
    assert get(f"copy {n}", VersionId=copied["VersionId"]) == bodies[n % 3]
# To bring an old version back is to copy it over the new one.
s3.copy_object(Bucket=B, Key="k", CopySource={"Bucket": B, "Key": "k", "VersionId": ids[0]})
assert get("k") == bodies[0]

# An upload in parts is one version.
upload = s3.create_multipart_upload(Bucket=B, Key="k")["UploadId"]
part = s3.upload_part(Bucket=B, Key="k", UploadId=upload, PartNumber=1, Body=bodies[2])
parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
made = s3.complete_multipart_upload(Bucket=B, Key="k", UploadId=upload, MultipartUpload=parts)["VersionId"]
put("k", b"over it")
assert get("k", VersionId=made) == bodies[2] and get("k", VersionId=made, PartNumber=1) == bodies[2]

# A delete marker hides, is named, and is no object.
marker = s3.delete_object(Bucket=B, Key="k")
assert marker["DeleteMarker"] is True and marker["VersionId"]
headers = refused("NoSuchKey", s3.get_object, Key="k")
assert headers["x-amz-delete-marker"] == "true" and headers["x-amz-version-id"] == marker["VersionId"], headers
headers = refused(405, s3.head_object, Key="k", VersionId=marker["VersionId"])
assert headers["x-amz-delete-marker"] == "true" and headers["allow"] == "DELETE", headers
source = {"Bucket": B, "Key": "k", "VersionId": marker["VersionId"]}
refused("InvalidRequest", s3.copy_object, Key="x", CopySource=source)
assert get("k", VersionId=ids[1]) == bodies[1]
assert not [o for o in s3.list_objects_v2(Bucket=B)["Contents"] if o["Key"] == "k"]
refused("BucketNotEmpty", s3.delete_bucket)
gone = s3.delete_object(Bucket=B, Key="k", VersionId=marker["VersionId"])
assert gone["DeleteMarker"] is True and gone["VersionId"] == marker["VersionId"]
assert get("k") == b"over it"
refused(412, s3.delete_object, Key="k", IfMatch='"no"')


def everything(**more):
    """All pages of a listing, flat: (key, id, latest, marker), as S3 orders them."""
    found, prefixes = [], []
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=B, **more):
        one = [(v["Key"], v["VersionId"], v["IsLatest"], False) for v in page.get("Versions", [])]
        two = [(v["Key"], v["VersionId"], v["IsLatest"], True) for v in page.get("DeleteMarkers", [])]
        found.append((one, two))
        prefixes += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
    return found, prefixes


# A random history, compared with what it must have left.
status = "Enabled"
history = {}
for _ in range(200):
    key = f"h/{random.choice('ab')}/{random.randrange(4)}"
    of_key = history.setdefault(key, [])
    choice = random.random()
    if choice < 0.5:
        body = random.randbytes(random.choice([0, 7, 90_000]))
        id = put(key, body)
        assert status == "Enabled" or id == "null", id
        of_key[:] = [v for v in of_key if v[0] != id] + [(id, body)]
    elif choice < 0.7:
        id = s3.delete_object(Bucket=B, Key=key)["VersionId"]
        of_key[:] = [v for v in of_key if v[0] != id] + [(id, None)]
    elif choice < 0.9 and of_key:
        id, body = of_key.pop(random.randrange(len(of_key)))
        gone = s3.delete_object(Bucket=B, Key=key, VersionId=id)
        assert gone["VersionId"] == id and gone.get("DeleteMarker", False) == (body is None)
    else:
        status = random.choice(["Enabled", "Suspended"])
        state(status)
wanted = []
for key in sorted(history):
    of_key = history[key]
    if of_key and of_key[-1][1] is not None:
        assert get(key) == of_key[-1][1], key
    else:
        refused("NoSuchKey", s3.get_object, Key=key)
    for n, (id, body) in enumerate(reversed(of_key)):
        wanted.append((key, id, n == 0, body is None))
        if body is not None:
            assert get(key, VersionId=id) == body
for size in (1000, 7, 1):
    found, prefixes = everything(Prefix="h/", PaginationConfig={"PageSize": size})
    assert prefixes == []
    assert [v for one, _ in found for v in one] == [v for v in wanted if not v[3]], size
    assert [v for _, two in found for v in two] == [v for v in wanted if v[3]], size
found, prefixes = everything(Prefix="h/", Delimiter="/", PaginationConfig={"PageSize": 1})
assert prefixes == sorted({key[:4] for key, *_ in wanted}) and not any(one or two for one, two in found)
after = s3.list_object_versions(Bucket=B, Prefix="h/", KeyMarker=wanted[0][0])
listed = after.get("Versions", []) + after.get("DeleteMarkers", [])
assert len(listed) == sum(key > wanted[0][0] for key, *_ in wanted)
refused("InvalidArgument", s3.list_object_versions, VersionIdMarker=ids[0])

# Many at once: versions, markers, and what has another ETag.
state("Enabled")
one = put("many", b"1")
put("many", b"2")
answer = s3.delete_objects(
    Bucket=B,
    Delete={
        "Objects": [
            {"Key": "many", "VersionId": one},
            {"Key": "many"},
            {"Key": "many", "ETag": '"no"'},
            {"Key": "many", "VersionId": "junk"},
        ]
    },
)
deleted = answer["Deleted"]
assert deleted[0]["VersionId"] == one and "DeleteMarker" not in deleted[0], deleted
assert deleted[1]["DeleteMarker"] is True and deleted[1]["DeleteMarkerVersionId"], deleted
assert sorted(e["Code"] for e in answer["Errors"]) == ["InvalidArgument", "PreconditionFailed"], answer
refused("NoSuchKey", s3.get_object, Key="many")

# Emptied version by version, the bucket can go.
for found, markers in everything()[0]:
    names = [{"Key": key, "VersionId": id} for key, id, *_ in found + markers]
    if names:
        answer = s3.delete_objects(Bucket=B, Delete={"Objects": names})
        assert len(answer["Deleted"]) == len(names) and not answer.get("Errors"), answer
assert everything()[0] == [([], [])]
s3.delete_bucket(Bucket=B)
print("done")
