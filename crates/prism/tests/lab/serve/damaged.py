"""Reads what was damaged: damaged.py ENDPOINT put|sound|first|second.

`put` stores an object of four blocks and one in the tree, `sound` finds them as
they were. With the first block damaged no answer begins; with the second, what
comes is right, and breaks off.
"""

import hashlib
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

BLOCK = 1 << 20
LARGE = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(4 * BLOCK // 32))


def read(client):
    stream = client.get_object(Bucket="bucket", Key="large")["Body"]._raw_stream
    data = b""
    try:
        while piece := stream.read(64 << 10):
            data += piece
    except Exception as error:  # urllib3 has several
        print(f"broken off after {len(data)} bytes: {error}")
    return data


def main():
    endpoint, what = sys.argv[1:]
    config = Config(signature_version="s3v4", retries={"max_attempts": 0})
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
    if what == "put":
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="large", Body=LARGE)
        client.put_object(Bucket="bucket", Key="small", Body=b"small")
    if what in ("put", "sound"):
        assert read(client) == LARGE
        assert client.get_object(Bucket="bucket", Key="small")["Body"].read() == b"small"
    if what == "second":
        data = read(client)
        assert data == LARGE[:BLOCK], len(data)
        part = client.get_object(Bucket="bucket", Key="large", Range=f"bytes={2 * BLOCK}-")
        assert part["Body"].read() == LARGE[2 * BLOCK :]
    if what == "first":
        try:
            read(client)
            raise AssertionError("a damaged object was answered")
        except ClientError as error:
            assert error.response["Error"]["Code"] == "InternalError", error.response
        try:
            client.copy_object(Bucket="bucket", Key="copy", CopySource="bucket/large")
            raise AssertionError("a damaged object was copied")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] >= 200


main()
