#!/usr/bin/env bash
# Builds the S3 servers that `prism-lab bench store` measures beside Prism: in the
# versions of go.mod, from Go's module proxy, and Garage from crates.io: build.sh DIR
#
# Needs Go 1.25 or later (go.dev; Debian 12's is older), 3 GB in Go's caches, and
# some twenty minutes. No test needs them.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly
for package in github.com/versity/versitygw/cmd/versitygw github.com/minio/minio; do
    echo "building $package"
    go build -o "$dir/${package##*/}" "$package"
done
echo "building garage"
cargo install garage --locked --version 2.5.0 --no-default-features \
    --features lmdb,bundled-libs --root "$dir/cargo" --target-dir "$dir/cargo/target"
mv "$dir/cargo/bin/garage" "$dir/garage"
ls -l "$dir"
