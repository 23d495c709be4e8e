#!/usr/bin/env bash
# Fails if there is unsafe code outside prism-sys and prism-hash. Generated skeletons are not
# in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

places=()
for place in crates tools fuzz; do [ -d "$place" ] && places+=("$place"); done
found=$(grep -rnE --include='*.rs' --exclude-dir=target \
    '(^|[^[:alnum:]_])unsafe[[:space:]]*(\{|fn|impl|trait|extern|\()' "${places[@]}" |
    grep -vE '^crates/prism-(sys|hash)/' | grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true)
if [ -n "$found" ]; then
    printf 'unsafe code outside crates/prism-sys and crates/prism-hash:\n%s\n' "$found" >&2
    exit 1
fi
