#!/bin/sh
# Makes the root directory of an image of `prism serve`: image-root.sh PROGRAM ROOT
#
# It has the program, the shared libraries that it loads, and a directory for objects that
# belongs to the user of the image. It has no shell and no other program.
set -eu
program=$1 root=$2
# The user of the Containerfile.
user=65532

mkdir -p "$root/usr/bin" "$root/etc" "$root/data" "$root/tmp"
cp "$program" "$root/usr/bin/prism"
# The last path of a line "libc.so.6 => /lib/libc.so.6 (0x...)", also of the loader.
for library in $(ldd "$program" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
echo "prism:x:$user:$user::/data:/sbin/nologin" >"$root/etc/passwd"
echo "prism:x:$user:" >"$root/etc/group"
chown "$user:$user" "$root/data"
chmod 700 "$root/data"
chmod 1777 "$root/tmp"
