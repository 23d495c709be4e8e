"""Registries of container images behind Prism, for applications.py.

Each client pushes an image and pulls it again. With a store, the registry answers a request for
a blob with a presigned URL of the store. Prism follows it, and a pull may not carry a blob
through the frontend or the registry.
"""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import time

from applications_lab import FETCHED, SERVER, require, run

IMAGE_BYTES = 60 << 20
# The share of a layer's bytes that may pass the frontend or the registry.
PASSING_SHARE = 0.01
CRANE, VERSITYGW = FETCHED / "crane", FETCHED / "versitygw"
STORE_URL = "http://store.internal/"
STORE_ADDRESS = "127.0.0.2"
BUCKET = "images"
COUNTERS = ("redirects_followed_total", "redirects_sent_bytes_total")
BLOB_GET = re.compile(r'"GET \S+/blobs/sha256:\S+ HTTP/1\.1" (\d+) (\d+)')


def registry(lab):
    """A registry of container images."""
    storage = f"filesystem: {{ rootdirectory: {lab.path('registry')} }}\n  delete: {{ enabled: true }}"
    with lab.up(f"exec docker-registry serve {write_config(lab, storage)}"):
        for image in pushed_images(lab):
            image.pull()


def registry_store(lab):
    """A registry whose blobs are in the service's own store."""
    script = write_script(lab, "$AWS_ENDPOINT_URL", 10 << 20)
    with lab.up(f"exec sh {script}", options=["--objects"]):
        for image in pushed_images(lab):
            check_pull(lab, image)


def registry_versitygw(lab):
    """A registry whose blobs are in versitygw, an upstream that no client reaches."""
    require(VERSITYGW)
    hosts = lab.write("hosts", f"127.0.0.1 localhost\n{STORE_ADDRESS} store.internal\n")
    lab.path("store").mkdir()
    script = write_script(
        lab,
        STORE_URL,
        # Each part takes a second: the registry's client sends `Expect: 100-Continue`, and
        # versitygw answers only `100-continue`.
        32 << 20,
        f"mount --bind {hosts} /etc/hosts",
        f"{VERSITYGW} --port {STORE_ADDRESS}:80 --access $AWS_ACCESS_KEY_ID --secret $AWS_SECRET_ACCESS_KEY"
        f" --keep-alive --quiet posix {lab.path('store')} &",
    )
    settings = f'name = "registry"\nredirects.locations = {{ "{STORE_URL}" = "versitygw" }}'
    store = f'[[service.upstream]]\nname = "versitygw"\ninternal = true\naddress = "{STORE_ADDRESS}:80"'
    # A mount namespace, as the name of the store is for the registry alone.
    with lab.up(f"exec unshare --mount sh {script}", settings, others=store):
        for image in pushed_images(lab):
            check_pull(lab, image)
            check_store_is_internal(lab, image)


def pushed_images(lab):
    """Pushes an image with each client, over HTTP and HTTPS."""
    for client in (skopeo, crane):
        if client is crane:
            # Only now, as the part of skopeo needs no newer Go.
            require(CRANE)
        for url in lab.urls:
            image = Image(lab, client, url)
            image.push()
            yield image


class Image:
    """An image that a client pushes to a registry, and pulls from it."""

    def __init__(self, lab, client, url):
        scheme, address = url.split("://")
        port = 80 if scheme == "http" else 443
        self.name = f"{client.__name__}-{scheme}"
        self.lab, self.made, self.back = lab, lab.path(f"image-{self.name}"), lab.path(f"back-{self.name}")
        target = f"{address}:{port}/team/{self.name}:1"
        self.commands = client(self.made, target, self.back, scheme == "https")

    def push(self):
        # A layer of its own, as clients do not send blobs again that the registry has.
        make_image(self.made, large_layer(self.lab))
        self.run(self.commands[0])

    def pull(self):
        self.run(self.commands[1])
        assert blobs_of(self.made) == blobs_of(self.back), "another image came back"

    def run(self, command):
        try:
            self.lab.on_client(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.CalledProcessError as fault:
            sys.exit(f"{self.name}: {fault.stderr}")


def skopeo(image, target, back, is_https):
    """The commands that push an image, and pull it again."""
    copy = ("skopeo", "--insecure-policy", "copy", "--quiet")
    verify = "tls-verify=" + str(is_https).lower()
    push = (*copy, f"--dest-{verify}", f"oci:{image}:1", f"docker://{target}")
    return push, (*copy, f"--src-{verify}", f"docker://{target}", f"oci:{back}:1")


def crane(image, target, back, is_https):
    """The same with crane."""
    options = [] if is_https else ["--insecure"]
    pull = (CRANE, "pull", "--format", "oci", *options, target, back)
    return (CRANE, "push", *options, image, target), pull


def write_config(lab, storage):
    return lab.write("registry.yml", f"""version: 0.1
log: {{ level: error }}
storage:
  {storage}
http: {{ addr: "{SERVER}", secret: of-both, relativeurls: true }}
""")


def write_script(lab, endpoint, part_bytes, *before):
    """The commands of the shell that run a registry with its blobs in a store."""
    config = write_config(lab, f"""redirect: {{ disable: false }}
  s3: {{ region: us-east-1, bucket: {BUCKET}, rootdirectory: /registry, v4auth: true, chunksize: {part_bytes} }}""")
    aws = f"aws --endpoint-url {endpoint} s3api"
    return lab.write("registry.sh", "\n".join((
        *before,
        "export REGISTRY_STORAGE_S3_ACCESSKEY=$AWS_ACCESS_KEY_ID REGISTRY_STORAGE_S3_SECRETKEY=$AWS_SECRET_ACCESS_KEY",
        f"export REGISTRY_STORAGE_S3_REGIONENDPOINT={endpoint}",
        # The other backend may have made the bucket.
        f"until {aws} create-bucket --bucket {BUCKET} || {aws} head-bucket --bucket {BUCKET}; do sleep 0.2; done",
        # The registry's client of S3 takes SSL_CERT_FILE, and fails with the other one.
        f"unset AWS_CA_BUNDLE; exec docker-registry serve {config} >>{access_log(lab)}",
    )))


def access_log(lab):
    return lab.path("access.log")


def check_pull(lab, image):
    """Pulls, and checks which bytes have passed the frontend and the registry."""
    known = len(blob_gets(lab))
    before = lab.frontend_bytes(), *map(lab.counted, COUNTERS)
    image.pull()
    after = lab.frontend_bytes(), *map(lab.counted, COUNTERS)
    frontend, followed, sent = (now - old for now, old in zip(after, before))
    answers = answers_to_pull(lab, known)
    by_registry = sum(size for _, size in answers)
    print(f"  {image.name}: {sent:,} bytes of blobs sent, {frontend:,} at the frontend"
          f" ({frontend / IMAGE_BYTES:.2%} of them), {by_registry:,} from the registry", flush=True)
    assert all(status == 307 for status, _ in answers) and followed == len(answers), answers
    assert sent >= IMAGE_BYTES and by_registry < PASSING_SHARE * IMAGE_BYTES, "the registry has sent blobs"
    assert frontend < PASSING_SHARE * IMAGE_BYTES, "the blobs have passed the frontend"


def blob_gets(lab):
    """The status and the bytes of each answer of the registry to a GET of a blob."""
    return [(int(status), int(size)) for status, size in BLOB_GET.findall(access_log(lab).read_text())]


def answers_to_pull(lab, known):
    """Those after the first `known` ones: of an image's configuration and of its layer."""
    for _ in range(50):
        answers = blob_gets(lab)[known:]
        # The registry logs an answer only when it has ended.
        if len(answers) >= 2:
            return answers
        time.sleep(0.1)
    sys.exit(f"the registry has answered {len(answers)} requests for blobs")


def check_store_is_internal(lab, image):
    """Checks that a URL which the registry has signed leads to a blob at a backend, and nowhere for clients."""
    blobs = (image.made / "blobs/sha256").iterdir()
    digest = max(blobs, key=lambda path: path.stat().st_size).name
    blob = f"http://{SERVER}/v2/team/{image.name}/blobs/sha256:{digest}"
    status, signed = answered(lab, "be0", blob)
    assert status == "307" and signed.startswith(STORE_URL), signed
    resolved = ("--resolve", f"store.internal:80:{STORE_ADDRESS}")
    assert answered(lab, "be0", *resolved, signed)[0] == "200", "the URL leads nowhere"
    for url in lab.urls:
        for host in ((), ("-H", "Host: store.internal")):
            target = f"{url}/{signed.removeprefix(STORE_URL)}"
            assert answered(lab, "client", *host, target)[0] == "404", "a client reaches the store"


def answered(lab, host, *request):
    """The status and the `Location` of the answer to curl at a host of the lab."""
    curl = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}")
    shown = lab.on_host(host, *curl, *request, stdout=subprocess.PIPE).stdout
    return shown.split(" ")


def blobs_of(image):
    """The digests of an image's blobs. Checks that the blobs have them."""
    blobs = list((image / "blobs/sha256").iterdir())
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, "a blob has other bytes"
    return {blob.name for blob in blobs}


def large_layer(lab):
    """A layer of IMAGE_BYTES that nothing compresses."""
    folder = lab.path("layer")
    folder.mkdir(exist_ok=True)
    (folder / "large").write_bytes(os.urandom(IMAGE_BYTES))
    run("tar", "-C", folder, "-I", "gzip -1", "-cf", lab.path("layer.tar.gz"), "large")
    return lab.path("layer.tar.gz").read_bytes()


def make_image(image, layer):
    """An image in the layout of the Open Container Initiative."""
    blobs = image / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    diff = "sha256:" + hashlib.sha256(gzip.decompress(layer)).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(layer, "layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (image / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (image / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
