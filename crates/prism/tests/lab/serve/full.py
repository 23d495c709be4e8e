"""Fills a store until it refuses, and makes room again: full.py ENDPOINT fill BYTES.

BYTES is what fits at most. `full.py ENDPOINT none` expects that there is no room at
all, `full.py ENDPOINT some` that there is again.
"""

import hashlib
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def content(number, size):
    block = hashlib.sha256(str(number).encode()).digest()
    return (block * (size // 32 + 1))[:size]


def refused(call):
    try:
        call()
    except ClientError as error:
        said = error.response
        assert said["Error"]["Code"] == "InsufficientStorage", said
        assert said["ResponseMetadata"]["HTTPStatusCode"] == 507, said
        # Repeating would not help.
        assert said["ResponseMetadata"]["RetryAttempts"] == 0, said
        return True
    return False


def without_room(client):
    # The server may give back what it had put aside, until somebody takes that as well.
    for attempt in range(1, 6):
        if refused(lambda: client.put_object(Bucket="bucket", Key="x", Body=b"x")) and refused(
            lambda: client.delete_object(Bucket="bucket", Key=f"again{attempt}")
        ):
            break
        time.sleep(0.5)
    else:
        raise AssertionError("there is room")
    assert client.get_object(Bucket="bucket", Key="again0")["Body"].read() == content(0, 1 << 20)
    assert client.list_objects_v2(Bucket="bucket", MaxKeys=1)["KeyCount"] == 1


def with_room(client):
    client.put_object(Bucket="bucket", Key="x", Body=b"x")
    client.delete_object(Bucket="bucket", Key="again0")
    client.put_object(Bucket="bucket", Key="y", Body=content(7, 300_000))
    assert client.get_object(Bucket="bucket", Key="y")["Body"].read() == content(7, 300_000)


def main():
    endpoint, what = sys.argv[1], sys.argv[2]
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", config=Config(signature_version="s3v4")
    )
    if what == "none":
        return without_room(client)
    if what == "some":
        return with_room(client)
    return fill(client, int(sys.argv[3]))


def fill(client, most):
    client.create_bucket(Bucket="bucket")
    sizes, full, number, stored = [1 << 20, 300_000, 5_000], 0, 0, {}
    while full < 3:
        # When a large one does not fit, smaller ones still do.
        size = sizes[full]
        key = f"k{number}"
        if refused(lambda: client.put_object(Bucket="bucket", Key=key, Body=content(number, size))):
            full += 1
        else:
            stored[key] = (number, size)
        number += 1
        assert number * 5_000 < 4 * most, "it is never full"
    total = sum(size for _, size in stored.values())
    assert most // 4 < total <= most, f"{total} of {most}"

    def check():
        listed = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
        keys = {entry["Key"] for page in listed for entry in page.get("Contents", [])}
        assert keys == set(stored), keys ^ set(stored)
        for key, (number, size) in stored.items():
            body = client.get_object(Bucket="bucket", Key=key)["Body"].read()
            assert body == content(number, size), key

    check()

    def upload_part():
        upload = client.create_multipart_upload(Bucket="bucket", Key="parts")["UploadId"]
        client.upload_part(
            Bucket="bucket", Key="parts", PartNumber=1, Body=content(1, 1 << 20), UploadId=upload
        )

    assert refused(upload_part)
    large = [key for key, (_, size) in stored.items() if size == 1 << 20]
    for key in large[: len(large) // 2]:
        client.delete_object(Bucket="bucket", Key=key)
        del stored[key]
    for number in range(len(large) // 4):
        key = f"again{number}"
        client.put_object(Bucket="bucket", Key=key, Body=content(number, 1 << 20))
        stored[key] = (number, 1 << 20)
    check()
    print(f"{len(stored)} objects of {total} bytes fitted into {most}")


main()
