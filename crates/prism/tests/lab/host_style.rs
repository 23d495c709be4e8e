//! Buckets in the names of hosts (`BUCKET.s3.lab.test`), as boto3 names them: signed, presigned
//! and in preflights, over HTTP and HTTPS, on connections that move.

use crate::support::tls;
use crate::support::{output, python, turn};

const DOMAIN: &str = "s3.lab.test";

const BOTO3: &str = r#"
import boto3, os, socket, urllib.request
from botocore.config import Config

domain, lookup = os.environ["DOMAIN"], socket.getaddrinfo
def of_service(host, *rest, **more):
    return lookup(os.environ["SERVICE"] if host.endswith(domain) else host, *rest, **more)
socket.getaddrinfo = of_service

endpoint = os.environ["ENDPOINT"]
config = Config(s3={"addressing_style": "virtual"}, signature_version="s3v4")
s3 = boto3.client("s3", endpoint_url=endpoint, config=config)
# A certificate for *.domain is not for a name with another dot.
bucket = "host-style" if endpoint.startswith("https") else "host.style"
s3.create_bucket(Bucket=bucket)
body = os.urandom(300000)
keys = [f"dir/key {n}" for n in range(12)]
for key in keys:
    s3.put_object(Bucket=bucket, Key=key, Body=body)
for key in keys:
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body, key
assert s3.get_object(Bucket=bucket, Key=keys[0], Range="bytes=7-99")["Body"].read() == body[7:100]
s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": keys[1]})
upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
part = s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=body)
done = s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload,
    MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
for key in ["copy", "parts"]:
    assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(body)
listed = s3.list_objects_v2(Bucket=bucket, Prefix="dir/")["Contents"]
assert len(listed) == 12, listed

s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [
    {"AllowedOrigins": ["https://app.example.com"], "AllowedMethods": ["GET", "PUT"]}]})
for key in keys[:4]:
    params = {"Bucket": bucket, "Key": key}
    url = s3.generate_presigned_url("put_object", Params=params)
    assert f"://{bucket}.{domain}" in url, url
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "PUT"}
    preflight = urllib.request.Request(url.split("?")[0], method="OPTIONS", headers=asked)
    allowed = urllib.request.urlopen(preflight).headers["Access-Control-Allow-Origin"]
    assert allowed == "https://app.example.com", allowed
    put = urllib.request.Request(url, method="PUT", data=body[:200000])
    assert urllib.request.urlopen(put).status == 200
    url = s3.generate_presigned_url("get_object", Params=params)
    assert urllib.request.urlopen(url).read() == body[:200000], key
for key in keys + ["copy", "parts"]:
    s3.delete_object(Bucket=bucket, Key=key)
s3.delete_bucket(Bucket=bucket)
"#;

#[test]
fn boto3_names_buckets_by_hosts_over_http_and_https() {
    let Some(_turn) = turn() else { return };
    let domains = vec![DOMAIN.to_owned()];
    let cluster = tls::up_configured(3, |_| {}, move |config| config.s3.domains = domains);
    for (scheme, service) in [
        ("http", cluster.service),
        ("https", cluster.next_https_service()),
    ] {
        let before = cluster.sum("handoff", "exports_moved");
        let mut client = python(&cluster.lab);
        client.env("DOMAIN", DOMAIN);
        client.env("SERVICE", service.ip().to_string());
        // With the port, which is the default, urllib would name it where botocore, which signs,
        // does not.
        client.env("ENDPOINT", format!("{scheme}://{DOMAIN}"));
        output(client.args(["-c", BOTO3]));
        let moved = cluster.sum("handoff", "exports_moved") - before;
        assert!(moved >= 10, "{scheme}: {moved} hand-offs");
    }
}
