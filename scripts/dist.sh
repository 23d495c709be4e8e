#!/usr/bin/env bash
# Builds TARGET/dist/prism for production: dist.sh
#
# The program is optimized as a whole (link-time optimization) and by a profile. It is
# built twice: the first program counts which ways its code takes while it serves in labs
# on this machine. The labs are those of prism-lab. It is installed beside the result, with
# prism-manual for packages; the builds of these two are the usual ones. Needs root for the
# labs, and what setup.sh installs for `dist`.
set -euo pipefail
cd "$(dirname "$0")/.."

# The training: short cases of `prism-lab bench` are enough to see which ways are taken.
# Objects are small, or loops over their bytes outweigh all else.
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

# With a named target cargo builds programs that run while building without FLAGS.
build() { # DIRECTORY FLAGS
    RUSTFLAGS="${RUSTFLAGS:-} $2" cargo build --profile dist --locked --package prism \
        --features otlp --target "$host" --target-dir "$1"
}

say 'building prism-lab and prism-manual'
cargo build --release --locked --package prism-lab-cli --package prism-manual --target-dir "$target"
lab=$target/release/prism-lab
say 'building the program that counts'
build "$work/counting" "-Cprofile-generate=$work/counts"
counting=$work/counting/$host/dist/prism
# The name changes with the program, because cargo notices only a new path of a profile.
profile=$work/$(sha256sum "$counting" | cut -c1-16).profdata
if [ ! -e "$profile" ]; then
    $sudo rm -rf "$work/counts"
    while read -r -a case; do
        [ "${#case[@]}" -gt 0 ] || continue
        say "training: prism-lab bench ${case[*]}"
        $sudo "$lab" bench "${case[@]}" --prism "$counting" --rounds 1 --seconds 2 >/dev/null </dev/null
    done <<<"$training"
    # Builds by other profiles are useless now.
    rm -rf "$work"/*.profdata "$work/serving"
    "$profdata" merge --output "$profile.new" "$work/counts"
    mv "$profile.new" "$profile"
fi
say 'building the program that serves'
build "$work/serving" "-Cprofile-use=$profile"
mkdir -p "$target/dist"
install "$work/serving/$host/dist/prism" "$lab" "$target/release/prism-manual" "$target/dist"
say "$target/dist/prism"
