#!/bin/sh
# The first process of an emulated kernel. It mounts the file systems, runs the test programs
# of /tests, and reports their results in lines that begin with "@@". scripts/kernels.py
# reads them.
export PATH=/bin HOME=/root CI=1 RUST_BACKTRACE=1 PRISM_TEST_EMULATED=1

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run /tmp /root
mount -t devpts pts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up

# Ends the emulation. QEMU's status is twice the argument plus one.
leave() {
    echo "@@ kernel"
    dmesg
    echo "@@ over $1"
    # Time for the serial port to send its buffer.
    sleep 0.2
    printf "\\$(printf %03o "$1")" | dd of=/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
    echo "the emulation cannot be left" && sleep 60
}

load() {
    modprobe -a "$@" || { echo "@@ broken modules cannot be loaded: $*"; leave 9; }
}

# keep_busy N: N processes that compute, and N that make system calls.
keep_busy() {
    for _ in $(seq "$1"); do
        (while :; do :; done) &
        dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
    done
}

# run LABEL LIMIT_S DIRECTORY PROGRAM ARGUMENTS...
run() {
    label=$1 limit=$2 directory=$3
    shift 3
    mkdir -p "$directory"
    printf '\n@@ begin %s\n' "$label"
    (cd "$directory" && CARGO_MANIFEST_DIR=$directory exec timeout -k 5 "$limit" "$@") </dev/null 2>&1
    printf '\n@@ end %s %s\n' $? "$label"
    # Namespaces of one test would disturb the next.
    left=$(ls /run/netns 2>/dev/null)
    [ -z "$left" ] || echo "@@ left namespaces" $left
}

. /tests
leave 0
