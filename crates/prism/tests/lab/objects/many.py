"""Copies, listings, deletions, tags, conditions and presigned URLs by boto3."""

import hashlib
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

endpoint = os.environ["AWS_ENDPOINT_URL"]
s3 = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", retries={"max_attempts": 1}))
random.seed(6)
BUCKET = "many"
s3.create_bucket(Bucket=BUCKET)
s3.create_bucket(Bucket="other")


def refused(code, call, **arguments):
    arguments.setdefault("Bucket", BUCKET)
    try:
        call(**arguments)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert code in (got, status), error.response
        return
    raise SystemExit(f"{call} was not refused with {code}")


def put(key, body, **extra):
    return s3.put_object(Bucket=BUCKET, Key=key, Body=body, **extra)


def get(key, bucket=BUCKET):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


# Copies between all backends, of every kind of storage.
bodies = {f"src/{n}": random.randbytes(random.choice([0, 1, 5000, 70000, 3 << 20])) for n in range(12)}
for key, body in bodies.items():
    put(key, body, ContentType="text/x", Metadata={"n": key}, Tagging="a=1")
for n, (key, body) in enumerate(bodies.items()):
    answer = s3.copy_object(Bucket="other", Key=f"dst {n}", CopySource={"Bucket": BUCKET, "Key": key})
    assert answer["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    assert get(f"dst {n}", "other") == body
    head = s3.head_object(Bucket="other", Key=f"dst {n}")
    assert head["ContentType"] == "text/x" and head["Metadata"] == {"n": key}, head
    tags = s3.get_object_tagging(Bucket="other", Key=f"dst {n}")["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}], tags
source = {"Bucket": BUCKET, "Key": "src/0"}
s3.copy_object(
    Bucket=BUCKET, Key="src/0", CopySource=source, MetadataDirective="REPLACE", Metadata={"new": "1"}, ContentType="a/b"
)
head = s3.head_object(Bucket=BUCKET, Key="src/0")
assert head["Metadata"] == {"new": "1"} and head["ContentType"] == "a/b" and get("src/0") == bodies["src/0"]
refused("InvalidRequest", s3.copy_object, Key="src/0", CopySource=source)
etag = head["ETag"]
refused(412, s3.copy_object, Key="x", CopySource=source, CopySourceIfNoneMatch=etag)
refused(412, s3.copy_object, Key="x", CopySource=source, CopySourceIfMatch='"no"')
s3.copy_object(Bucket=BUCKET, Key="x", CopySource=source, CopySourceIfMatch=etag)
refused("NoSuchKey", s3.copy_object, Key="x", CopySource={"Bucket": BUCKET, "Key": "none"})
refused("NoSuchBucket", s3.copy_object, Key="x", CopySource={"Bucket": "nowhere", "Key": "none"})

# Tags.
s3.put_object_tagging(Bucket=BUCKET, Key="x", Tagging={"TagSet": [{"Key": "k +", "Value": "v\u00e9"}]})
assert s3.get_object_tagging(Bucket=BUCKET, Key="x")["TagSet"] == [{"Key": "k +", "Value": "v\u00e9"}]
assert s3.head_object(Bucket=BUCKET, Key="x").get("TagCount", 1) == 1
s3.delete_object_tagging(Bucket=BUCKET, Key="x")
assert s3.get_object_tagging(Bucket=BUCKET, Key="x")["TagSet"] == []
assert get("x") == bodies["src/0"]
refused("NoSuchKey", s3.get_object_tagging, Key="none")

# Conditions, decided when the object is committed.
put("once", b"first", IfNoneMatch="*")
refused(412, s3.put_object, Key="once", Body=b"second", IfNoneMatch="*")
etag = put("once", b"third", IfMatch=f'"{hashlib.md5(b"first").hexdigest()}"')["ETag"]
refused(412, s3.put_object, Key="once", Body=b"x", IfMatch='"no"')
refused("NoSuchKey", s3.put_object, Key="never", Body=b"x", IfMatch=etag)
assert get("once") == b"third"
won = []
barrier = threading.Barrier(8)


def race(n):
    client = boto3.client("s3", endpoint_url=endpoint)
    barrier.wait()
    try:
        client.put_object(Bucket=BUCKET, Key="race", Body=bytes([n]) * 100000, IfNoneMatch="*")
        won.append(n)
    except ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412, error


threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(won) == 1 and get("race") == bytes(won) * 100000, won

# Listings, compared with what they must be, whatever the page.
keys = sorted({f"list/{random.choice('abc')}/{random.randrange(300):03}{random.choice(['', '/z', ' +&%'])}" for _ in range(400)})
keys += ["list/a\U0010ffff", "list/a!"]
for key in keys:
    put(key, b"")
keys.sort(key=lambda key: key.encode())


def expected(prefix, delimiter):
    names, folders = [], []
    for key in (k for k in keys if k.startswith(prefix)):
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if found:
            folder = prefix + head + delimiter
            if folder not in folders:
                folders.append(folder)
        else:
            names.append(key)
    return names, folders


for version in ("list_objects", "list_objects_v2"):
    for prefix, delimiter, size in (
        ("list/", "", 1000), ("list/", "", 7), ("list/", "/", 2), ("list/a", "/", 1), ("list/b/", "/", 3), ("list/", "a", 5)
    ):
        pages = s3.get_paginator(version).paginate(
            Bucket=BUCKET, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}
        )
        names, folders = [], []
        for page in pages:
            found = [o["Key"] for o in page.get("Contents", [])]
            folded = [p["Prefix"] for p in page.get("CommonPrefixes", [])]
            assert len(found) + len(folded) <= size
            names += found
            folders += folded
        assert (names, folders) == expected(prefix, delimiter), (version, prefix, delimiter, size)
page = s3.list_objects_v2(Bucket=BUCKET, StartAfter=keys[5], MaxKeys=2, Prefix="list/", FetchOwner=True)
assert [o["Key"] for o in page["Contents"]] == keys[6:8] and page["Contents"][0]["Owner"]["ID"]
assert s3.list_objects_v2(Bucket=BUCKET, MaxKeys=0)["KeyCount"] == 0
refused("NoSuchBucket", s3.list_objects_v2, Bucket="nowhere")

# Deletions of many.
answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": k} for k in keys[:50]] + [{"Key": "none"}]})
assert sorted(d["Key"] for d in answer["Deleted"]) == sorted(keys[:50] + ["none"]) and "Errors" not in answer
answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": k} for k in keys[50:]], "Quiet": True})
assert "Deleted" not in answer and "Errors" not in answer
assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET, Prefix="list/")
refused("NoSuchBucket", s3.delete_objects, Bucket="nowhere", Delete={"Objects": [{"Key": "a"}]})

# Presigned URLs.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url, method="GET", data=None, headers={}):
    request = urllib.request.Request(url, method=method, data=data, headers=headers)
    try:
        with direct.open(request) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


sign = s3.generate_presigned_url
url = sign("put_object", {"Bucket": BUCKET, "Key": "signed \u00e9", "ContentType": "text/y", "Metadata": {"m": "1"}})
status, body, _ = fetch(url, "PUT", b"signed", {"Content-Type": "text/y", "x-amz-meta-m": "1"})
assert status == 200, body
override = {"ResponseContentType": "text/z", "ResponseContentDisposition": "attachment; filename=\"f\""}
url = sign("get_object", {"Bucket": BUCKET, "Key": "signed \u00e9", **override}, ExpiresIn=60)
status, body, headers = fetch(url)
assert (status, body) == (200, b"signed"), body
assert headers["Content-Type"] == "text/z" and headers["Content-Disposition"] == 'attachment; filename="f"'
assert headers["x-amz-meta-m"] == "1"
assert fetch(url, "PUT", b"evil")[0] == 403
assert fetch(url.replace("text%2Fz", "text%2Fq"))[0] == 403
assert fetch(url.split("?")[0])[0] == 403
assert fetch(sign("list_objects_v2", {"Bucket": BUCKET, "Prefix": "src/"}))[0] == 200
assert fetch(sign("delete_object", {"Bucket": BUCKET, "Key": "signed \u00e9"}), "DELETE")[0] == 204

# Web pages.
rule = {"AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["GET"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 9}
refused("NoSuchCORSConfiguration", s3.get_bucket_cors)
s3.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": [rule]})
assert s3.get_bucket_cors(Bucket=BUCKET)["CORSRules"] == [rule]
asked = {"Origin": "https://a.example.org", "Access-Control-Request-Method": "GET"}
status, _, headers = fetch(f"{endpoint}/{BUCKET}/once", "OPTIONS", headers=asked)
assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://a.example.org", headers
# A browser sends it to the whole presigned URL of the request that follows.
signed = sign("get_object", {"Bucket": BUCKET, "Key": "once"})
assert fetch(signed, "OPTIONS", headers=asked)[0] == 200
assert fetch(signed, "OPTIONS")[0] == 400
assert fetch(f"{endpoint}/{BUCKET}/once", "OPTIONS", headers=dict(asked, Origin="https://evil.test"))[0] == 403
_, _, headers = fetch(sign("get_object", {"Bucket": BUCKET, "Key": "once"}), headers={"Origin": "https://a.example.org"})
assert headers["Access-Control-Expose-Headers"] == "ETag" and headers["Vary"].startswith("Origin"), headers
s3.delete_bucket_cors(Bucket=BUCKET)
assert fetch(f"{endpoint}/{BUCKET}/once", "OPTIONS", headers=asked)[0] == 403

# A bucket that everybody may read.
plain = f"{endpoint}/{BUCKET}/once"
assert fetch(plain)[0] == 403
refused("NoSuchBucketPolicy", s3.get_bucket_policy)
statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/on*"}
policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)
assert s3.get_bucket_policy(Bucket=BUCKET)["Policy"] == policy
time.sleep(1.1)
for _ in range(5):
    assert fetch(plain)[:2] == (200, b"third")
assert fetch(f"{endpoint}/{BUCKET}/race")[0] == 403 and fetch(f"{endpoint}/{BUCKET}")[0] == 403
assert fetch(plain, "PUT", b"evil")[0] == 403 and fetch(plain, "DELETE")[0] == 403
unknown = json.dumps({"Statement": [dict(statement, Action="s3:RestoreObject")]})
refused("NotImplemented", s3.put_bucket_policy, Policy=unknown)
denial = json.dumps({"Statement": [dict(statement, Effect="Deny")]})
s3.put_bucket_policy(Bucket=BUCKET, Policy=denial)
time.sleep(1.1)
refused("AccessDenied", s3.get_object, Key="once")
assert s3.get_bucket_policy(Bucket=BUCKET)["Policy"] == denial
s3.delete_bucket_policy(Bucket=BUCKET)
time.sleep(1.1)
assert fetch(plain)[0] == 403

# A page adds parameters of its own; those of S3 are never ignored.
s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)
time.sleep(1.1)
for query in ("ver=6.5", "_=1700000000", "utm_source=x", "v"):
    assert fetch(f"{plain}?{query}")[:2] == (200, b"third"), query
assert fetch(f"{plain}?torrent")[0] == 501
assert s3.get_bucket_policy_status(Bucket=BUCKET)["PolicyStatus"]["IsPublic"] is True
s3.delete_bucket_policy(Bucket=BUCKET)

# Configurations that no bucket has, as Terraform reads them of each bucket.
for code, operation in [
    ("NoSuchBucketPolicy", s3.get_bucket_policy_status),
    ("NoSuchTagSet", s3.get_bucket_tagging),
    ("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration),
    ("NoSuchWebsiteConfiguration", s3.get_bucket_website),
    ("ReplicationConfigurationNotFoundError", s3.get_bucket_replication),
    ("ObjectLockConfigurationNotFoundError", s3.get_object_lock_configuration),
    ("NoSuchPublicAccessBlockConfiguration", s3.get_public_access_block),
    ("ServerSideEncryptionConfigurationNotFoundError", s3.get_bucket_encryption),
]:
    refused(code, operation)
for acl in (s3.get_bucket_acl(Bucket=BUCKET), s3.get_object_acl(Bucket=BUCKET, Key="once")):
    assert acl["Owner"]["ID"] == "prism" and len(acl["Grants"]) == 1, acl
    grant = acl["Grants"][0]
    assert (grant["Grantee"]["ID"], grant["Grantee"]["Type"], grant["Permission"]) == ("prism", "CanonicalUser", "FULL_CONTROL")
assert s3.get_bucket_request_payment(Bucket=BUCKET)["Payer"] == "BucketOwner"
rules = s3.get_bucket_ownership_controls(Bucket=BUCKET)["OwnershipControls"]["Rules"]
assert rules == [{"ObjectOwnership": "BucketOwnerEnforced"}], rules
assert "Status" not in s3.get_bucket_accelerate_configuration(Bucket=BUCKET)
assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=BUCKET)
assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=BUCKET)
assert "MetricsConfigurationList" not in s3.list_bucket_metrics_configurations(Bucket=BUCKET)
for operation in (
    s3.delete_bucket_tagging,
    s3.delete_bucket_lifecycle,
    s3.delete_bucket_website,
    s3.delete_bucket_encryption,
    s3.delete_public_access_block,
):
    operation(Bucket=BUCKET)

# Buckets page by page.
pages = list(s3.get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 1}))
names = [bucket["Name"] for page in pages for bucket in page["Buckets"]]
assert len(pages) == len(names) and names == sorted(names) and {BUCKET, "other"} <= set(names), names
assert [b["Name"] for b in s3.list_buckets(Prefix="othe")["Buckets"]] == ["other"]

# What there is not is said.
assert "Status" not in s3.get_bucket_versioning(Bucket=BUCKET)
refused("NotImplemented", s3.put_bucket_acl, ACL="public-read")
tags = {"Tags": [{"Key": "cost", "Value": "centre"}]}
refused("NotImplemented", s3.create_bucket, Bucket="tagged", CreateBucketConfiguration=tags)
elsewhere = {"LocationConstraint": "eu-west-1"}
refused("IllegalLocationConstraintException", s3.create_bucket, Bucket="elsewhere", CreateBucketConfiguration=elsewhere)
source = f"{BUCKET}/once"
refused("NotImplemented", s3.copy_object, Key="k", CopySource=source, ExpectedSourceBucketOwner="9")
refused("InvalidArgument", s3.get_object, Key="once", VersionId="3")
assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
for bucket in (BUCKET, "other"):
    for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.delete_object(Bucket=bucket, Key=entry["Key"])
    s3.delete_bucket(Bucket=bucket)
print("done")
