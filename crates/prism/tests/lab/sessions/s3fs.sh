# s3fs, a bucket as a file system. It has neither listings of 10,000 keys nor URLs. A rename and a
# new mode are copies: here files of 10 MiB and more are copied in parts. A mode that is set while
# a large file is open, as `cp -p` does, is in the request that begins its upload in parts.
# s3fs reads this variable when a handshake has failed, for its second try.
export CURL_CA_BUNDLE=$CA_FILE
printf '%s:%s' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" >"$SCRATCH/password"
chmod 600 "$SCRATCH/password"
at=$SCRATCH/mount
mkdir "$at"

# It stays in the foreground, so that the end of the script's processes ends it as well.
mount_bucket() {
    s3fs "$BUCKET" "$at" -f -o url="$AWS_ENDPOINT_URL" -o endpoint="$AWS_DEFAULT_REGION" \
        -o use_path_request_style -o sigv4 -o passwd_file="$SCRATCH/password" -o retries=2 \
        -o multipart_size=10 -o singlepart_copy_limit=10 -o multipart_copy_size=12 \
        -o tmpdir="$SCRATCH" "$@" &
    for _ in $(seq 100); do
        mountpoint -q "$at" && return
        sleep 0.1
    done
    false
}
# What is read after it comes from the bucket.
mount_again() {
    umount "$at"
    wait
    mount_bucket
}

aws --endpoint-url "$AWS_ENDPOINT_URL" s3 mb "s3://$BUCKET"
mount_bucket
cp -r "$SHARED/tree" "$at/tree"
cp -p "$SHARED/large" "$at/large"
mount_again
diff -r "$SHARED/tree" "$at/tree"
cmp -i 1000001:0 -n 70000 "$at/large" "$SHARED/slice"

mv "$at/large" "$at/moved"
chmod 640 "$at/moved"
touch -d '2020-01-02 03:04:05Z' "$at/moved"
mv "$at/tree" "$at/renamed"
mount_again
test ! -e "$at/large"
cmp "$SHARED/large" "$at/moved"
test "$(stat -c '%a %Y' "$at/moved")" = '640 1577934245'
diff -r "$SHARED/tree" "$at/renamed"

cat "$SHARED/slice" >>"$at/moved"
truncate -s 1000 "$at/renamed/file 3 +&=,é"
mount_again
cat "$SHARED/large" "$SHARED/slice" | cmp - "$at/moved"
cmp -n 1000 "$SHARED/tree/file 3 +&=,é" "$at/renamed/file 3 +&=,é"
test "$(stat -c %s "$at/renamed/file 3 +&=,é")" = 1000

rm -r "$at/moved" "$at/renamed"
mount_again
test -z "$(ls -A "$at")"
umount "$at"
wait
aws --endpoint-url "$AWS_ENDPOINT_URL" s3 rb "s3://$BUCKET"
