# s5cmd, in parts of 5 MiB. A failure is not tried again. It signs the default port for IPv6, and
# curl leaves that out.
five() { "$CLIENTS/s5cmd" --endpoint-url "$AWS_ENDPOINT_URL" --retry-count 0 "$@" >"$SCRATCH/said"; }
names() { awk '{print $NF}' "$SCRATCH/said"; }

five mb "s3://$BUCKET"
five cp "$SHARED/tree/" "s3://$BUCKET/tree/"
five cp "s3://$BUCKET/tree/*" "$SCRATCH/tree/"
diff -r "$SHARED/tree" "$SCRATCH/tree"

five cp --part-size 5 "$SHARED/large" "s3://$BUCKET/large"
five cp "s3://$BUCKET/large" "s3://$BUCKET/copy"
# In ranges.
five cp --part-size 5 --concurrency 4 "s3://$BUCKET/copy" "$SCRATCH/back"
cmp "$SHARED/large" "$SCRATCH/back"
five cat "s3://$BUCKET/copy"
cmp "$SHARED/large" "$SCRATCH/said"
five presign "s3://$BUCKET/copy"
curl -sSf --noproxy '*' -o "$SCRATCH/signed" "$(cat "$SCRATCH/said")"
cmp "$SHARED/large" "$SCRATCH/signed"

five ls 's3://keys/*'
names | cmp - "$SHARED/keys"
five ls s3://keys/
names | cmp - "$SHARED/folders"

five rm "s3://$BUCKET/*"
five ls
grep -F "s3://$BUCKET" "$SCRATCH/said"
five rb "s3://$BUCKET"
