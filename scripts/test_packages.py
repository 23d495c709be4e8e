#!/usr/bin/env python3
"""Makes packages of programs that are built, installs them in a fresh Debian 12, and runs the
program there, by its units too. The host is left as it is.

Usage: scripts/test_packages.py PROGRAMS [FILTER...]
       (PROGRAMS is the directory of prism and prism-manual; scripts/test.py gives it)

It needs root. Without it the tests are skipped, and say so; with CI set they fail.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from debian_root import Failed, Root, run
from steps import contains, enter_as_root, equal, run_steps

TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", "target"))
UNITS = ("prism-node", "prism-switch", "prism-serve", "prism-host")
CLUSTER = """
[cluster]
name = "test"
[service]
address = "10.9.0.1:80"
[switch]
control = "10.9.0.2:7300"
key_file = "switch.key"
interfaces = ["lo"]
[[node]]
name = "be0"
address = "10.9.0.2"
roles = ["frontend", "backend"]
[peers]
ca_file = "pki/ca.crt"
cert_dir = "pki"
[s3]
credentials_file = "credentials.toml"
"""
CREDENTIALS = '[[credential]]\naccess_key = "KEY"\nsecret_key = "secret"\n'
# A host whose link systemd-networkd manages, and its cluster.
NETWORK = "[Match]\nName=eth0\n[Network]\nAddress=10.9.1.11/24\nIPv6AcceptRA=no\n"
OTHER_CLUSTER = CLUSTER.replace("10.9.0.2:7300", "10.9.1.1:7300").replace('"10.9.0.2"', '"10.9.1.11"')
# An HTTP server that names an object for every request.
APPLICATION = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("X-Accel-Redirect", "@store/first/object")
        self.send_header("Content-Length", "0")
        self.end_headers()

HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
METRICS = "http://127.0.0.1:9464/metrics"
# Where Debian's zsh looks, and where the zsh of distributions with rpm does.
ZSH = ("/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/")


class Packages:
    """The packages, and the system into which the .deb is installed."""

    def __init__(self, programs):
        self.directory = os.path.join(TARGET, "packages-test")
        self.said = run("scripts/packages.sh", programs, self.directory)
        self.deb, self.rpm, self.tar = (self.only(f"*.{kind}") for kind in ("deb", "rpm", "tar.gz"))
        self.root = None

    def only(self, pattern):
        [path] = glob.glob(os.path.join(self.directory, pattern))
        return path

    def s3(self, address, credentials, *arguments):
        return self.root.from_host("curl", "-sS", "--fail-with-body", "--max-time", "10", "--aws-sigv4",
                                   "aws:amz:us-east-1:s3", "-u", credentials,
                                   "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", *arguments[1:],
                                   f"http://{address}/{arguments[0]}")

    def store_and_read(self, address, credentials):
        self.s3(address, credentials, "first", "-X", "PUT")
        self.s3(address, credentials, "first/object", "-X", "PUT", "--data-binary", "what was stored")
        self.assert_stored(address, credentials)

    def assert_stored(self, address, credentials):
        equal(self.s3(address, credentials, "first/object"), "what was stored")


def serve_credentials(path):
    with open(path, encoding="utf-8") as file:
        keys = dict(re.findall(r'^(\w+) = "(.*)"', file.read(), re.M))
    return f"{keys['access_key']}:{keys['secret_key']}"


def files_of_deb(packages):
    lines = run("dpkg-deb", "--contents", packages.deb).splitlines()
    return sorted(line.split(None, 5)[5][1:] for line in lines if line.startswith("-"))


def all_formats_have_the_same_files_and_the_deb_says_what_it_needs(packages):
    files = files_of_deb(packages)
    rpm = run("rpm", "-qp", "--qf", r"[%{FILEMODES:perms} %{FILENAMES}\n]", packages.rpm)
    rpm = [line.split(None, 1)[1] for line in rpm.splitlines() if line.startswith("-")]
    equal(sorted(path.replace(ZSH[1], ZSH[0]) for path in rpm), files)
    tar = run("tar", "-tzf", packages.tar).splitlines()
    equal(sorted(path[path.index("/"):] for path in tar if not path.endswith("/")), files)
    configuration = [path for path in files if path.startswith("/etc/")]
    equal(sorted(run("rpm", "-qp", "--configfiles", packages.rpm).split()), configuration)
    contains(run("dpkg-deb", "--field", packages.deb, "Depends"), "libelf1")
    contains(run("rpm", "-qp", "--requires", packages.rpm), "libelf.so.1()(64bit)")
    for script in ("preuninstall", "postinstall", "postuninstall"):
        contains(run("rpm", "-qp", "--scripts", packages.rpm), script)
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=packages.directory)


def the_deb_installs_with_its_dependencies_and_starts_nothing(packages):
    recommended = run("dpkg-deb", "--field", packages.deb, "Recommends").strip().split(", ")
    packages.root.install(packages.deb, *recommended)
    packages.root.start()
    contains(packages.root.call("prism", "--version"), "prism ")
    for unit in UNITS:
        equal(packages.root.state(unit), ["0", "inactive", "dead"])
        if os.path.exists(packages.root.inside(f"/etc/systemd/system/multi-user.target.wants/{unit}.service")):
            raise Failed(f"{unit} is enabled")


def the_manual_and_the_completions_are_there(packages):
    for page in ("prism", "prism-serve", "prism-ctl-cluster"):
        text = run("zcat", packages.root.inside(f"/usr/share/man/man1/{page}.1.gz"))
        contains(text, ".TH")
        contains(text, page.replace("-", "\\-"))
    script = ("source /usr/share/bash-completion/completions/prism; COMP_WORDS=(prism ser) COMP_CWORD=1; "
              "_prism prism ser prism; echo \"${COMPREPLY[@]}\"")
    equal(packages.root.call("bash", "-ec", script), "serve\n")
    contains(run("zcat", packages.root.inside("/usr/share/doc/prism/third-party-licences.gz")), "rustls")


def systemd_finds_no_fault_in_the_units(packages):
    paths = [f"/usr/lib/systemd/system/{unit}.service" for unit in UNITS]
    equal(packages.root.call("systemd-analyze", "verify", "--man=no", *paths), "")


def the_example_is_a_valid_configuration(packages):
    contains(packages.root.call("prism", "check", "/etc/prism/prism.toml"), "example")


def the_unit_serve_stores_objects_and_they_survive_a_restart(packages):
    packages.root.start_unit("prism-serve")
    credentials = serve_credentials(packages.root.inside("/var/lib/prism-serve/credentials.toml"))
    packages.store_and_read("127.0.0.1:9000", credentials)
    packages.root.call("systemctl", "reload", "prism-serve")
    packages.assert_stored("127.0.0.1:9000", credentials)
    packages.root.call("systemctl", "restart", "prism-serve")
    packages.assert_stored("127.0.0.1:9000", credentials)
    # The secret key stays in its file.
    journal = packages.root.call("journalctl", "--no-pager", "-u", "prism-serve")
    if credentials.partition(":")[2] in journal:
        raise Failed(f"the journal has the secret key:\n{journal}")
    packages.root.call("systemctl", "stop", "prism-serve")
    equal(packages.root.state("prism-serve"), ["0", "inactive", "dead"])


def the_unit_serve_has_an_application_beside_the_objects(packages):
    root = packages.root
    with open(root.inside("/etc/default/prism"), encoding="utf-8") as file:
        former = file.read()
    application = root.spawn_from_host("python3", "-c", APPLICATION)
    try:
        root.write("/etc/default/prism", "PRISM_SERVE_OPTIONS=--upstream 127.0.0.1:3000\n")
        root.start_unit("prism-serve")
        credentials = serve_credentials(root.inside("/var/lib/prism-serve/credentials.toml"))
        packages.assert_stored("127.0.0.1:9000", credentials)
        got = root.from_host("curl", "-sS", "--retry", "5", "--retry-all-errors", "http://127.0.0.1:9000/film")
        equal(got, "what was stored")
        root.call("systemctl", "stop", "prism-serve")
    finally:
        application.kill()
        application.wait()
        root.write("/etc/default/prism", former)


def the_units_of_a_cluster_run_with_their_capabilities_only(packages):
    root = packages.root
    root.from_host("ip", "address", "add", "10.9.0.2/32", "dev", "lo")
    packages.root.write("/etc/prism/prism.toml", CLUSTER)
    root.call("prism", "setup", "--config", "/etc/prism/prism.toml", "--node", "be0", "--apply")
    # As after a boot: the unit of the host does it again.
    root.from_host("ip", "address", "del", "10.9.0.1/32", "dev", "lo")
    root.call("nft", "flush", "ruleset")
    packages.root.write("/etc/prism/switch.key", "00112233445566778899aabbccddeeff\n", 0o600)
    packages.root.write("/etc/prism/credentials.toml", CREDENTIALS, 0o600)
    packages.root.write("/etc/default/prism", "PRISM_NODE=be0\n")
    root.call("prism", "pki", "init", "--dir", "/etc/prism/pki", "--nodes", "be0")
    packages.root.start_unit("prism-switch")
    packages.root.start_unit("prism-node")
    packages.store_and_read("10.9.0.1", "KEY:secret")
    contains(root.call("nft", "list", "ruleset"), "notrack")
    deadline = time.monotonic() + 10
    while not re.search(r"^prism_\w*workers_leased\S* [1-9]", root.from_host("curl", "-sS", METRICS), re.M):
        if time.monotonic() > deadline:
            raise Failed("the node has no lease from the switch")
        time.sleep(0.1)
    root.call("systemctl", "reload", "prism-node")
    packages.assert_stored("10.9.0.1", "KEY:secret")
    log = root.call("journalctl", "--no-pager", "-u", "prism-node", "-u", "prism-switch")
    if re.search(r"\bERROR\b|not permitted|denied", log):
        raise Failed(log)
    root.call("systemctl", "stop", "prism-node", "prism-switch")
    for unit in ("prism-node", "prism-switch"):
        equal(packages.root.state(unit), ["0", "inactive", "dead"])
    root.call("prism", "setup", "--remove")
    equal(root.call("nft", "list", "ruleset"), "")


def systemd_networkd_keeps_what_setup_has_added_to_a_link(packages):
    root = packages.root
    root.from_host("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    root.from_host("ip", "link", "set", "eth1", "up")
    packages.root.write("/etc/systemd/network/10-eth0.network", NETWORK)
    packages.root.write("/etc/prism/prism.toml", OTHER_CLUSTER)
    root.call("systemctl", "start", "systemd-networkd")

    def shows(text, *command):
        root.eventually(lambda: text in root.from_host("ip", *command))

    shows("10.9.1.11/24", "-4", "address")
    root.call("prism", "setup", "--config", "/etc/prism/prism.toml", "--node", "be0", "--apply")
    contains(root.call("prism", "setup", "--restore"), "was ready already")
    # The start of systemd-networkd has started it.
    root.eventually(lambda: root.state("prism-host")[1] == "active")
    root.call("systemctl", "stop", "prism-host")
    # It may take away routes of a link and rules that it does not know. A link that goes down
    # loses its routes. It gives a link up for good that goes down before it is configured, or
    # comes up before its address is removed.
    root.call("systemctl", "restart", "systemd-networkd")
    index = root.call("cat", "/sys/class/net/eth0/ifindex").strip()
    root.eventually(lambda: "ADMIN_STATE=configured" in root.call("cat", f"/run/systemd/netif/links/{index}"))
    root.from_host("ip", "link", "set", "eth0", "down")
    root.eventually(lambda: "10.9.1.11" not in root.from_host("ip", "address"))
    root.from_host("ip", "link", "set", "eth0", "up")
    shows("via 10.9.1.1 ", "route", "show", "table", "all")
    for number in ("32000", "32001"):
        shows(f"{number}:\tfrom 10.9.1.11", "rule")
    said = root.call("prism", "setup", "--restore")
    if "ip route" in said or "ip rule" in said:
        raise Failed(said)
    root.call("prism", "setup", "--remove")
    # Without D-Bus, as here, systemd-networkd is not told, and keeps its routes until it restarts.
    if os.path.exists(root.inside("/etc/systemd/network/10-eth0.network.d/60-prism.conf")):
        raise Failed("the file of systemd-networkd is left")
    root.call("systemctl", "stop", "systemd-networkd")


def the_program_serves_from_the_root_of_the_image(packages):
    """What the Containerfile does in its first stage, and how it starts the program."""
    with open("packaging/Containerfile", encoding="utf-8") as file:
        text = file.read()
    entry, arguments = (json.loads(re.search(rf"^{word} (\[.*\])$", text, re.M)[1]) for word in ("ENTRYPOINT", "CMD"))
    user = re.search(r"^USER (\S+)$", text, re.M)[1]
    for source in re.search(r"^COPY (.*) /build/$", text, re.M)[1].split():
        if source.startswith("packaging/"):
            run("cp", source, packages.root.inside("/tmp"))
    packages.root.call("/tmp/image-root.sh", "/usr/bin/prism", "/tmp/image")
    with subprocess.Popen(["nsenter", "--target", str(packages.root.first), "--net", "chroot",
                           f"--userspec={user}", packages.root.inside("/tmp/image"), *entry, *arguments],
                          stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]}) as server:
        try:
            printed = b""
            while b"Ctrl-C" not in (line := server.stdout.readline()):
                printed += line
                if not line:
                    raise Failed("the program ends in the image")
            file = packages.root.inside("/tmp/image/data/credentials.toml")
            credentials = serve_credentials(file)
            if credentials.partition(":")[2].encode() in printed:
                raise Failed(f"the image prints the secret key:\n{printed.decode()}")
            equal(oct(os.stat(file).st_mode & 0o777), "0o600")
            packages.store_and_read("127.0.0.1:9000", credentials)
        finally:
            server.terminate()
        equal(server.wait(20), 0)


def a_purge_stops_the_units_and_leaves_objects_and_keys(packages):
    root = packages.root
    root.call("systemctl", "enable", "--now", "prism-serve")
    root.call("dpkg", "--purge", "prism")
    for unit in UNITS:
        equal(packages.root.state(unit)[1], "inactive")
    for path in ("/usr/bin/prism", "/etc/prism/prism.toml", "/etc/default/prism",
                 "/etc/systemd/system/multi-user.target.wants/prism-serve.service"):
        if os.path.lexists(root.inside(path)):
            raise Failed(f"{path} is left")
    for path in ("/etc/prism/switch.key", "/etc/prism/pki/be0.key", "/var/lib/prism/FORMAT",
                 "/var/lib/private/prism-serve/credentials.toml", "/var/lib/private/prism-serve/store"):
        if not os.path.exists(root.inside(path)):
            raise Failed(f"{path} is gone")


def serves_what_was_stored(packages):
    """The program of another package runs, by its unit, with the store of the first one."""
    packages.root.call("systemctl", "daemon-reload")
    contains(packages.root.call("prism", "--version"), "prism ")
    packages.root.start_unit("prism-serve")
    credentials = serve_credentials(packages.root.inside("/var/lib/prism-serve/credentials.toml"))
    packages.assert_stored("127.0.0.1:9000", credentials)
    packages.root.call("systemctl", "stop", "prism-serve")


def the_rpm_installs_serves_and_leaves(packages):
    """In the same system, which has the libraries, but no database of rpm that says so."""
    rpm = ["rpm", "--root", packages.root.path, "--nodeps"]
    run(*rpm, "--install", packages.rpm)
    run(*rpm, "--verify", "prism")
    serves_what_was_stored(packages)
    run(*rpm, "--erase", "prism")
    if os.path.lexists(packages.root.inside("/usr/bin/prism")):
        raise Failed("the program is left")


def the_tarball_unpacks_and_serves(packages):
    shutil.copy(packages.tar, packages.root.inside("/root"))
    with open("docs/install.md", encoding="utf-8") as file:
        command = re.search(r"`(tar -C / [^`]*) FILE`", file.read())[1]
    packages.root.call(*command.split(), f"/root/{os.path.basename(packages.tar)}")
    serves_what_was_stored(packages)


# In this order. Each needs the one before it.
TESTS = [
    all_formats_have_the_same_files_and_the_deb_says_what_it_needs,
    the_deb_installs_with_its_dependencies_and_starts_nothing,
    the_manual_and_the_completions_are_there,
    systemd_finds_no_fault_in_the_units,
    the_example_is_a_valid_configuration,
    the_unit_serve_stores_objects_and_they_survive_a_restart,
    the_unit_serve_has_an_application_beside_the_objects,
    the_units_of_a_cluster_run_with_their_capabilities_only,
    systemd_networkd_keeps_what_setup_has_added_to_a_link,
    the_program_serves_from_the_root_of_the_image,
    a_purge_stops_the_units_and_leaves_objects_and_keys,
    the_rpm_installs_serves_and_leaves,
    the_tarball_unpacks_and_serves,
]


def main():
    programs = os.path.abspath(sys.argv[1])
    enter_as_root()
    packages = Packages(programs)
    with Root(os.path.join(TARGET, "debootstrap")) as packages.root:
        run_steps(TESTS, packages)


if __name__ == "__main__":
    main()
