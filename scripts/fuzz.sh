#!/usr/bin/env bash
# Builds one fuzz target and runs it: scripts/fuzz.sh TARGET SECONDS [OPTION...]
# Without arguments it lists the targets. OPTIONs and further corpora go to libFuzzer.
# `scripts/fuzz.sh TARGET 0 FILE` runs one input.
#
# The script replaces `cargo fuzz run`: a nightly compiler, coverage for libFuzzer, and the
# address sanitizer. The corpus is in $CARGO_TARGET_DIR/fuzz/corpus/TARGET, and the next run
# begins with it. Inputs that fail go to $CARGO_TARGET_DIR/fuzz/failed.
set -euo pipefail
cd "$(dirname "$0")/.."

targets() { sed -n 's/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml | grep -v '^prism-fuzz$'; }

[ $# -ge 2 ] || { echo "usage: scripts/fuzz.sh TARGET SECONDS [OPTION...]"; targets; exit 2; }
target=$1 seconds=$2
shift 2
targets | grep -qx -- "$target" || { echo "fuzz: no target $target; there are:"; targets; exit 2; }

work=${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p "$work/corpus/$target" "$work/failed"
work=$(realpath "$work")

PATH="$PATH:$HOME/.cargo/bin"
cargo +nightly --version >/dev/null 2>&1 || {
    echo "fuzz: installing a nightly Rust"
    rustup toolchain install nightly --profile minimal
}

coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# With --target, build scripts and macros are built without the sanitizer.
RUSTFLAGS="$(echo $coverage) --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1" \
    cargo +nightly build --manifest-path fuzz/Cargo.toml --release --locked \
    --target "$host" --target-dir "$work/build" --bin "$target"

program=$work/build/$host/release/$target
if [ "$seconds" = 0 ]; then
    exec "$program" -artifact_prefix="$work/failed/" "$@"
fi
exec "$program" -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 \
    -artifact_prefix="$work/failed/" -print_final_stats=1 "$work/corpus/$target" "$@"
