"""The labs of applications.py: two backends with an application beside each, and a client."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
FETCHED = pathlib.Path(os.environ.get("PRISM_TEST_CLIENTS", pathlib.Path.home() / ".cache/prism-test-clients"))
NAME = "applications"
SERVER = "127.0.0.1:8000"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **{"text": True, **options})


class NotInstalled(Exception):
    """A program is missing, and the rest of the application is skipped."""


def require(program):
    """Checks that setup.sh has built a program. It builds none for which Go is too old, as Debian 12's is."""
    if program.exists():
        return
    fault = f"{program.name} is not installed, see scripts/setup.sh applications"
    if "CI" in os.environ:
        sys.exit(f"applications: {fault}")
    raise NotInstalled(fault)


class Lab:
    """A lab with an application behind it."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.folder = pathlib.Path(f"/run/prism-lab/{NAME}")
        self.urls = []

    @contextlib.contextmanager
    def up(self, server, settings="", options=(), others=""):
        """Starts the lab. `settings` go into the table of its upstream, and `others` are further tables."""
        lab = ["up", "--name", NAME, "--backends", "2", "--tls", "--upstream", SERVER, "--server", server]
        run(BIN / "prism-lab", *lab, *options, stdout=subprocess.DEVNULL)
        try:
            config = self.folder / "prism.toml"
            text = config.read_text()
            address = re.search(r'^\[service\]\n(?:.*\n)*?address = "([\d.]+):', text, re.M)[1]
            self.urls = [f"http://{address}", f"https://{address}"]
            if settings or others:
                self.change(config, text, settings, others)
            self.wait()
            yield self
        finally:
            run(BIN / "prism-lab", "down", "--name", NAME, stdout=subprocess.DEVNULL)

    def change(self, config, text, settings, others):
        head, _, rest = text.partition("[service.upstream]\n")
        config.write_text(f"{head}[[service.upstream]]\n{settings}\n{rest}\n{others}")
        reload = (BIN / "prism", "ctl", "reload", "--config", config)
        self.on_host("fe0", *reload, stdout=subprocess.DEVNULL)

    def on_host(self, host, *command, **options):
        return run(BIN / "prism-lab", "exec", "--name", NAME, host, "--", *command, **options)

    def on_client(self, *command, **options):
        """Runs a client of the application."""
        authority = self.folder / "tls/ca.crt"
        names = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
        environment = [f"{name}={authority}" for name in names]
        return self.on_host("client", "env", *environment, *command, **options)

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
            shown = self.on_host(host, *asked, stdout=subprocess.PIPE)
            total += sum(map(float, re.findall(rf"^prism_{name} (\S+)$", shown.stdout, re.M)))
        return int(total)

    def frontend_bytes(self):
        """The bytes that the frontend's host has received and sent."""
        shown = self.on_host("fe0", "cat", "/proc/net/dev", stdout=subprocess.PIPE).stdout
        fields = re.search(r"eth0: *(.*)", shown)[1].split()
        return int(fields[0]) + int(fields[8])

    def path(self, name):
        return self.directory / name

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        return self.path(name)
