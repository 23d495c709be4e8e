# rclone, in parts of 8 MiB. A failure is not tried again. It signs the default port for IPv6, and
# curl leaves that out.
cat >"$SCRATCH/config" <<END
[prism]
type = s3
provider = Other
env_auth = true
force_path_style = true
endpoint = $AWS_ENDPOINT_URL
region = $AWS_DEFAULT_REGION
upload_cutoff = 8M
copy_cutoff = 100M
chunk_size = 8M
END
# What it shares with the AWS SDK refuses its HTTP client for this variable.
unset AWS_CA_BUNDLE
clone() { rclone --config "$SCRATCH/config" --ca-cert "$CA_FILE" --retries 1 --low-level-retries 1 "$@"; }

clone mkdir "prism:$BUCKET"
clone copy "$SHARED/tree" "prism:$BUCKET/tree"
clone check --download "$SHARED/tree" "prism:$BUCKET/tree"
clone sync "prism:$BUCKET/tree" "$SCRATCH/tree"
diff -r "$SHARED/tree" "$SCRATCH/tree"

clone copyto "$SHARED/large" "prism:$BUCKET/large"
clone cat --offset 1000001 --count 70000 "prism:$BUCKET/large" | cmp - "$SHARED/slice"
clone copyto "prism:$BUCKET/large" "prism:$BUCKET/copy"
clone copyto "prism:$BUCKET/copy" "$SCRATCH/back"
cmp "$SHARED/large" "$SCRATCH/back"
curl -sSf --noproxy '*' -o "$SCRATCH/signed" "$(clone link --expire 1h "prism:$BUCKET/copy")"
cmp "$SHARED/large" "$SCRATCH/signed"

clone lsf --recursive --fast-list --files-only prism:keys | LC_ALL=C sort | cmp - "$SHARED/keys"
clone lsf prism:keys | cmp - "$SHARED/folders"

clone delete "prism:$BUCKET/tree"
test -z "$(clone lsf --recursive --files-only "prism:$BUCKET/tree")"
clone purge "prism:$BUCKET"
test -z "$(clone lsf prism: | grep -Fx "$BUCKET/" || true)"
