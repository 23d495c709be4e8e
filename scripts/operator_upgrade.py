"""The operator's steps after the first start: the upgrade, keys, certificates, processes that
are replaced, and the end of the cluster. docs/operating.md has them."""

import json
import os
import re
import time

from debian_root import Failed, run
from operator_hosts import SERVICE
from steps import contains, equal, eventually, failing

CONFIG = "/etc/prism/prism.toml"


def the_new_package_restarts_nothing(trial):
    with trial.load():
        for host in trial.hosts.all:
            process = host.process()
            host.install(trial.new)
            equal(host.process(), process)
    # The program is the new one, the process is not.
    refused = failing(trial.hosts.nodes["be0"].shell, "prism ctl take-over be0")
    contains(refused, "older than this program; restart it")


def an_upgrade_under_load_fails_no_request(trial):
    hosts = trial.hosts
    with trial.load():
        restart(hosts.switch)
        for name in ("be0", "fe0", "be1", "fe1", "be2"):
            host = hosts.nodes[name]
            restart(host)
            eventually(f"{name} is back", lambda h=host: has_leases(h))
            eventually("all backends are in sync", trial.is_in_sync)
    for host in hosts.nodes.values():
        metrics = host.follow("operating.md", "curl http://127.0.0.1:9464/metrics")
        version = host.shell("prism --version").strip().removeprefix("prism ")
        contains(metrics, f'version="{version}"')
        if host in hosts.of_role("fe") and not host.counter("handoff", "exports_moved"):
            raise Failed(f"no connection has moved from {host.name}")
    trial.assert_healthy()


def restart(host):
    host.start_unit(host.unit(), "systemctl", "restart", host.unit())


def has_leases(host):
    return host.counter("handoff", "workers_leased") > 0


def setup_takes_over_what_was_done_by_hand(trial):
    with trial.load():
        for host in trial.hosts.all:
            # These are files of the former package.
            host.follow("operating.md", "mv /etc/sysctl.d/60-prism.conf /etc/prism/notrack.nft /root")
            node = "prism setup --config /etc/prism/prism.toml --node be0 --apply"
            switch = "prism setup --config /etc/prism/prism.toml --switch --apply"
            if host is trial.hosts.switch:
                host.follow("install.md", switch)
            else:
                host.follow("install.md", node, be0=host.name)
                # Its own route to clients is by table 7300 now.
                host.shell("ip route del default")
        checks_find_no_fault(trial)


def checks_find_no_fault(trial):
    for host in trial.hosts.all:
        for command in ("prism check prism.toml --node be0", "prism doctor --config prism.toml --node be0"):
            host.follow("install.md", command, **{"prism.toml": CONFIG, "be0": host.name})


def keys_are_made_and_limited(trial):
    node = trial.hosts.nodes["fe0"]
    said = node.follow("operating.md", "prism ctl key new [ACCESS_KEY]", **{"[ACCESS_KEY]": "READER"})
    secret = re.search(r"^secret key\s+(\S+)$", said, re.M)[1]
    reader = {"key": "READER", "secret": secret}
    refused(trial, "ls", "s3://first", **reader)
    node.follow("operating.md", "prism ctl bucket allow photos --key ACCESS_KEY --read --write",
                **{"photos": "first", "ACCESS_KEY": "READER", " --write": ""})
    trial.aws("cp", "s3://first/object", "again", **reader)
    run("cmp", "object", "again", cwd=trial.home)
    refused(trial, "cp", "object", "s3://first/other", **reader)
    node.shell("prism ctl bucket allow first --key READER --write")
    trial.aws("cp", "object", "s3://first/other", **reader)
    node.follow("operating.md", "prism ctl bucket deny photos --key ACCESS_KEY --write",
                **{"photos": "first", "ACCESS_KEY": "READER"})
    refused(trial, "rm", "s3://first/other", **reader)
    contains(node.shell("prism ctl key info READER"), "first  read")


def refused(trial, *arguments, **key):
    contains(failing(trial.aws, *arguments, **key), "AccessDenied")


def certificates_are_renewed_under_load(trial):
    hosts, home = trial.hosts, trial.hosts.switch
    with trial.load():
        before = {host.name: host.counter("handoff", "identity_loads") for host in hosts.nodes.values()}
        for host in hosts.nodes.values():
            renew(trial, host, "authority.key")
        for host in hosts.nodes.values():
            if host.counter("handoff", "identity_loads") <= before[host.name]:
                raise Failed(f"{host.name} has not loaded its certificate")
        trial.certificate("s3", SERVICE)
        serial = trial.authority("x509", "-in", "s3.crt", "-noout", "-serial").strip()
        for host in hosts.of_role("fe"):
            trial.give(host, "s3.crt", "/etc/prism/s3.crt")
            trial.give(host, "s3.key", "/etc/prism/s3.key")
        eventually("clients get the new certificate", lambda: serial in trial.served_certificate())
    contains(home.follow("install.md", "prism pki show pki"), "be2")


def renew(trial, host, key):
    loads = host.counter("handoff", "identity_loads")
    trial.hosts.switch.follow("operating.md", "prism pki issue --dir pki --key authority.key --replace be0",
                              **{"authority.key": key, "be0": host.name})
    trial.give_certificate(host)
    eventually(f"{host.name} loads its certificate", lambda: host.counter("handoff", "identity_loads") > loads)


def the_authority_is_replaced_under_load(trial):
    hosts, home = trial.hosts, trial.hosts.switch
    nodes = hosts.nodes.values()
    old = re.search(r"serial\s+(\w+)", home.follow("operating.md", "prism pki show pki/ca.crt"), re.S)[1]
    with trial.load():
        home.follow("operating.md", "prism pki new-authority --dir pki --keep-key authority-2.key")
        home.copy_to(nodes, "/root/pki/ca.crt", "/etc/prism/ca.crt")
        for host in nodes:
            eventually(f"{host.name} trusts both authorities",
                       lambda h=host: re.search(r"loaded again.*authorities.*,", h.log()))
        for host in nodes:
            renew(trial, host, "authority-2.key")
        home.follow("operating.md", "prism pki drop-authority --dir pki SERIAL", SERIAL=old)
        home.copy_to(nodes, "/root/pki/ca.crt", "/etc/prism/ca.crt")
        time.sleep(2)
    trial.assert_healthy()


def a_changed_configuration_is_loaded_under_load(trial):
    hosts = trial.hosts
    home = hosts.switch
    home.shell(f"cp {CONFIG} OLD")
    with open(home.inside("/root/OLD"), encoding="utf-8") as file:
        home.write("/root/NEW", file.read() + '\n[log]\nlevel = "debug"\n[limits]\ndrain_timeout_s = 8\n')
    said = home.follow("operating.md", "prism check --diff OLD NEW")
    contains(said, "log.level", "limits.drain_timeout_s")
    with trial.load():
        home.copy_to(hosts.all, "/root/NEW", CONFIG)
        home.follow("operating.md", "systemctl reload prism-switch")
        for host in hosts.nodes.values():
            process = host.process()
            contains(host.follow("operating.md", "prism ctl reload"), 'changed now: log.level: "info" -> "debug"')
            host.follow("operating.md", "systemctl reload prism-node")
            equal(host.process(), process)


def processes_are_replaced_under_load(trial):
    with trial.load():
        for host in trial.hosts.nodes.values():
            before = host.process()
            host.follow("operating.md", "prism ctl take-over NODE", NODE=host.name)
            eventually(f"systemd knows the new process of {host.name}", lambda h=host, b=before: h.process() != b)
            equal(host.state("prism-node"), ["0", "active", "running"])
            eventually("all backends are in sync", trial.is_in_sync)
    for host in trial.hosts.nodes.values():
        said = host.follow("operating.md", "echo counters | socat - UNIX-CONNECT:/run/prism/be0.sock", be0=host.name)
        equal(str(json.loads(said)["pid"]), host.process())
        # What systemd does with the new process.
        host.follow("operating.md", "systemctl reload prism-node")
    trial.assert_healthy()


def nothing_is_left_of_the_cluster(trial):
    # The switch is the last: nodes that leave ask its agent.
    for host in reversed(trial.hosts.all):
        host.shell("systemctl disable --now " + host.unit())
        if host is trial.hosts.switch:
            host.follow("install.md", "prism switch --config /etc/prism/prism.toml --unload")
        host.follow("install.md", "prism setup --remove")
        host.shell("apt purge -y prism")
        # The operator has loaded these rules by hand, and `prism setup` left them alone.
        host.shell("nft delete table ip prism")
        equal(host.shell("nft list ruleset"), "")
        if "7300" in host.shell("ip rule") or os.path.exists(host.inside("/etc/sysctl.d/60-prism.conf")):
            raise Failed(f"something is left on {host.name}")
    if "prism" in trial.hosts.switch.shell("ls /sys/fs/bpf").split():
        raise Failed("the programs of the switch are left")


STEPS = [
    the_new_package_restarts_nothing,
    an_upgrade_under_load_fails_no_request,
    setup_takes_over_what_was_done_by_hand,
    keys_are_made_and_limited,
    certificates_are_renewed_under_load,
    the_authority_is_replaced_under_load,
    a_changed_configuration_is_loaded_under_load,
    processes_are_replaced_under_load,
    nothing_is_left_of_the_cluster,
]
