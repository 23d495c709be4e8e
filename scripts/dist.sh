#!/usr/bin/env bash
# Builds TARGET/dist/prism, which is to serve in earnest: dist.sh
#
# As a whole (link-time optimization) and by a profile of what it does under load: it is
# built twice, the first time to count in labs on this machine which ways its code takes
# when it serves. What is in the way of nobody is small then, and what each request
# passes lies together. Needs root for the labs, and what setup.sh installs for `dist`.
set -euo pipefail
cd "$(dirname "$0")/.."

# What it is trained by: cases of `prism bench`, short, for what counts is which ways
# are taken. Small objects, or loops over their bytes outweigh all else.
training='
crossover --unshaped --sizes 64,4K,64K
crossover --unshaped --tls --sizes 64,4K,64K
upload --unshaped --sizes 64K
replicated --unshaped --sizes 16K --popularity uniform --writes 5
'
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/trained
host=$(rustc -vV | sed -n 's/^host: //p')

say() { printf 'dist: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
[ -x "$profdata" ] || die "llvm-profdata is missing; run: rustup component add llvm-tools"
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "labs need root, and there is no sudo; run it as root"
    sudo=sudo
fi

# A target is named so that programs that run while building are built without FLAGS.
build() { # DIRECTORY FLAGS
    RUSTFLAGS="${RUSTFLAGS:-} $2" cargo build --profile dist --locked --package prism \
        --target "$host" --target-dir "$1"
}

say 'building the program that counts'
build "$work/counting" "-Cprofile-generate=$work/counts"
counting=$work/counting/$host/dist/prism
# Cargo looks at a profile's path, and not into it.
profile=$work/$(sha256sum "$counting" | cut -c1-16).profdata
if [ ! -e "$profile" ]; then
    $sudo rm -rf "$work/counts"
    while read -r -a case; do
        [ "${#case[@]}" -gt 0 ] || continue
        say "training: prism bench ${case[*]}"
        $sudo "$counting" bench "${case[@]}" --rounds 1 --seconds 2 >/dev/null </dev/null
    done <<<"$training"
    # What was built by others is of no use any more.
    rm -rf "$work"/*.profdata "$work/serving"
    "$profdata" merge --output "$profile.new" "$work/counts"
    mv "$profile.new" "$profile"
fi
say 'building the program that serves'
build "$work/serving" "-Cprofile-use=$profile"
mkdir -p "$target/dist"
install "$work/serving/$host/dist/prism" "$target/dist/prism"
say "$target/dist/prism"
