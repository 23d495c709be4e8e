"""A fresh Debian 12 in a directory, in namespaces of its own: for the tests of packages."""

import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

SUITE = "bookworm"
# systemd runs the units. The rest of a package's dependencies is the matter of apt.
INCLUDED = ("systemd",)
# The longest time of one command inside, with a slow mirror.
LIMIT_S = 120
# Makes the directory $1 the root of a new mount namespace, and systemd its first process. Of
# the kernel, only what belongs to the namespaces can be written.
BOOT = r"""
set -e
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cd "$root"
pivot_root . mnt
exec chroot . sh -c 'umount -l /mnt && exec /lib/systemd/systemd --unit=basic.target'
"""


class Failed(Exception):
    """A command failed; with what it said."""


def run(*command, **options):
    """Runs a command. Returns what it said on its standard output."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False, **options)
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: status {done.returncode}\n{said}")
    return said


def mirror():
    """The mirror of this machine, or that of Debian."""
    for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found = re.search(r"^(?:deb|URIs:)\s.*?(https?://\S+/debian)/?\s", file.read(), re.M)
            if found:
                return found[1]
    return "http://deb.debian.org/debian"


def base(cache, included):
    """The path of a tarball of the system. It is made once, in a minute or two."""
    included = ",".join(included)
    key = hashlib.sha256(f"{SUITE} {included} {mirror()}".encode()).hexdigest()[:12]
    tarball = os.path.join(cache, f"{SUITE}-{key}.tar")
    if not os.path.exists(tarball):
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as root:
            subprocess.run(["debootstrap", "--variant=minbase", f"--include={included}", SUITE, root, mirror()],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            subprocess.run(["tar", "-C", root, "-cf", f"{tarball}.new", "."], check=True)
        os.rename(f"{tarball}.new", tarball)
    return tarball


def cgroups():
    """Where the control groups of version 2 are mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split()[4] for line in file if " - cgroup2 " in line]
    if not mounts:
        raise Failed("control groups of version 2 are not mounted; run: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    return mounts[0]


class Root:
    """The system, in a directory that ends with it. Nothing of the host is changed."""

    def __init__(self, cache, included=INCLUDED):
        tarball = base(cache, included)
        self.path = tempfile.mkdtemp(prefix="root-", dir=cache)
        self.boot, self.group, self.first = None, None, None
        try:
            run("tar", "-C", self.path, "-xf", tarball)
            os.chmod(self.path, 0o755)
            shutil.copyfile("/etc/resolv.conf", os.path.join(self.path, "etc/resolv.conf"))
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        """Ends all processes inside, and removes the directory."""
        if self.boot:
            # The kernel ends all processes of a namespace with its first one.
            os.kill(self.first or self.boot.pid, signal.SIGKILL)
            self.boot.wait()
        if self.group:
            self.remove_group()
        shutil.rmtree(self.path)

    def remove_group(self):
        deadline = time.monotonic() + 10
        while True:
            try:
                for directory, _, _ in os.walk(self.group, topdown=False):
                    os.rmdir(directory)
                return
            except OSError:
                # The kernel has not ended the last processes yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def inside(self, path):
        return os.path.join(self.path, path.lstrip("/"))

    def write(self, path, text, mode=0o644):
        path = self.inside(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def install(self, package, *others):
        """Installs a package, with its dependencies by apt, and other packages of Debian.
        Nothing runs inside besides."""
        shutil.copy(package, self.inside("tmp/prism.deb"))
        install = "apt-get install -q -y --no-install-recommends /tmp/prism.deb"
        script = " ".join(["apt-get update -q &&", install, *others])
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child",
                   f"--mount-proc={self.inside('proc')}", "chroot", self.path, "sh", "-c", script, env=environment)

    def start(self):
        """Starts systemd as the first process of new namespaces, with a network of its own."""
        self.group = os.path.join(cgroups(), f"prism-{os.path.basename(self.path)}")
        os.mkdir(self.group)
        join = f"echo $$ >{self.group}/cgroup.procs && exec \"$@\""
        self.boot = subprocess.Popen(
            ["sh", "-c", join, "sh", "unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup",
             "--fork", "--kill-child", "sh", "-c", BOOT, "sh", self.path],
            env={"PATH": os.environ["PATH"], "container": "prism-test"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.eventually(self.find_first)
        self.eventually(lambda: os.path.exists(f"/proc/{self.first}/root/run/systemd/private"))

    def find_first(self):
        """Finds systemd: the child of unshare."""
        with open(f"/proc/{self.boot.pid}/task/{self.boot.pid}/children", encoding="ascii") as file:
            children = file.read().split()
        self.first = int(children[0]) if children else None
        return self.first

    def eventually(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            if self.boot.poll() is not None:
                raise Failed(f"systemd does not start:\n{self.boot.stderr.read().decode()}")
            if time.monotonic() > deadline:
                raise Failed(f"nothing has changed in {self.path} for 20 s")
            time.sleep(0.05)

    def call(self, *command):
        """Runs a command of the system, in its namespaces."""
        return run("nsenter", "--target", str(self.first), "--all", "--root",
                   "sh", "-c", 'cd / && exec "$@"', "sh", *command,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_COLORS": "0"})

    def from_host(self, *command):
        """Runs a command of the host, in the system's network."""
        return run("nsenter", "--target", str(self.first), "--net", *command)

    def spawn_from_host(self, *command):
        """Starts a command of the host, in the system's network."""
        return subprocess.Popen(["nsenter", "--target", str(self.first), "--net", *command])

    def state(self, unit):
        """The number of restarts of a unit, and its state in two words."""
        return self.call("systemctl", "show", "-p", "ActiveState,SubState,NRestarts", "--value", unit).split()

    def start_unit(self, unit, *command):
        """Starts a unit, and returns once it has told systemd that it is ready."""
        try:
            self.call(*(command or ("systemctl", "start", unit)))
            if (state := self.state(unit)) != ["0", "active", "running"]:
                raise Failed(f"{unit} is {state}")
        except Failed as failed:
            log = self.call("journalctl", "--no-pager", "-u", unit)
            raise Failed(f"{failed}\n{log}") from failed
