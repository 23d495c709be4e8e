#!/usr/bin/env bash
# Makes a .deb, an .rpm and a tarball of programs that are built: packages.sh PROGRAMS OUTPUT [FORMAT...]
#
#   PROGRAMS   the directory of `prism`, and of `prism-manual` of the same sources
#   OUTPUT     gets the packages and their SHA256SUMS; it is emptied first
#   FORMAT     deb, rpm or tar; all three without it
#
# The contents are those of the function `stage`, for all formats. Packages of the same
# sources and programs are the same, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(realpath "$1") output=$(realpath -m "$2")
shift 2
formats=${*:-deb rpm tar}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Packages sort 0.3.0~dev before 0.3.0.
version=${version/-/\~}
machine=$(uname -m)
# Files have the time of the last commit; a source tree without git has that of its changelog.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH LC_ALL=C
# The PATH of other users lacks the directories of root's programs.
PATH="$PATH:/usr/sbin:/sbin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root doc=$work/root/usr/share/doc/prism

say() { printf 'packages: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
# put MODE DIRECTORY FILE...
put() { install -D -m "$1" -t "$root/$2" "${@:3}"; }

# The files of the package, in $root.
stage() {
    put 755 usr/bin "$programs/prism"
    put 644 usr/lib/systemd/system packaging/systemd/*.service
    put 644 etc/prism packaging/prism.toml
    install -D -m 644 packaging/prism.default "$root/etc/default/prism"
    "$programs/prism-manual" "$work/manual"
    gzip -9n "$work"/manual/man/*.1
    put 644 usr/share/man/man1 "$work"/manual/man/*.gz
    install -D -m 644 "$work/manual/completions/prism.bash" \
        "$root/usr/share/bash-completion/completions/prism"
    put 644 usr/share/zsh/vendor-completions "$work/manual/completions/_prism"
    put 644 usr/share/fish/vendor_completions.d "$work/manual/completions/prism.fish"
    put 644 usr/share/doc/prism packaging/copyright docs/*.md
    put 644 usr/share/doc/prism/examples contrib/*/*
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    scripts/licences.py | gzip -9nc >"$doc/third-party-licences.gz"
    chmod 644 "$doc"/*.gz
    date_files "$root"
}

date_files() { find "$1" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +; }

# The paths of configuration files, which upgrades leave as they are.
configuration() { (cd "$root" && find etc -type f | sort | sed 's|^|/|'); }

# dpkg-shlibdeps wants a source package around it.
shared_libraries() {
    mkdir -p "$work/source/debian"
    printf 'Source: prism\n\nPackage: prism\nArchitecture: any\n' >"$work/source/debian/control"
    (cd "$work/source" && dpkg-shlibdeps -O "$root/usr/bin/prism") |
        sed -n 's/^shlibs:Depends=//p'
}

make_deb() {
    local arch depends size
    arch=$(dpkg --print-architecture) depends=$(shared_libraries)
    [ -n "$depends" ] || die 'dpkg-shlibdeps names no libraries of the program'
    size=$(du -sk --apparent-size "$root" | cut -f1)
    cp -a "$root" "$work/deb"
    mkdir "$work/deb/DEBIAN"
    sed "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$size/; s/@DEPENDS@/$depends/" \
        packaging/control >"$work/deb/DEBIAN/control"
    configuration >"$work/deb/DEBIAN/conffiles"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$work/deb/DEBIAN/md5sums"
    install -m 755 packaging/scripts/* "$work/deb/DEBIAN"
    date_files "$work/deb"
    dpkg-deb --build --root-owner-group "$work/deb" "$output/prism_$version-1_$arch.deb" >/dev/null
}

make_rpm() {
    local other=$work/rpm/root
    mkdir -p "$work/rpm"
    cp -a "$root" "$other"
    # Other distributions have this directory for the completions of packages.
    mv "$other/usr/share/zsh/vendor-completions" "$other/usr/share/zsh/site-functions"
    { configuration | sed 's/^/%config(noreplace) /'
      (cd "$other" && find usr -type f | sort | sed 's|^|/|'); } >"$work/rpm/files"
    sed -e "s/@VERSION@/$version/" -e "/@FILES@/{r $work/rpm/files" -e 'd}' \
        packaging/prism.spec >"$work/rpm/prism.spec"
    rpmbuild -bb --quiet --target "$machine" --define "_topdir $work/rpm" \
        --define "_rpmdir $output" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
        --define "prism_root $other" --define "prism_scripts $PWD/packaging/scripts" \
        --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' \
        --define 'clamp_mtime_to_source_date_epoch 1' "$work/rpm/prism.spec"
}

make_tar() {
    local name=prism-$version-$machine-linux
    tar -C "$root" --transform "s|^\.|$name|" --sort=name --owner=0 --group=0 --numeric-owner \
        -cf - . | gzip -9n >"$output/$name.tar.gz"
}

for program in prism prism-manual; do
    [ -x "$programs/$program" ] || die "there is no $programs/$program; build it first"
done
stage
rm -rf "$output"
mkdir -p "$output"
for format in $formats; do
    case $format in
    deb | rpm | tar) "make_$format" ;;
    *) die "no format '$format'; there are deb, rpm and tar" ;;
    esac
done
(cd "$output" && sha256sum -- * >SHA256SUMS)
for file in "$output"/*; do say "$file"; done
