#!/usr/bin/env python3
"""Runs applications behind Prism as their users have them, each with its usual client.

Each application has a lab of its own, of two backends with the application beside them, over
HTTP and HTTPS. `scripts/setup.sh applications` installs what is missing.

Usage: scripts/applications.py [NAME...]
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time

from applications_lab import FETCHED, ROOT, SERVER, Lab, NotInstalled, run
from applications_registries import registry, registry_store, registry_versitygw

HERE = ROOT / "scripts/applications"
PACKAGES, MODULES = FETCHED / "applications/python", FETCHED / "applications/node_modules"
PYTHON = f"PYTHONPATH={PACKAGES} exec python3"
UPLOAD_BYTES = 1 << 30


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
            lab.on_client("java", HERE / "Echo.java", url, lab.folder / "tls/ca.crt")


APPLICATIONS = {f.__name__: f for f in (registry, registry_store, registry_versitygw, git, webdav, fastapi, socketio, java)}


def main():
    names = sys.argv[1:] or list(APPLICATIONS)
    if unknown := [name for name in names if name not in APPLICATIONS]:
        sys.exit(f"applications: {unknown[0]} is none of {', '.join(APPLICATIONS)}")
    for name in names:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="prism-applications-") as directory:
            try:
                APPLICATIONS[name](Lab(directory))
                print(f"{name}: works, in {time.monotonic() - begun:.0f} s", flush=True)
            except NotInstalled as fault:
                print(f"{name}: SKIPPED from here, {fault}", flush=True)


if __name__ == "__main__":
    main()
