#!/usr/bin/env bash
# Installs what Prism needs on Debian 12 with Rust: setup.sh [GROUP]
#
#   build     compilers and headers
#   lint      build, Python, and the Rust components rustfmt and clippy
#   demo      build, and the programs of a lab and of the demo (the default)
#   tests     demo, bench, lint and packages without llvm-tools, and programs of tests: a
#             JDK, Go, S3 clients, ...
#   bench     demo, the servers that Prism is measured beside, matplotlib for plots, and
#             valgrind, which counts instructions
#   dist      bench, and the Rust component llvm-tools
#   packages  dist, and the programs that make packages
#   kernels   tests, and QEMU for `make test-kernels`
#   applications  tests, the applications of scripts/applications.py with their clients and
#             versitygw, and the S3 clients that take long to install: mc, and the AWS SDK for
#             JavaScript
#
# It installs only missing packages, and prints their names. It is safe to repeat, and ends
# at once if nothing is missing. Debian starts the etcd, nginx and HAProxy that it installs;
# tests and benchmarks start their own.
set -euo pipefail

# Name | command that succeeds if it is installed | Debian package
build='
clang (eBPF)          | command -v clang                     | clang
C compiler            | command -v gcc                       | gcc
make                  | command -v make                      | make
pkg-config            | command -v pkg-config                | pkg-config
C headers             | test -e /usr/include/stdio.h         | libc6-dev
kernel headers        | test -e /usr/include/linux/bpf.h     | linux-libc-dev
libelf headers        | test -e /usr/include/libelf.h        | libelf-dev
zlib headers          | test -e /usr/include/zlib.h          | zlib1g-dev
CA certificates       | test -e /etc/ssl/certs/ca-certificates.crt | ca-certificates
'
lint='
python3               | command -v python3                   | python3
'
demo='
ip and tc             | command -v tc                        | iproute2
nsenter               | command -v nsenter                   | util-linux
mount                 | command -v mount                     | mount
sysctl                | command -v sysctl                    | procps
tcpdump               | command -v tcpdump                   | tcpdump
curl                  | command -v curl                      | curl
aws                   | command -v aws                       | awscli
python3               | command -v python3                   | python3
'
tests='
debootstrap           | command -v debootstrap               | debootstrap
keys of Debian        | test -e /usr/share/keyrings/debian-archive-keyring.gpg | debian-archive-keyring
nft                   | command -v nft                       | nftables
ping                  | command -v ping                      | iputils-ping
wrk                   | command -v wrk                       | wrk
h2load                | command -v h2load                    | nghttp2-client
boto3                 | python3 -c "import boto3"            | python3-boto3
django                | /usr/bin/python3 -c "import django"  | python3-django
ffmpeg                | command -v ffmpeg                    | ffmpeg
s3cmd                 | command -v s3cmd                     | s3cmd
rclone                | command -v rclone                    | rclone
restic                | command -v restic                    | restic
s3fs                  | command -v s3fs                      | s3fs
pip                   | python3 -m pip --version             | python3-pip
mvn                   | command -v mvn                       | maven
openssl               | command -v openssl                   | openssl
etcd                  | command -v etcd                      | etcd-server
etcdctl               | command -v etcdctl                   | etcd-client
go                    | command -v go                        | golang-go
javac                 | command -v javac                     | default-jdk-headless
node                  | command -v node                      | nodejs
mkfs.ext4             | command -v mkfs.ext4                 | e2fsprogs
perl                  | command -v perl                      | perl-base
redis-cli             | command -v redis-cli                 | redis-tools
keepalived            | command -v keepalived                | keepalived
Prometheus            | command -v promtool                  | prometheus
Chromium              | command -v chromium                  | chromium
fonts                 | test -d /usr/share/fonts/truetype/dejavu | fonts-dejavu-core
'
bench='
wrk                   | command -v wrk                       | wrk
nginx                 | command -v nginx                     | nginx-light
haproxy               | command -v haproxy                   | haproxy
go                    | command -v go                        | golang-go
docker-registry       | command -v docker-registry           | docker-registry
matplotlib            | /usr/bin/python3 -c "import matplotlib" | python3-matplotlib
valgrind              | command -v valgrind                  | valgrind
'
packages='
dpkg-deb              | command -v dpkg-deb                  | dpkg
dpkg-shlibdeps        | command -v dpkg-shlibdeps            | dpkg-dev
rpmbuild              | command -v rpmbuild                  | rpm
python3               | command -v python3                   | python3
'
kernels='
QEMU                  | command -v qemu-system-x86_64        | qemu-system-x86
depmod and modprobe   | command -v depmod                    | kmod
'
applications='
docker-registry       | command -v docker-registry           | docker-registry
skopeo                | command -v skopeo                    | skopeo
apache2               | command -v apache2                   | apache2-bin
git                   | command -v git                       | git
npm                   | command -v npm                       | npm
'
group=${1:-demo}
components=
case $group in
build) needed=$build ;;
lint) needed=$build$lint components='rustfmt clippy' ;;
demo) needed=$build$demo ;;
tests) needed=$build$lint$demo$tests$bench$packages components='rustfmt clippy' ;;
bench) needed=$build$demo$bench ;;
dist) needed=$build$demo$bench components='llvm-tools' ;;
packages) needed=$build$demo$bench$packages components='llvm-tools' ;;
kernels) needed=$build$lint$demo$tests$bench$packages$kernels components='rustfmt clippy' ;;
applications) needed=$build$lint$demo$tests$bench$packages$applications components='rustfmt clippy' ;;
*)
    echo "setup: no group '$group'; there are build, lint, demo, tests, bench, dist, packages, kernels and applications" >&2
    exit 2
    ;;
esac
# The PATH of other users lacks the directories of root's programs.
PATH="$PATH:/usr/sbin:/sbin"

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "needs root for: $* (no sudo here); run it as root"
    fi
}

# Sets `missing` to the names of missing programs, and `packages` to their packages.
look() {
    missing=() packages=()
    local name probe package
    while IFS='|' read -r name probe package; do
        [ -n "$package" ] || continue
        if ! bash -c "$probe" >/dev/null 2>&1; then
            missing+=("$(echo "$name" | xargs)")
            packages+=("$(echo "$package" | xargs)")
        fi
    done <<<"$needed"
}

install_packages() {
    look
    [ "${#packages[@]}" -gt 0 ] || return 0
    say "missing: ${missing[*]}"
    command -v apt-get >/dev/null ||
        die "this is not Debian; install the contents of these packages by hand: ${packages[*]}"
    say "installing with apt-get: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -q -o DPkg::Lock::Timeout=300
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends "${packages[@]}"
    look
    # Another python3 than Debian's does not find Debian's boto3.
    [ "${#missing[@]}" = 0 ] ||
        die "still missing: ${missing[*]}; another version in front of Debian's in PATH?"
}

check_rust() {
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    command -v cargo >/dev/null ||
        die "Rust is missing; install it from https://rustup.rs, then run this again"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
    have=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" = "$wanted" ] ||
        die "Rust $have is older than $wanted; run: rustup update"
    local component
    for component in $components; do
        case $component in
        rustfmt) cargo fmt --version ;;
        llvm-tools) test -x "$(rustc --print target-libdir)/../bin/llvm-profdata" ;;
        *) cargo "$component" --version ;;
        esac >/dev/null 2>&1 && continue
        command -v rustup >/dev/null ||
            die "$component is missing, and there is no rustup to add it"
        say "adding the Rust component $component"
        rustup component add "$component"
    done
}

# The programs of tests that Debian does not have. Tests look for them in the same directory.
install_clients() {
    "$(dirname "$0")/clients/install.sh" "${PRISM_TEST_CLIENTS:-$HOME/.cache/prism-test-clients}" "$group"
}

# Applications that Debian does not have, from PyPI and npm.
install_applications() {
    local here dir
    here=$(dirname "$0")/applications
    dir=${PRISM_TEST_CLIENTS:-$HOME/.cache/prism-test-clients}/applications
    mkdir -p "$dir"
    cp "$here/package.json" "$dir/"
    npm install --silent --no-audit --no-fund --prefix "$dir"
    python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --upgrade \
        --target "$dir/python" -r "$here/requirements.txt"
}

install_packages
check_rust
case $group in tests | kernels | applications) install_clients ;; esac
case $group in applications) install_applications ;; esac
say "everything is installed for: $group"
