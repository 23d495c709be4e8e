#!/usr/bin/env python3
"""Tries Prism as a new operator would: on fresh Debian 12 hosts, with nothing but the package
and the documents in it. The previous release is installed and serves, and is upgraded to this
build under load. Then keys are made, certificates renewed and processes replaced.

Usage: scripts/test_operator.py PREVIOUS PROGRAMS
       (PREVIOUS is what scripts/previous.sh prints, PROGRAMS the directory of prism and
       prism-manual; `make test-operator` gives both)

It needs root. The host is left as it is: hosts are in namespaces of this program.
"""

import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import operator_upgrade
from debian_root import Failed, run
from operator_hosts import NODES, SERVICE, SWITCH, CLIENT, Hosts
from steps import contains, enter_as_root, equal, eventually, run_steps

TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", "target"))
# The most seconds that one request of the load may take.
LONGEST_S = 5
# How long the load goes on before and after what is tried.
SETTLE_S = 1
CONFIGURATION = f"""
[cluster]
name = "photos"
replicas = 2

[cluster.etcd]
endpoints = ["https://{SWITCH}:2379"]
ca_file = "/etc/prism/etcd/ca.crt"
cert_file = "/etc/prism/etcd/node.crt"
key_file = "/etc/prism/etcd/node.key"

[service]
address = "{SERVICE}:80"

[service.tls]
ticket_secret_file = "/etc/prism/ticket.secrets"

[[service.tls.certificate]]
file = "/etc/prism/s3.crt"
key_file = "/etc/prism/s3.key"

[switch]
control = "{SWITCH}:7300"
key_file = "/etc/prism/switch.key"
interfaces = ["eth0", "eth1"]

[peers]
ca_file = "/etc/prism/ca.crt"
cert_dir = "/etc/prism"

[s3]
credentials_file = "/etc/prism/credentials.toml"
""" + "".join(f"""
[[node]]
name = "{name}"
address = "{address}"
roles = ["{'frontend' if name.startswith('fe') else 'backend'}"]
""" for name, address in NODES.items())
CREDENTIALS = """
[[credential]]
access_key = "OPERATOR"
secret_key = "{secret}"
admin = true
"""


class Trial:
    """The packages, the hosts, and what the operator has at home."""

    def __init__(self, previous, programs, home, hosts):
        self.home, self.hosts = home, hosts
        self.old = package(os.path.join(previous, "../sources"), previous, os.path.join(home, "old"))
        self.new = package(".", programs, os.path.join(home, "new"))
        self.secret = None

    def authority(self, *arguments):
        """The operator's authority for HTTPS and etcd, which is not Prism's matter."""
        return run("openssl", *arguments, cwd=self.home)

    def certificate(self, name, address):
        """Makes NAME.crt and NAME.key for an address, valid for servers and for clients."""
        extensions = os.path.join(self.home, "extensions")
        with open(extensions, "w", encoding="utf-8") as file:
            file.write(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self.authority("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                       f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.authority("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                       "-CAcreateserial", "-days", "365", "-extfile", extensions, "-out", f"{name}.crt")

    def give(self, host, name, path, mode=0o600):
        with open(os.path.join(self.home, name), encoding="utf-8") as file:
            host.write(path, file.read(), mode)

    def give_certificate(self, host):
        """Copies a node's certificate and key to it, from where `prism pki` made them."""
        for kind in ("key", "crt"):
            self.hosts.switch.copy_to([host], f"/root/pki/{host.name}.{kind}", f"/etc/prism/{host.name}.{kind}")

    def served_certificate(self):
        """The serial number of the certificate that clients of HTTPS get now."""
        script = f"openssl s_client -connect {SERVICE}:443 </dev/null 2>/dev/null | openssl x509 -noout -serial"
        return self.hosts.clients.call("sh", "-c", script)

    def aws(self, *arguments, key="OPERATOR", secret=None):
        """The AWS CLI on the clients' host, as docs/install.md runs it."""
        keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret or self.secret,
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1", "HOME": self.home}
        return self.hosts.clients.call("aws", "--endpoint-url", f"http://{SERVICE}", "s3", *arguments,
                                       env={**os.environ, **keys}, cwd=self.home)

    def resets(self):
        """Connections of clients that were reset or refused."""
        text = self.hosts.clients.call("cat", "/proc/net/snmp")
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        counts = dict(zip(names, values))
        return [counts[name] for name in ("EstabResets", "AttemptFails")]

    @contextlib.contextmanager
    def load(self):
        """Clients that read and write meanwhile; none of their requests may fail."""
        given = {"http": SERVICE, "https": SERVICE, "ca": os.path.join(self.home, "ca.crt"), "bucket": "first",
                 "access_key": "OPERATOR", "secret_key": self.secret}
        before = self.resets()
        program = self.hosts.clients.enter(sys.executable, "scripts/operator_load.py", json.dumps(given))
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
            try:
                time.sleep(SETTLE_S)
                yield
                time.sleep(SETTLE_S)
                said, _ = clients.communicate(timeout=60)
            finally:
                clients.kill()
        seen = json.loads(said)
        print(f"    {seen['requests']} requests, {seen['failures']} failed, the longest took "
              f"{seen['longest_s']:.2f} s", flush=True)
        if seen["failures"] or seen["requests"] < 100 or seen["longest_s"] > LONGEST_S:
            raise Failed("\n".join(seen["failed"]) or "too slow")
        equal(self.resets(), before)

    def cluster(self):
        """The cluster as the first frontend sees it."""
        said = self.hosts.nodes["fe0"].follow("operating.md", "prism ctl cluster --json")
        return {backend["name"]: backend["status"] for backend in json.loads(said)["backends"]}

    def is_in_sync(self):
        with contextlib.suppress(Failed, ValueError):
            return list(self.cluster().values()) == ["in-sync"] * 3
        return False

    def assert_healthy(self):
        contains(self.hosts.nodes["fe0"].follow("operating.md", "prism ctl status"), "healthy")


def package(sources, programs, output):
    run(os.path.join(sources, "scripts/packages.sh"), programs, output, "deb")
    [path] = glob.glob(os.path.join(output, "*.deb"))
    return path


def the_previous_package_is_installed(trial):
    for host in trial.hosts.all:
        host.install(trial.old)
    contains(trial.hosts.switch.shell("prism --version"), "prism 0.2.0")


def etcd_runs_on_the_host_of_the_switch(trial):
    trial.authority("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=authority", "-days", "365", "-keyout", "ca.key", "-out", "ca.crt")
    trial.certificate("etcd", SWITCH)
    switch = trial.hosts.switch
    switch.shell("install -d -m 755 /etc/etcd")
    for name in ("ca.crt", "etcd.crt", "etcd.key"):
        trial.give(switch, name, f"/etc/etcd/{name}")
    switch.shell("chown etcd: /etc/etcd/*")
    with open("docs/operating.md", encoding="utf-8") as file:
        settings = re.search(r"^(ETCD_.*?)```", file.read(), re.M | re.S)[1]
    switch.write("/etc/default/etcd", settings.replace("10.0.0.5", SWITCH))
    switch.start_unit("etcd")


def keys_certificates_and_credentials_are_made(trial):
    hosts, switch = trial.hosts, trial.hosts.switch
    trial.secret = switch.follow("install.md", "openssl rand -hex 20").strip()
    for host in hosts.all:
        host.follow("install.md", "install -d -m 700 /etc/prism")
        host.write("/etc/prism/prism.toml", CONFIGURATION)
        host.shell("install -d -m 700 /etc/prism/etcd")
        trial.give(host, "ca.crt", "/etc/prism/etcd/ca.crt")
        trial.certificate(host.name, host.address)
        for kind in ("crt", "key"):
            trial.give(host, f"{host.name}.{kind}", f"/etc/prism/etcd/node.{kind}")
    # The previous release has one key for all.
    switch.follow("install.md", "(umask 077; openssl rand -hex 16 > /etc/prism/switch.key)")
    switch.copy_to(hosts.nodes.values(), "/etc/prism/switch.key")
    switch.follow("install.md", "prism pki init --dir pki --nodes fe0,be0,be1 --keep-key authority.key",
                  **{"fe0,be0,be1": ",".join(NODES)})
    tickets = switch.follow("install.md", "openssl rand -hex 32")
    trial.certificate("s3", SERVICE)
    for host in hosts.nodes.values():
        switch.copy_to([host], "/root/pki/ca.crt", "/etc/prism/ca.crt")
        trial.give_certificate(host)
        host.write("/etc/prism/credentials.toml", CREDENTIALS.format(secret=trial.secret), 0o600)
    for host in hosts.of_role("fe"):
        host.write("/etc/prism/ticket.secrets", tickets, 0o600)
        trial.give(host, "s3.crt", "/etc/prism/s3.crt")
        trial.give(host, "s3.key", "/etc/prism/s3.key")


def the_hosts_are_prepared_by_hand(trial):
    """As the documents of 0.2.0 say, which had no `prism setup`."""
    switch = trial.hosts.switch
    parameters = switch.inside("/etc/sysctl.d/60-prism.conf")
    with open(parameters, encoding="utf-8") as file:
        text = file.read()
    switch.write("/etc/sysctl.d/60-prism.conf", text.replace("#net", "net"))
    switch.follow("install.md", "ip route add VIP/32 via FRONTEND", VIP=SERVICE, FRONTEND=NODES["fe0"])
    for host in trial.hosts.nodes.values():
        host.shell(f"ip route add default via {SWITCH}")
    for host in trial.hosts.of_role("fe"):
        host.follow("install.md", "ip address add VIP/32 dev lo", VIP=SERVICE)
    for host in trial.hosts.all:
        # `sysctl --system` would also write parameters that do not belong to a network.
        host.shell("sysctl -p /etc/sysctl.d/60-prism.conf")
        host.follow("install.md", "nft -f /etc/prism/notrack.nft")


def checks_before_the_start_find_no_fault(trial):
    for host in trial.hosts.all:
        host.follow("install.md", "prism check prism.toml", **{"prism.toml": "/etc/prism/prism.toml"})
        host.follow("install.md", "prism check prism.toml --node be0",
                    **{"prism.toml": "/etc/prism/prism.toml", "be0": host.name})
        host.follow("install.md", "prism doctor --config prism.toml --node be0",
                    **{"prism.toml": "/etc/prism/prism.toml", "be0": host.name})


def the_units_start(trial):
    # A frontend waits until a backend has founded the cluster.
    for host in [trial.hosts.switch, *trial.hosts.of_role("be"), *trial.hosts.of_role("fe")]:
        host.start_unit(host.unit(), "systemctl", "enable", "--now", host.unit())
    eventually("all backends are in sync", trial.is_in_sync)


def the_first_checks_succeed(trial):
    hosts = trial.hosts
    said = hosts.switch.follow("install.md", "prism ctl counters")
    contains(said, "control_ok")
    if "control_forged" in said:
        raise Failed(said)
    for host in hosts.nodes.values():
        workers = os.cpu_count()
        eventually(f"all workers of {host.name} have leases", lambda h=host: h.counter("handoff", "workers_leased") == workers)
        equal(host.counter("handoff", "workers_steering"), workers)
    contains(hosts.nodes["be0"].follow("install.md", "prism ctl cluster"), "in reach")
    route = "ip route get CLIENT"
    for host in hosts.of_role("be"):
        contains(host.follow("install.md", route, CLIENT=CLIENT), f"via {SWITCH} ")
    trial.aws("mb", "s3://first")
    with open(os.path.join(trial.home, "object"), "wb") as file:
        file.write(os.urandom(1 << 20))
    before = sum(host.counter("handoff", "exports_moved") for host in hosts.of_role("fe"))
    trial.aws("cp", "object", "s3://first/object")
    for _ in range(4):
        trial.aws("cp", "s3://first/object", "again")
    run("cmp", "object", "again", cwd=trial.home)
    contains(trial.aws("ls", "s3://first"), "1048576 object")
    moved = sum(host.counter("handoff", "exports_moved") for host in hosts.of_role("fe"))
    if moved < before + 5:
        raise Failed(f"{moved - before} connections have moved")
    equal([host.counter("handoff", "exports_kept") for host in hosts.of_role("fe")], [0, 0])


STEPS = [
    the_previous_package_is_installed,
    etcd_runs_on_the_host_of_the_switch,
    keys_certificates_and_credentials_are_made,
    the_hosts_are_prepared_by_hand,
    checks_before_the_start_find_no_fault,
    the_units_start,
    the_first_checks_succeed,
    *operator_upgrade.STEPS,
]


def main():
    previous, programs = (os.path.abspath(path) for path in sys.argv[1:])
    enter_as_root()
    cache = os.path.join(TARGET, "debootstrap")
    with tempfile.TemporaryDirectory(prefix="prism-operator-") as home, Hosts(cache) as hosts:
        run_steps(STEPS, Trial(previous, programs, home, hosts))


if __name__ == "__main__":
    main()
