#!/usr/bin/env bash
# Installs programs of the tests that Debian lacks or has in old versions: install.sh DIR GROUP
#
#   DIR/s5cmd   Go's module proxy; versions and digests in go.mod and go.sum
#   DIR/collector   the OpenTelemetry Collector, built from collector/ and Go's module proxy
#   DIR/redis   a program with go-redis, built from redis/ and Go's module proxy
#   DIR/s3/     programs with minio-go and with the AWS SDK for Go, built from s3/
#   DIR/mc      MinIO's command line, for the group applications of setup.sh. It is under the
#               AGPL. Tests run it as a program of its own; Prism neither links nor ships it.
#   DIR/crane   a client of container registries, built from crane/ for the group applications
#   DIR/versitygw   an S3 server, built from ../rivals/ for the group applications
#   DIR/traefik the proxy, built from traefik/ and Go's module proxy in some minutes, for
#               the groups kernels and applications of setup.sh
#   DIR/pebble/ Let's Encrypt's authority for tests and its DNS server; versions in pebble/
#   DIR/java/   the AWS SDK for Java from Maven Central; version in pom.xml
#   DIR/python/ pyarrow and boto3 from PyPI, to be named in PYTHONPATH
#   DIR/crt/    the AWS Common Runtime from PyPI. With it in its path, boto3 would sign by it.
#
# Each is fetched once for its version, all at the same time. The script is safe to repeat,
# and fetches nothing that is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 group=$2
pyarrow=22.0.0
# Debian's boto3 lacks conditions on writes. botocore has the same version.
boto3=1.43.11
awscrt=0.38.1

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

# begin NAME KEY COMMAND...: does so beside the rest of this script, which waits at its end.
jobs=()
begin() {
    make "$@" &
    jobs+=("$!")
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

build_s3() {
    mkdir "$1"
    (cd "$here/s3" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -o "$1/" ./minio ./terraform)
}

build_mc() {
    (cd "$here/mc" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -o "$1" github.com/minio/mc)
}

build_crane() {
    (cd "$here/crane" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -o "$1" github.com/google/go-containerregistry/cmd/crane)
}

build_versitygw() {
    (cd "$here/../rivals" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -o "$1" github.com/versity/versitygw/cmd/versitygw)
}

# Whether Go is as new as the module in a directory needs it. Debian 12 has Go 1.19.
go_builds() {
    local needed have
    needed=$(sed -n 's/^go //p' "$here/$1/go.mod")
    have=$(GOTOOLCHAIN=local go env GOVERSION)
    [ "$(printf '%s\n' "$needed" "${have#go}" | sort -V | head -n1)" = "$needed" ] && return
    say "skipping ${1##*/}, which needs Go $needed; there is $have"
    false
}

build_pebble() {
    mkdir "$1"
    (cd "$here/pebble" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -o "$1/" github.com/letsencrypt/pebble/v2/cmd/pebble \
        github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv)
}

# Traefik with the provider `file` alone. The others, and the DNS of its certificates, have two
# thirds of the packages, and one of them takes 3 GB of memory to compile.
build_traefik() {
    local work="$1.work" module=github.com/traefik/traefik/v3 version
    version=$(sed -n "s|^require $module ||p" "$here/traefik/source/go.mod")
    rm -rf "$work"
    cp -r "$here/traefik" "$work"
    (cd "$work/source" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go mod download "$module")
    cp -r --no-preserve=mode "$(go env GOMODCACHE)/$module@$version" "$work/copy"
    (cd "$work/copy/pkg" && leave_out_providers)
    (cd "$work" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly \
        go build -ldflags '-s -w' -o "$1" "$module/cmd/traefik")
    rm -rf "$work"
}

# Changes the source of Traefik in this directory.
leave_out_providers() {
    local packages='ecs\|kubernetes\|docker\|consulcatalog\|nomad\|kv'
    local names='Ecs\|Kubernetes\|Knative\|Docker\|Swarm\|Consul\|Nomad\|Etcd\|ZooKeeper\|Redis'
    sed -i -e "/provider\/\($packages\)\b/d" -e "/^\t\($names\)[A-Za-z]* *\*/d" \
        -e "/Providers\.\($names\).* != nil/,/^\t}/d" config/static/static_config.go
    sed -i "/conf\.\($names\).* != nil/,/^\t}/d" provider/aggregator/aggregator.go
    sed -i -e '/providers\/dns"/d' -e 's/dns\.New.*(.*)/nil, errors.New("no provider of DNS")/' \
        provider/acme/provider.go
    rm types/k8sdetector.go
    sed -i -e '/K8sAttributesDetector/d' -e '/v3\/pkg\/types"/d' \
        observability/{metrics/otel,types/logs,types/tracing}.go
}

fetch_java() {
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$1"
}

# fetch_python PACKAGE... DIR
fetch_python() {
    python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore \
        --only-binary :all: --target "${!#}" "${@:1:$#-1}"
}

mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9
digest() { cat "$@" | sha256sum | cut -c1-12; }
sum=$(digest "$here"/{go.mod,go.sum,pom.xml})
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
begin s5cmd "$sum" build_s5cmd
begin collector "$(digest "$here"/collector/*)" build_collector
begin redis "$(digest "$here"/redis/*)" build_redis
begin pebble "$(digest "$here"/pebble/*)" build_pebble
begin java "$sum" fetch_java
begin python "pyarrow $pyarrow, boto3 $boto3, Python $python" \
    fetch_python "pyarrow==$pyarrow" "boto3==$boto3" "botocore==$boto3"
begin crt "awscrt $awscrt, Python $python" fetch_python "awscrt==$awscrt"
if go_builds s3; then
    begin s3 "$(digest "$here"/s3/{go.*,*/*})" build_s3
fi
if [ "$group" != tests ] && go_builds traefik; then
    begin traefik "$(digest "$here"/traefik/{*.*,source/*})" build_traefik
fi
if [ "$group" = applications ] && go_builds mc; then
    begin mc "$(digest "$here"/mc/*)" build_mc
fi
if [ "$group" = applications ] && go_builds crane; then
    begin crane "$(digest "$here"/crane/*)" build_crane
fi
if [ "$group" = applications ] && go_builds ../rivals; then
    begin versitygw "$(digest "$here"/../rivals/{*.go,go.*})" build_versitygw
fi
for job in "${jobs[@]}"; do
    wait "$job"
done
