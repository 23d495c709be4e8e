"""A session of boto3 with `prism serve`: session.py ENDPOINT fill|check.

`fill` stores, compares, changes and deletes; `check` finds what `fill` has left.
The access key is in the environment.
"""

import hashlib
import sys
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

MIB = 1 << 20
LARGE = hashlib.sha256(b"large").digest() * (12 * MIB // 32)


def body(client, key):
    return client.get_object(Bucket="first", Key=key)["Body"].read()


def fill(client):
    client.create_bucket(Bucket="first")
    client.put_object(Bucket="first", Key="small", Body=b"small", Metadata={"of": "mine"})
    client.put_object(Bucket="first", Key="gone", Body=b"x" * 100_000)
    with open("large", "wb") as file:
        file.write(LARGE)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    client.upload_file("large", "first", "large", Config=config)
    client.copy_object(Bucket="first", Key="copy", CopySource="first/small")
    client.delete_object(Bucket="first", Key="gone")
    url = client.generate_presigned_url("get_object", Params={"Bucket": "first", "Key": "small"})
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"small"
    part = client.get_object(Bucket="first", Key="large", Range="bytes=5242870-5242889")
    assert part["Body"].read() == LARGE[5242870:5242890]


def check(client):
    listed = [entry["Key"] for entry in client.list_objects_v2(Bucket="first")["Contents"]]
    assert listed == ["copy", "large", "small"], listed
    assert body(client, "copy") == body(client, "small") == b"small"
    assert client.head_object(Bucket="first", Key="small")["Metadata"] == {"of": "mine"}
    assert body(client, "large") == LARGE
    try:
        body(client, "gone")
        raise AssertionError("a deleted object was found")
    except ClientError as error:
        assert error.response["Error"]["Code"] == "NoSuchKey"


def main():
    endpoint, what = sys.argv[1:]
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                          config=Config(signature_version="s3v4"))
    if what == "fill":
        fill(client)
    check(client)


main()
