#!/usr/bin/env bash
# Installs programs of the tests that Debian lacks or has in old versions: install.sh DIR
#
#   DIR/s5cmd   Go's module proxy; versions and digests in go.mod and go.sum
#   DIR/collector   the OpenTelemetry Collector, built from collector/ and Go's module proxy
#   DIR/redis   a program with go-redis, built from redis/ and Go's module proxy
#   DIR/pebble/ Let's Encrypt's authority for tests and its DNS server; versions in pebble/
#   DIR/java/   the AWS SDK for Java from Maven Central; version in pom.xml
#   DIR/python/ pyarrow and boto3 from PyPI, to be named in PYTHONPATH
#
# Each is fetched once for its version, all at the same time. The script is safe to repeat,
# and fetches nothing that is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
pyarrow=22.0.0
# Debian's boto3 lacks conditions on writes. botocore has the same version.
boto3=1.43.11

say() { printf 'setup: %s\n' "$*"; }

# make NAME KEY COMMAND...: runs the command with a path to write to, unless DIR/NAME was
# made for this key. A run that breaks off leaves nothing behind.
make() {
    local name=$1 key=$2
    shift 2
    local mark="$dir/.$name.made" new="$dir/.$name.new"
    [ -e "$dir/$name" ] && [ "$(cat "$mark" 2>/dev/null)" = "$key" ] && return
    local start=$SECONDS
    say "fetching $name ($key)"
    rm -rf "$new"
    "$@" "$new"
    rm -rf "${dir:?}/$name"
    mv "$new" "$dir/$name"
    echo "$key" >"$mark"
    say "fetched $name in $((SECONDS - start)) s"
}

build_s5cmd() {
    (cd "$here" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -o "$1" github.com/peak/s5cmd/v2)
}

build_collector() {
    (cd "$here/collector" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -o "$1" .)
}

build_redis() {
    (cd "$here/redis" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -o "$1" .)
}

build_pebble() {
    mkdir "$1"
    (cd "$here/pebble" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -o "$1/" github.com/letsencrypt/pebble/v2/cmd/pebble \
        github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv)
}

fetch_java() {
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$1"
}

fetch_python() {
    python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore \
        --only-binary :all: --target "$1" "pyarrow==$pyarrow" "boto3==$boto3" "botocore==$boto3"
}

mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9
sum=$(cat "$here/go.mod" "$here/go.sum" "$here/pom.xml" | sha256sum | cut -c1-12)
collector=$(cat "$here"/collector/* | sha256sum | cut -c1-12)
redis=$(cat "$here"/redis/* | sha256sum | cut -c1-12)
pebble=$(cat "$here"/pebble/* | sha256sum | cut -c1-12)
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
make s5cmd "$sum" build_s5cmd &
go=$!
make collector "$collector" build_collector &
collector=$!
make redis "$redis" build_redis &
redis=$!
make pebble "$pebble" build_pebble &
pebble=$!
make java "$sum" fetch_java &
java=$!
make python "pyarrow $pyarrow, boto3 $boto3, Python $python" fetch_python &
wait "$go" && wait "$collector" && wait "$redis" && wait "$pebble" && wait "$java" && wait "$!"
