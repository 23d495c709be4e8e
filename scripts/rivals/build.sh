#!/usr/bin/env bash
# Builds versitygw, an S3 server that `prism-lab bench upstream` has behind Prism, in the version
# of go.mod from Go's module proxy: build.sh DIR
#
# Needs Go 1.25 or later (go.dev; Debian 12's is older). `scripts/setup.sh applications` builds
# it for scripts/applications.py.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly
go build -o "$dir/versitygw" github.com/versity/versitygw/cmd/versitygw
ls -l "$dir"
