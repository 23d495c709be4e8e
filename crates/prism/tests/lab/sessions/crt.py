"""The S3 client of the AWS Common Runtime, on which Mountpoint and the connector of PyTorch
are built. It reads in ranges, and has neither listings nor URLs. A failure is not tried again."""

import io
import os
import pathlib
import threading
import urllib.parse

from awscrt.auth import AwsCredentialsProvider
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup
from awscrt.io import TlsConnectionOptions, TlsContextOptions
from awscrt.s3 import (
    S3ChecksumAlgorithm,
    S3ChecksumConfig,
    S3ChecksumLocation,
    S3Client,
    S3RequestTlsMode,
    S3RequestType,
    S3ResponseError,
    create_default_s3_signing_config,
)

PART = 5 << 20
WAIT_S = 60
ALGORITHMS = [
    S3ChecksumAlgorithm.CRC32,
    S3ChecksumAlgorithm.CRC32C,
    S3ChecksumAlgorithm.CRC64NVME,
    S3ChecksumAlgorithm.SHA1,
    S3ChecksumAlgorithm.SHA256,
]
endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
bucket, shared = os.environ["BUCKET"], pathlib.Path(os.environ["SHARED"])
region = os.environ["AWS_DEFAULT_REGION"]


def new_client():
    loops = EventLoopGroup(2)
    bootstrap = ClientBootstrap(loops, DefaultHostResolver(loops))
    credentials = AwsCredentialsProvider.new_environment()
    tls = {"tls_mode": S3RequestTlsMode.DISABLED}
    if endpoint.scheme == "https":
        options = TlsContextOptions()
        options.override_default_trust_store_from_path(None, os.environ["CA_FILE"])
        tls = {"tls_connection_options": TlsConnectionOptions(ClientTlsContext(options))}
    signing = create_default_s3_signing_config(region=region, credential_provider=credentials)
    return S3Client(bootstrap=bootstrap, region=region, signing_config=signing, part_size=PART, **tls)


client = new_client()


def call(method, key, body=None, kind=S3RequestType.DEFAULT, name="", **more):
    """The body of a successful answer."""
    headers = HttpHeaders([("Host", endpoint.netloc)])
    stream = None
    if body is not None:
        headers.add("Content-Length", str(len(body)))
        stream = io.BytesIO(body)
    received, ended = {}, threading.Event()
    path = urllib.parse.quote(f"/{bucket}/{key}" if key else f"/{bucket}")
    request = client.make_request(
        type=kind,
        operation_name=name,
        request=HttpRequest(method, path, headers, stream),
        on_body=lambda chunk, offset, **_: received.update({offset: bytes(chunk)}),
        on_done=lambda **_: ended.set(),
        **more,
    )
    try:
        request.finished_future.result(WAIT_S)
    except S3ResponseError as error:
        print(method, path, error.status_code, error.operation_name, error.body)
        raise
    assert ended.wait(WAIT_S), key
    return b"".join(received[offset] for offset in sorted(received))


def put(key, body, algorithm=None):
    checksum = {}
    if algorithm:
        config = S3ChecksumConfig(algorithm=algorithm, location=S3ChecksumLocation.TRAILER)
        checksum = {"checksum_config": config}
    call("PUT", key, body, S3RequestType.PUT_OBJECT, **checksum)


def check(key, body):
    """Reads an object, with a range as the first request, and with HeadObject as the first."""
    for validates in [False, True]:
        checksum = S3ChecksumConfig(validate_response=validates)
        assert call("GET", key, kind=S3RequestType.GET_OBJECT, checksum_config=checksum) == body, key


large = (shared / "large").read_bytes()
files = {str(path.relative_to(shared)): path.read_bytes() for path in (shared / "tree").rglob("*") if path.is_file()}
call("PUT", "", b"", name="CreateBucket")

# Some are empty, so that no range of them exists.
bodies = {**files, "large": large, "empty": b""}
for key, body in bodies.items():
    put(key, body)
    check(key, body)
for algorithm in ALGORITHMS:
    for name, body in {"parts": large[:12_000_000], "one part": large[:100_000], "nothing": b""}.items():
        key = f"{algorithm.name} {name}"
        bodies[key] = body
        put(key, body, algorithm)
        check(key, body)

for key in bodies:
    call("DELETE", key, name="DeleteObject")
try:
    check("empty", b"")
    raise SystemExit("a deleted object was read")
except S3ResponseError as error:
    assert error.status_code == 404, error
call("DELETE", "", name="DeleteBucket")
