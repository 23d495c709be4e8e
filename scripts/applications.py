#!/usr/bin/env python3
"""Runs applications behind Prism as their users have them, each with its usual client.

Each application has a lab of its own, of two backends with the application beside them, over
HTTP and HTTPS. `scripts/setup.sh applications` installs what is missing.

Usage: scripts/applications.py [NAME...]
"""

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "scripts/applications"
BIN = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
FETCHED = pathlib.Path(os.environ.get("PRISM_TEST_CLIENTS", pathlib.Path.home() / ".cache/prism-test-clients"))
PACKAGES, MODULES = FETCHED / "applications/python", FETCHED / "applications/node_modules"
PYTHON = f"PYTHONPATH={PACKAGES} exec python3"
NAME = "applications"
SERVER = "127.0.0.1:8000"
UPLOAD_BYTES = 1 << 30
IMAGE_BYTES = 60 << 20


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **{"text": True, **options})


class Lab:
    """A lab with an application behind it."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.urls = []

    @contextlib.contextmanager
    def up(self, server, settings="", options=()):
        lab = ["up", "--name", NAME, "--backends", "2", "--tls", "--upstream", SERVER, "--server", server]
        run(BIN / "prism-lab", *lab, *options, stdout=subprocess.DEVNULL)
        try:
            config = pathlib.Path(f"/run/prism-lab/{NAME}/prism.toml")
            text = config.read_text()
            address = re.search(r'^\[service\]\n(?:.*\n)*?address = "([\d.]+):', text, re.M)[1]
            self.urls = [f"http://{address}", f"https://{address}"]
            if settings:
                self.change(config, text, settings)
            self.wait()
            yield self
        finally:
            run(BIN / "prism-lab", "down", "--name", NAME, stdout=subprocess.DEVNULL)

    def change(self, config, text, settings):
        head, table, rest = text.partition("[service.upstream]\n")
        config.write_text(f"{head}{table}{settings}\n{rest}")
        reload = (BIN / "prism", "ctl", "reload", "--config", config)
        run(BIN / "prism-lab", "exec", "--name", NAME, "fe0", "--", *reload, stdout=subprocess.DEVNULL)

    def on_client(self, *command, **options):
        """Runs a client of the application."""
        authority = f"/run/prism-lab/{NAME}/tls/ca.crt"
        names = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
        environment = [f"{name}={authority}" for name in names]
        return run(BIN / "prism-lab", "exec", "--name", NAME, "client", "--", "env", *environment, *command, **options)

    def wait(self):
        """Waits until every node knows a server."""
        for _ in range(100):
            asked = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", self.urls[0]]
            if int(self.on_client(*asked, stdout=subprocess.PIPE).stdout) < 500:
                return
            time.sleep(0.2)
        sys.exit("applications: the application does not answer")

    def counted(self, name):
        """The sum of a counter of requests over all nodes."""
        total = 0
        for host in ("fe0", "be0", "be1"):
            asked = ("curl", "-s", "http://127.0.0.1:9464/metrics")
            shown = run(BIN / "prism-lab", "exec", "--name", NAME, host, "--", *asked, stdout=subprocess.PIPE)
            total += sum(map(float, re.findall(rf"^prism_{name} (\S+)$", shown.stdout, re.M)))
        return int(total)

    def path(self, name):
        return self.directory / name

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        return self.path(name)


def registry(lab):
    """A registry of container images, with skopeo: it pushes an image, and pulls it again."""
    config = lab.write("registry.yml", f"""version: 0.1
log: {{ level: error }}
storage: {{ filesystem: {{ rootdirectory: {lab.path("registry")} }}, delete: {{ enabled: true }} }}
http: {{ addr: "{SERVER}", secret: of-both, relativeurls: true }}
""")
    image = large_image(lab)
    with lab.up(f"exec docker-registry serve {config}"):
        for url in lab.urls:
            push_and_pull(lab, url, image)


def large_image(lab):
    """An image with a layer of IMAGE_BYTES that nothing compresses."""
    layer = lab.path("layer")
    layer.mkdir()
    (layer / "large").write_bytes(os.urandom(IMAGE_BYTES))
    image = lab.path("image")
    run("tar", "-C", layer, "-czf", lab.path("layer.tar.gz"), "large")
    make_image(image, lab.path("layer.tar.gz").read_bytes())
    return image


def push_and_pull(lab, url, image):
    scheme, address = url.split("://")
    port = 80 if scheme == "http" else 443
    target = f"docker://{address}:{port}/team/{scheme}:1"
    verify = "false" if scheme == "http" else "true"
    skopeo = ("skopeo", "--insecure-policy", "copy", "--quiet")
    lab.on_client(*skopeo, f"--dest-tls-verify={verify}", f"oci:{image}:1", target)
    back = lab.path(f"back-{scheme}")
    lab.on_client(*skopeo, f"--src-tls-verify={verify}", target, f"oci:{back}:1")
    blobs = [sorted(path.name for path in (tree / "blobs/sha256").iterdir()) for tree in (image, back)]
    assert blobs[0] == blobs[1], "another image came back"


def registry_store(lab):
    """A registry whose blobs are in the service's own store: it redirects to them, and no blob passes it."""
    config = lab.write("registry.yml", f"""version: 0.1
log: {{ level: error }}
storage:
  s3: {{ region: us-east-1, bucket: images, rootdirectory: /registry, v4auth: true, chunksize: 10485760 }}
  redirect: {{ disable: false }}
http: {{ addr: "{SERVER}", secret: of-both, relativeurls: true }}
""")
    image = large_image(lab)
    registry = "\n".join((
        "export REGISTRY_STORAGE_S3_ACCESSKEY=$AWS_ACCESS_KEY_ID REGISTRY_STORAGE_S3_SECRETKEY=$AWS_SECRET_ACCESS_KEY",
        "export REGISTRY_STORAGE_S3_REGIONENDPOINT=$AWS_ENDPOINT_URL",
        "until aws --endpoint-url $AWS_ENDPOINT_URL s3 mb s3://images; do sleep 0.2; done",
        # Its client of S3 takes SSL_CERT_FILE, and fails with the other one.
        f"unset AWS_CA_BUNDLE; exec docker-registry serve {config}",
    ))
    with lab.up(registry, options=["--objects"]):
        for url in lab.urls:
            before = lab.counted("redirects_followed_total"), lab.counted("redirects_sent_bytes_total")
            push_and_pull(lab, url, image)
            after = lab.counted("redirects_followed_total"), lab.counted("redirects_sent_bytes_total")
            assert after[0] > before[0], "no answer of the registry was followed"
            assert after[1] - before[1] >= IMAGE_BYTES, "the blobs have passed the registry"


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


def git(lab):
    """Git's own server by HTTP behind Apache: a clone, a large push in chunks, a fetch."""
    repository = lab.path("git/project.git")
    run("git", "init", "-q", "--bare", "-b", "main", repository)
    run("git", "-C", repository, "config", "http.receivepack", "true")
    lab.directory.chmod(0o755)
    run("chown", "-R", "nobody", lab.path("git"))
    modules = "/usr/lib/apache2/modules"
    config = lab.write("apache.conf", f"""ServerRoot {lab.directory}
PidFile {lab.directory}/$PRISM_HOST.pid
Listen {SERVER}
ServerName git
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule env_module {modules}/mod_env.so
LoadModule alias_module {modules}/mod_alias.so
LoadModule cgid_module {modules}/mod_cgid.so
ScriptSock {lab.directory}/$PRISM_HOST.sock
ErrorLog {lab.directory}/apache.log
User nobody
Group nogroup
SetEnv GIT_PROJECT_ROOT {lab.directory}/git
SetEnv GIT_HTTP_EXPORT_ALL 1
ScriptAlias /git/ /usr/lib/git-core/git-http-backend/
""")
    serve = f"sed s/.PRISM_HOST/$$/ {config} > {config}.$$ && exec apache2 -X -f {config}.$$"
    with lab.up(serve):
        for url in lab.urls:
            work = lab.path(url.split(":")[0])
            lab.on_client("git", "clone", "-q", f"{url}/git/project.git", work, stderr=subprocess.DEVNULL)
            (work / work.name).write_bytes(os.urandom(20 << 20))
            commit = ["git", "-C", work, "-c", "user.name=t", "-c", "user.email=t@example.com"]
            run("git", "-C", work, "add", ".")
            run(*commit, "commit", "-q", "-m", work.name)
            lab.on_client("git", "-C", work, "push", "-q", "origin", "HEAD:main", stderr=subprocess.DEVNULL)
            lab.on_client("git", "-C", work, "fetch", "-q", "origin")
            heads = [run("git", "-c", "safe.directory=*", "-C", tree, "rev-parse", name, stdout=subprocess.PIPE).stdout
                     for tree, name in ((work, "HEAD"), (repository, "main"))]
            assert heads[0] == heads[1], "the push did not arrive"


def webdav(lab):
    """WsgiDAV with rclone: directories, moves and ranges."""
    share = lab.path("share")
    share.mkdir()
    serve = f"{PYTHON} {PACKAGES}/bin/wsgidav --host 127.0.0.1 --port 8000 --root {share} --auth anonymous --quiet"
    tree = lab.path("tree")
    (tree / "inner").mkdir(parents=True)
    for n in range(20):
        (tree / f"inner/{n} ä%.bin").write_bytes(os.urandom(n * 100_000))
    with lab.up(serve):
        for url in lab.urls:
            scheme = url.split(":")[0]
            remote = f":webdav,url={url!r}:{scheme}"
            lab.on_client("rclone", "--config", "", "copy", tree, remote)
            lab.on_client("rclone", "--config", "", "check", "--download", tree, remote, stderr=subprocess.DEVNULL)
            lab.on_client("rclone", "--config", "", "moveto", f"{remote}/inner/7 ä%.bin", f"{remote}/moved.bin")
            part = ["rclone", "--config", "", "cat", "--offset", "1000", "--count", "5000", f"{remote}/moved.bin"]
            seen = lab.on_client(*part, stdout=subprocess.PIPE, text=False).stdout
            assert seen == (tree / "inner/7 ä%.bin").read_bytes()[1000:6000], "another range"
            lab.on_client("rclone", "--config", "", "purge", remote)


def fastapi(lab):
    """FastAPI: an upload of 1 GiB by curl, and tokens that arrive as they are made."""
    large = lab.path("large")
    digest = hashlib.sha256()
    with open(large, "wb") as file:
        for _ in range(UPLOAD_BYTES >> 20):
            piece = os.urandom(1 << 20)
            digest.update(piece)
            file.write(piece)
    serve = f"cd {HERE} && {PYTHON} -m uvicorn --port 8000 --log-level error app:app"
    with lab.up(serve):
        for url in lab.urls:
            sent = lab.on_client("curl", "-sS", "-F", f"file=@{large}", f"{url}/upload", stdout=subprocess.PIPE)
            assert digest.hexdigest() in sent.stdout and str(UPLOAD_BYTES) in sent.stdout, sent.stdout
            code = ("import sys,time,httpx\n"
                    "begun=time.time(); seen=[]\n"
                    "with httpx.stream('GET', sys.argv[1]) as r:\n"
                    "  for line in r.iter_lines():\n"
                    "    if line: seen.append((line, time.time()-begun))\n"
                    "assert len(seen)==21 and seen[0][1] < 0.5 < seen[-1][1], seen\n")
            lab.on_client(f"PYTHONPATH={PACKAGES}", "python3", "-c", code, f"{url}/tokens")


def socketio(lab):
    """Socket.IO: twenty clients begin with polling and go on by WebSocket."""
    chat = HERE / "chat.cjs"
    serve = f"NODE_PATH={MODULES} exec node {chat} serve 8000"
    # Its servers keep sessions in memory: https://socket.io/docs/v4/using-multiple-nodes/
    with lab.up(serve, 'cookie = "SRV"'):
        for url in lab.urls:
            lab.on_client(f"NODE_PATH={MODULES}", "node", chat, "talk", url)


def java(lab):
    """The WebSockets of a Java client."""
    serve = f"NODE_PATH={MODULES} exec node {HERE}/chat.cjs serve 8000"
    with lab.up(serve):
        for url in lab.urls:
            url = url.replace("http", "ws", 1) + "/echo"
            lab.on_client("java", HERE / "Echo.java", url, f"/run/prism-lab/{NAME}/tls/ca.crt")


APPLICATIONS = {f.__name__: f for f in (registry, registry_store, git, webdav, fastapi, socketio, java)}


def main():
    names = sys.argv[1:] or list(APPLICATIONS)
    if unknown := [name for name in names if name not in APPLICATIONS]:
        sys.exit(f"applications: {unknown[0]} is none of {', '.join(APPLICATIONS)}")
    for name in names:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="prism-applications-") as directory:
            APPLICATIONS[name](Lab(directory))
        print(f"{name}: works, in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
