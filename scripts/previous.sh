#!/usr/bin/env bash
# Builds the previous release from the history of this repository, and prints the directory of
# its programs. A release that has been built is not built again.
#
# packaging/previous has the commit of that release.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$(sed 's/#.*//; s/[[:space:]]//g; /^$/d' packaging/previous)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/previous
programs=$target/release mark=$target/commit

die() { printf 'previous.sh: %s\n' "$*" >&2; exit 1; }

if [ "$(cat "$mark" 2>/dev/null)" != "$commit" ]; then
    git cat-file -e "$commit^{commit}" 2>/dev/null ||
        die "this repository lacks the commit $commit; fetch its whole history"
    rm -rf "$target/sources"
    mkdir -p "$target/sources"
    git archive "$commit" | tar -xC "$target/sources"
    (cd "$target/sources" &&
        CARGO_TARGET_DIR=$target cargo build --release --locked -p prism -p prism-manual \
            --features prism/otlp) >&2
    printf '%s\n' "$commit" >"$mark"
fi
printf '%s\n' "$programs"
