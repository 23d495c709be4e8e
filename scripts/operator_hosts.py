"""The hosts of a cluster: fresh Debian 12 systems, each in namespaces of its own, and clients
behind the switch. They have what the operator of a cluster has: addresses and routes."""

import contextlib
import json
import os
import shutil
import subprocess
import time

from debian_root import Failed, Root, run

# Beside systemd: what the packages depend on, what the documents of Prism name, and etcd.
# Hosts in namespaces reach no mirror.
INCLUDED = ("systemd", "libelf1", "zlib1g", "iproute2", "nftables", "procps", "openssl", "curl", "socat",
            "ca-certificates", "etcd-server", "etcd-client")
# The addresses of docs/install.md and of the example in /etc/prism/prism.toml.
SWITCH = "10.0.1.1"
NODES = {"fe0": "10.0.1.11", "fe1": "10.0.1.12", "be0": "10.0.1.21", "be1": "10.0.1.22", "be2": "10.0.1.23"}
SERVICE = "203.0.113.10"
CLIENT, ROUTER = "198.51.100.2", "198.51.100.1"


class Network:
    """A network without a system. It ends with this program, however that ends."""

    def __init__(self):
        hold = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        self.holder = subprocess.Popen(hold, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 5
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            if time.monotonic() > deadline:
                raise Failed("unshare makes no network")
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()

    def enter(self, *command):
        """The command that runs `command` in this network."""
        return ["nsenter", "--target", str(self.holder.pid), "--net", *command]

    def call(self, *command, **options):
        return run(*self.enter(*command), **options)


class Host(Root):
    """A system, and what its operator does on it."""

    def __init__(self, cache, name, address):
        super().__init__(cache, INCLUDED)
        self.name, self.address = name, address
        self.write("/etc/hostname", f"{name}\n")
        self.write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n")

    def shell(self, command):
        return self.call("sh", "-c", f"cd /root && {command}")

    def follow(self, document, command, **instead):
        """Runs a command that a document of the installed package has. Words of it are replaced."""
        with open(self.inside(f"/usr/share/doc/prism/{document}"), encoding="utf-8") as file:
            if command not in file.read():
                raise Failed(f"{document} of the package has no command `{command}`")
        for word, other in instead.items():
            if word not in command:
                raise Failed(f"`{command}` has no {word}")
            command = command.replace(word, other)
        return self.shell(command)

    def copy_to(self, others, source, target=None):
        """What `scp -p` does."""
        for other in others:
            shutil.copy(self.inside(source), other.inside(target or source))

    def unit(self):
        return "prism-node" if self.name in NODES else "prism-switch"

    def process(self):
        """The process of Prism, as systemd knows it."""
        return self.call("systemctl", "show", "-p", "MainPID", "--value", self.unit()).strip()

    def log(self):
        return self.call("journalctl", "--no-pager", "-u", self.unit())

    def install(self, path):
        shutil.copy(path, self.inside("/root"))
        self.shell(f"apt install -y ./{os.path.basename(path)}")

    def counter(self, group, name):
        """A counter of this node."""
        command = "echo counters | socat - UNIX-CONNECT:/run/prism/be0.sock"
        return json.loads(self.follow("operating.md", command, be0=self.name))[group][name]


class Hosts(contextlib.ExitStack):
    """The switch and the nodes, connected by a bridge, and the clients' host."""

    def __init__(self, cache):
        super().__init__()
        try:
            self.clients, self.wires = self.enter_context(Network()), self.enter_context(Network())
            self.switch = self.enter_context(Host(cache, "switch", SWITCH))
            self.nodes = {name: self.enter_context(Host(cache, name, address)) for name, address in NODES.items()}
            self.all = [self.switch, *self.nodes.values()]
            for host in self.all:
                host.start()
            self.connect()
        except BaseException:
            self.close()
            raise

    def connect(self):
        self.wires.call("ip", "link", "add", "bridge", "type", "bridge")
        self.wires.call("ip", "link", "set", "bridge", "up")
        for host in self.all:
            # The switch has the clients on eth0, as in the example.
            inside = "eth1" if host is self.switch else "eth0"
            self.wires.call("ip", "link", "add", host.name, "type", "veth", "peer", "name", inside,
                            "netns", str(host.first))
            self.wires.call("ip", "link", "set", host.name, "master", "bridge", "up")
            host.call("ip", "address", "add", f"{host.address}/24", "dev", inside)
            host.call("ip", "link", "set", inside, "up")
        self.clients.call("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                          "netns", str(self.switch.first))
        for place, address in ((self.clients, CLIENT), (self.switch, ROUTER)):
            place.call("ip", "address", "add", f"{address}/24", "dev", "eth0")
            place.call("ip", "link", "set", "eth0", "up")
        self.clients.call("ip", "link", "set", "lo", "up")
        self.clients.call("ip", "route", "add", "default", "via", ROUTER)

    def of_role(self, role):
        return [host for name, host in self.nodes.items() if name.startswith(role)]
