# Usage: boto.py HOST PORT CA VERSION SUITE LIST DIRECTORY
# GETs the objects of LIST with boto3, signed, the n-th answer's body into
# DIRECTORY/n. boto3 has no option for version and suite: they come from
# OPENSSL_CONF, and the suite of 1.2 from here. Prints "VERSION SUITE" as
# negotiated, a line for each connection.
import os, ssl, sys

handshake = ssl.SSLSocket.do_handshake


def reporting(self, *arguments):
    handshake(self, *arguments)
    print(self.version(), self.cipher()[0])


ssl.SSLSocket.do_handshake = reporting
wrap_socket = ssl.SSLContext.wrap_socket


def choosing(self, *arguments, **options):
    # Python's own list comes before that of OPENSSL_CONF.
    if sys.argv[4] == "1.2":
        self.set_ciphers(sys.argv[5])
    return wrap_socket(self, *arguments, **options)


ssl.SSLContext.wrap_socket = choosing

import boto3  # noqa: E402  after the change above
from botocore.config import Config  # noqa: E402

host, port, ca, version, suite, paths, directory = sys.argv[1:]
s3 = boto3.client(
    "s3",
    endpoint_url=os.environ["AWS_ENDPOINT_URL"],
    verify=ca,
    config=Config(retries={"total_max_attempts": 1}, read_timeout=30),
)
for n, path in enumerate(open(paths).read().split()):
    bucket, key = path[1:].split("/", 1)
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    with open(f"{directory}/{n}", "wb") as file:
        file.write(body)
