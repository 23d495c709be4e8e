# restic: a backup restored bit for bit, and what is left after pruning sound.
export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=s3:$AWS_ENDPOINT_URL/$BUCKET/repository
backup() { restic --quiet --no-cache --cacert "$CA_FILE" "$@"; }

mkdir "$SCRATCH/data"
cp -r "$SHARED/tree" "$SHARED/large" "$SCRATCH/data"
backup init
backup backup "$SCRATCH/data"
cp -r "$SCRATCH/data" "$SCRATCH/first"
rm -r "$SCRATCH/data/tree/x"
head -c 1000000 /dev/urandom >>"$SCRATCH/data/large"
backup backup "$SCRATCH/data"
backup check --read-data

first=$(backup snapshots --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')
backup restore "$first" --target "$SCRATCH/restored"
diff -r "$SCRATCH/first" "$SCRATCH/restored/$SCRATCH/data"
rm -r "$SCRATCH/restored"
backup forget --keep-last 1 --prune
backup check --read-data
backup restore latest --target "$SCRATCH/restored"
diff -r "$SCRATCH/data" "$SCRATCH/restored/$SCRATCH/data"
