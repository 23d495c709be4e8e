#!/usr/bin/env bash
# Fails if there is unsafe code outside prism-sys, prism-hash, and the calls from C with their
# tests. Generated skeletons are not in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

places=()
for place in crates tools fuzz; do [ -d "$place" ] && places+=("$place"); done
found=$(grep -rnE --include='*.rs' --exclude-dir=target \
    '(^|[^[:alnum:]_])unsafe[[:space:]]*(\{|fn|impl|trait|extern|\()' "${places[@]}" |
    grep -vE '^crates/prism-((sys|hash|handoff-c/tests)/|handoff-c/src/ffi\.rs:)' | grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true)
if [ -n "$found" ]; then
    printf 'unsafe code where none may be:\n%s\n' "$found" >&2
    exit 1
fi
