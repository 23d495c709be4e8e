"""A session of boto3 with the store at ENDPOINT; see ../migrate.rs. Prints what each operation has
answered, without what differs each time."""

import hashlib
import json
import ssl
import sys
import urllib.error
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ENDPOINT = sys.argv[1]
BUCKET = "migrate"
SMALL, LARGE = b"some bytes\n" * 9, bytes(n * 7 % 251 for n in range(1 << 18)) * 24
KEPT = [
    "ETag", "ContentLength", "ContentType", "ContentRange", "CacheControl", "Metadata",
    "AcceptRanges", "PartNumber",
]


def client(**more):
    config = Config(
        signature_version="s3v4", retries={"max_attempts": 1}, s3={"addressing_style": "path"}
    )
    return boto3.client(
        # The certificate is for the address of one of the two proxies.
        "s3", endpoint_url=ENDPOINT, region_name="us-east-1", config=config, verify=False, **more
    )


def tell(name, call, **arguments):
    try:
        answer = call(**arguments)
    except ClientError as error:
        answer = error.response
    meta = answer["ResponseMetadata"]
    told = {field: answer[field] for field in KEPT if field in answer}
    told["status"] = meta["HTTPStatusCode"]
    told["code"] = answer.get("Error", {}).get("Code")
    told["keys"] = [entry["Key"] for entry in answer.get("Contents", [])]
    if "Body" in answer:
        told["body"] = hashlib.sha256(answer["Body"].read()).hexdigest()
    print(name, json.dumps(told, sort_keys=True))
    return answer


def fetch(name, url, **headers):
    request = urllib.request.Request(url, headers=headers)
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            body = hashlib.sha256(answer.read()).hexdigest()
            print(name, answer.status, answer.headers["ETag"], body)
    except urllib.error.HTTPError as error:
        print(name, error.code, b"<Code>" in error.read())


def main():
    s3 = client()
    tell("create", s3.create_bucket, Bucket=BUCKET)
    at = lambda key, **more: {"Bucket": BUCKET, "Key": key, **more}
    kept = {"ContentType": "text/x-own", "CacheControl": "max-age=9", "Metadata": {"owner": "a b"}}
    tell("put", s3.put_object, **at("dir/a key+%&=ä", Body=SMALL, **kept))
    tell("put large", s3.put_object, **at("large", Body=LARGE))
    tell("put checked", s3.put_object, **at("checked", Body=SMALL, ChecksumAlgorithm="SHA256"))
    tell("head", s3.head_object, **at("dir/a key+%&=ä"))
    got = tell("get", s3.get_object, **at("dir/a key+%&=ä"))
    tell("get large", s3.get_object, **at("large"))
    tell("range", s3.get_object, **at("large", Range="bytes=100-2000000"))
    tell("last bytes", s3.get_object, **at("large", Range="bytes=-7"))
    tell("no such range", s3.get_object, **at("checked", Range="bytes=1000-"))
    tell("not modified", s3.get_object, **at("dir/a key+%&=ä", IfNoneMatch=got["ETag"]))
    tell("no match", s3.get_object, **at("large", IfMatch='"0"'))
    tell("no key", s3.get_object, **at("absent"))
    tell("no key's head", s3.head_object, **at("absent"))
    tell("no bucket", s3.list_objects_v2, Bucket="absent")
    tell("copy", s3.copy_object, **at("copy", CopySource={"Bucket": BUCKET, "Key": "large"}))
    upload = s3.create_multipart_upload(**at("parts"))["UploadId"]
    parts = []
    for number, part in [(1, LARGE), (2, SMALL)]:
        sent = tell("part", s3.upload_part, **at(
            "parts", UploadId=upload, PartNumber=number, Body=part
        ))
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    tell("complete", s3.complete_multipart_upload, **at(
        "parts", UploadId=upload, MultipartUpload={"Parts": parts}
    ))
    tell("get parts", s3.get_object, **at("parts"))
    tell("list", s3.list_objects_v2, Bucket=BUCKET)
    stranger = client(aws_access_key_id="UNKNOWN", aws_secret_access_key="x" * 40)
    tell("stranger", stranger.get_object, **at("large"))
    url = s3.generate_presigned_url("get_object", Params=at("large"))
    fetch("presigned", url)
    fetch("presigned range", url, Range="bytes=5-9")
    fetch("presigned for another key", url.replace("/large?", "/copy?"))
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    for key in keys[1:]:
        tell("delete", s3.delete_object, **at(key))
    tell("delete several", s3.delete_objects, Bucket=BUCKET, Delete={"Objects": [{"Key": keys[0]}]})
    tell("delete bucket", s3.delete_bucket, Bucket=BUCKET)


main()
