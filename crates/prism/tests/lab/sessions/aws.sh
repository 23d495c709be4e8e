# The AWS command line. Debian's does not know AWS_ENDPOINT_URL.
aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }
# Some versions presign with version 2 unless told.
export AWS_CONFIG_FILE=$SCRATCH/config
printf '[default]\ns3 =\n  signature_version = s3v4\n' >"$AWS_CONFIG_FILE"

aws s3 mb "s3://$BUCKET"
aws s3 sync --quiet "$SHARED/tree" "s3://$BUCKET/tree"
aws s3 sync --quiet "s3://$BUCKET/tree" "$SCRATCH/tree"
diff -r "$SHARED/tree" "$SCRATCH/tree"

aws s3 cp --quiet "$SHARED/large" "s3://$BUCKET/large"
aws s3api get-object --bucket "$BUCKET" --key large --range bytes=1000001-1070000 "$SCRATCH/slice"
cmp "$SHARED/slice" "$SCRATCH/slice"
aws s3 mv --quiet "s3://$BUCKET/large" "s3://$BUCKET/moved"
aws s3 cp --quiet "s3://$BUCKET/moved" "$SCRATCH/back"
cmp "$SHARED/large" "$SCRATCH/back"
curl -sSf --noproxy '*' -o "$SCRATCH/signed" "$(aws s3 presign "s3://$BUCKET/moved")"
cmp "$SHARED/large" "$SCRATCH/signed"

aws s3 ls --recursive s3://keys | awk '{print $4}' | cmp "$SHARED/keys"
aws s3 ls s3://keys/ | awk '{print $2}' | cmp "$SHARED/folders"

aws s3 rm --quiet --recursive "s3://$BUCKET/"
test -z "$(aws s3 ls "s3://$BUCKET/")"
aws s3 rb "s3://$BUCKET"
