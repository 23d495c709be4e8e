# s3cmd. Its presigned URLs are of version 2, which is refused.
host=${AWS_ENDPOINT_URL#*://}
ssl=--no-ssl
case $AWS_ENDPOINT_URL in https:*) ssl="--ssl --ca-certs=$CA_FILE" ;; esac
: >"$SCRATCH/config"
cmd() {
    # shellcheck disable=SC2086
    s3cmd --config "$SCRATCH/config" $ssl --no-progress --host "$host" --host-bucket "$host" \
        --access_key "$AWS_ACCESS_KEY_ID" --secret_key "$AWS_SECRET_ACCESS_KEY" "$@"
}

cmd mb "s3://$BUCKET"
cmd put --recursive "$SHARED/tree/" "s3://$BUCKET/tree/"
mkdir "$SCRATCH/tree"
cmd get --recursive "s3://$BUCKET/tree/" "$SCRATCH/tree/"
diff -r "$SHARED/tree" "$SCRATCH/tree"

cmd put --multipart-chunk-size-mb=5 "$SHARED/large" "s3://$BUCKET/large"
cmd cp "s3://$BUCKET/large" "s3://$BUCKET/copy"
head -c 1000001 "$SHARED/large" >"$SCRATCH/back"
cmd get --continue "s3://$BUCKET/copy" "$SCRATCH/back"
cmp "$SHARED/large" "$SCRATCH/back"

cmd ls --recursive s3://keys | awk '{print $4}' | cmp - <(sed 's|^|s3://keys/|' "$SHARED/keys")
cmd ls s3://keys | awk '{print $2}' | cmp - <(sed 's|^|s3://keys/|' "$SHARED/folders")

cmd del --recursive --force "s3://$BUCKET/"
test -z "$(cmd ls "s3://$BUCKET/")"
cmd rb "s3://$BUCKET"
