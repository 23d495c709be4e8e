# mc, MinIO's command line, in parts of 5 MiB. It repeats failed requests by itself.
# It does not find the lab's authority in the environment.
mkdir -p "$SCRATCH/mc/certs/CAs"
cp "$CA_FILE" "$SCRATCH/mc/certs/CAs/"
mc() { "$CLIENTS/mc" --config-dir "$SCRATCH/mc" --quiet --disable-pager "$@"; }
# The values of a field of its answers in JSON, which it writes in one line or in several.
field() { grep -o "\"$1\": *\"[^\"]*\"" | cut -d'"' -f4; }
names() { mc ls --json "$@" | field key; }

mc alias set --api S3v4 --path on prism "$AWS_ENDPOINT_URL" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
mc mb "prism/$BUCKET"
# It reads the bucket's configurations.
mc stat "prism/$BUCKET"
mc mirror "$SHARED/tree" "prism/$BUCKET/tree"
mc mirror "prism/$BUCKET/tree" "$SCRATCH/tree"
diff -r "$SHARED/tree" "$SCRATCH/tree"

mc put --part-size 5MiB "$SHARED/large" "prism/$BUCKET/large"
mc cat --offset 1000001 "prism/$BUCKET/large" >"$SCRATCH/back"
cmp -n 70000 "$SCRATCH/back" "$SHARED/slice"
mc cp "prism/$BUCKET/large" "prism/$BUCKET/copy"
mc mv "prism/$BUCKET/copy" "prism/$BUCKET/moved"
mc cp "prism/$BUCKET/moved" "$SCRATCH/back"
cmp "$SHARED/large" "$SCRATCH/back"
url=$(mc share download --json "prism/$BUCKET/moved" | field share)
curl -sSf --noproxy '*' -o "$SCRATCH/signed" "$url"
cmp "$SHARED/large" "$SCRATCH/signed"

head -c 12000000 "$SHARED/large" >"$SCRATCH/parts"
for sum in CRC32 CRC32C SHA1 SHA256 CRC64NVME CRC32-FO CRC32C-FO; do
    mc put --checksum "$sum" --part-size 5MiB "$SCRATCH/parts" "prism/$BUCKET/$sum"
    mc cat "prism/$BUCKET/$sum" | cmp - "$SCRATCH/parts"
    cat "$SCRATCH/parts" | mc pipe --checksum "$sum" --part-size 5MiB "prism/$BUCKET/$sum-pipe"
    mc cat "prism/$BUCKET/$sum-pipe" | cmp - "$SCRATCH/parts"
done

names --recursive prism/keys | cmp - "$SHARED/keys"
names prism/keys | cmp - "$SHARED/folders"

mc rm --recursive --force "prism/$BUCKET/"
test -z "$(mc ls --recursive "prism/$BUCKET")"
mc rb "prism/$BUCKET"
