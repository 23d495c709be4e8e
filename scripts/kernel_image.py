"""Debian's kernels as files, and initial file systems made from this host's.

Nothing is installed. apt downloads the kernel packages, and the necessary files are
unpacked below the cache. Programs are copied from the host, with their libraries and at
the same paths. scripts/kernels.py lists the tests.
"""

import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile

# The unpacked files of a kernel package: the kernel, and modules of these directories.
UNPACKED = re.compile(
    r"(boot/vmlinuz-[^/]+|lib/modules/[^/]+/(modules\.(order|builtin[^/]*)"
    r"|kernel/(net|lib|crypto|arch|drivers/net/(tun|veth)\.ko)(/.*|[^/]*)))$"
)
# Alignment of everything in a cpio archive of the "newc" kind.
CPIO_ALIGN = 4


class ImageError(Exception):
    """A kernel or a program that is not available; the text gives the reason."""


def output(*command, **options):
    """The output of a program; an error if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(command)}: ended with status {done.returncode}")
    return done.stdout


def kernel(series, package, cache):
    """The newest kernel of a series, e.g. "6.1": (release, image, modules).

    `package` is the name of the meta-package that depends on it. Without an answer of apt,
    a kernel of the series that was unpacked earlier is used.
    """
    os.makedirs(cache, exist_ok=True)
    try:
        answer = output("apt-cache", "depends", package, stderr=subprocess.DEVNULL)
    except ImageError:
        answer = ""
    found = re.search(r"Depends: (linux-image-(\S+))", answer)
    if not found:
        kept = sorted(name for name in os.listdir(cache) if name.startswith(series + "."))
        if not kept:
            raise ImageError(f"apt knows no {package}; Debian 12 with its security updates has it, "
                             "after apt-get update")
        return unpacked(kept[-1], cache)
    concrete, release = found.groups()
    if not release.startswith(series + "."):
        raise ImageError(f"{package} is {release} here, not {series}: Debian 12 has that")
    if not os.path.isdir(os.path.join(cache, release)):
        print(f"kernels: downloading {concrete}", flush=True)
        download(concrete, release, cache)
    return unpacked(release, cache)


def download(package, release, cache):
    """Downloads a kernel package, and unpacks the files that a boot needs."""
    with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as place:
        try:
            # Root owns the directory, and apt's own user cannot write there.
            output("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", package, cwd=place)
        except ImageError as error:
            raise ImageError(f"{error}; apt's lists may be old: apt-get update") from error
        package_file = os.path.join(place, os.listdir(place)[0])
        tree = os.path.join(place, "tree")
        reader = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package_file], stdout=subprocess.PIPE)
        with tarfile.open(fileobj=reader.stdout, mode="r|") as archive:
            for member in archive:
                name = re.sub(r"^(\./)?(usr/)?", "", member.name)
                if member.isfile() and UNPACKED.match(name):
                    place_module(archive.extractfile(member).read(), os.path.join(tree, name))
        if reader.wait() != 0:
            raise ImageError(f"{package}: cannot be unpacked")
        output("depmod", "-b", tree, release)
        os.rename(tree, os.path.join(cache, release))


def place_module(content, path):
    """Writes a file. Modules are decompressed here, because an emulated processor is slow."""
    if path.endswith(".ko.xz"):
        path, content = path[:-3], lzma.decompress(content)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def unpacked(release, cache):
    tree = os.path.join(cache, release)
    return release, os.path.join(tree, "boot", f"vmlinuz-{release}"), os.path.join(tree, "lib/modules", release)


class Archive:
    """An initial file system ("newc" cpio), to which files and programs are added."""

    def __init__(self):
        self.parts = []
        self.names = set()

    def directory(self, path):
        path = path.strip("/")
        if path and path not in self.names:
            self.directory(os.path.dirname(path))
            self.entry(path, stat.S_IFDIR | 0o755, b"")

    def text(self, path, text, mode=0o644):
        self.directory(os.path.dirname(path))
        self.entry(path, stat.S_IFREG | mode, text.encode())

    def link(self, path, target):
        self.directory(os.path.dirname(path))
        self.entry(path, stat.S_IFLNK | 0o777, target.encode())

    def file(self, source, path=None):
        """Adds a host's file, at its own path or another. Links are followed."""
        path = path or source
        if path.strip("/") in self.names:
            return
        with open(source, "rb") as file:
            content = file.read()
        self.directory(os.path.dirname(path))
        self.entry(path, stat.S_IFREG | (os.stat(source).st_mode & 0o777), content)

    def program(self, source, path=None):
        """Adds a program with the libraries that it is linked to."""
        self.file(source, path)
        done = subprocess.run(["ldd", source], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        for library in re.findall(r"(/\S+) \(0x", done.stdout):
            self.file(library)

    def command(self, name):
        """Adds a program of the host at /bin."""
        # The fixed path passes over the scripts of version managers.
        source = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if not source:
            raise ImageError(f"{name} is missing here; run: scripts/setup.sh kernels")
        self.program(source, f"/bin/{name}")

    def modules(self, directory, wanted):
        """Adds kernel modules with their dependencies, for modprobe."""
        depends = {}
        with open(os.path.join(directory, "modules.dep"), encoding="ascii") as file:
            for line in file:
                module, _, others = line.partition(":")
                depends[os.path.basename(module)[:-len(".ko")].replace("-", "_")] = [module, *others.split()]
        with open(os.path.join(directory, "modules.builtin"), encoding="ascii") as file:
            builtin = {os.path.basename(line.strip())[:-len(".ko")].replace("-", "_") for line in file}
        for name in wanted:
            if name in builtin:
                continue
            if name not in depends:
                raise ImageError(f"the kernel has no module {name}")
            for module in depends[name]:
                self.file(os.path.join(directory, module), f"/lib/modules/{os.path.basename(directory)}/{module}")
        for name in os.listdir(directory):
            if name.startswith("modules."):
                self.file(os.path.join(directory, name), f"/lib/modules/{os.path.basename(directory)}/{name}")

    def entry(self, path, mode, content):
        path = path.strip("/")
        self.names.add(path)
        self.parts.append(record(path, mode, content, len(self.parts) + 1))

    def write(self, path):
        with open(path, "wb") as file:
            for part in self.parts:
                file.write(part)
            file.write(record("TRAILER!!!", 0, b"", 0))


def record(name, mode, content, inode):
    """One entry of an archive (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    fields = [inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return pad(head) + pad(content)


def pad(content):
    return content + b"\0" * (-len(content) % CPIO_ALIGN)
