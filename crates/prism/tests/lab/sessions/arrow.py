"""pyarrow's own S3 file system (the AWS SDK for C++): it presigns nothing."""

import os
import pathlib

import pyarrow
from pyarrow import fs

scheme, _, address = os.environ["AWS_ENDPOINT_URL"].partition("://")
s3 = fs.S3FileSystem(
    access_key=os.environ["AWS_ACCESS_KEY_ID"],
    secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    region=os.environ["AWS_DEFAULT_REGION"],
    scheme=scheme,
    endpoint_override=address,
    tls_ca_file_path=os.environ["CA_FILE"],
    allow_bucket_creation=True,
    allow_bucket_deletion=True,
)
bucket, shared = os.environ["BUCKET"], pathlib.Path(os.environ["SHARED"])
large = (shared / "large").read_bytes()

s3.create_dir(bucket)
fs.copy_files(str(shared / "tree"), f"{bucket}/tree", source_filesystem=fs.LocalFileSystem(), destination_filesystem=s3)
for path in (shared / "tree").rglob("*"):
    if path.is_file():
        with s3.open_input_stream(f"{bucket}/{path.relative_to(shared)}") as stream:
            assert stream.read() == path.read_bytes(), path

# In parts of 10 MiB.
with s3.open_output_stream(f"{bucket}/large", metadata={"Content-Type": "a/b"}) as stream:
    for at in range(0, len(large), 3 << 20):
        stream.write(large[at : at + (3 << 20)])
s3.copy_file(f"{bucket}/large", f"{bucket}/copy")
with s3.open_input_file(f"{bucket}/copy") as file:
    assert file.size() == len(large)
    assert file.read_at(70_000, 1_000_001) == (shared / "slice").read_bytes()
    assert file.read() == large
s3.move(f"{bucket}/copy", f"{bucket}/moved")
assert s3.get_file_info(f"{bucket}/copy").type == fs.FileType.NotFound
assert s3.get_file_info(f"{bucket}/moved").size == len(large)

keys = (shared / "keys").read_text().split()
found = s3.get_file_info(fs.FileSelector("keys", recursive=True))
assert sorted(info.path for info in found if info.type == fs.FileType.File) == [f"keys/{key}" for key in keys]
found = s3.get_file_info(fs.FileSelector("keys"))
folders = (shared / "folders").read_text().split()
assert sorted(info.path for info in found) == [f"keys/{folder[:-1]}" for folder in folders]

s3.delete_file(f"{bucket}/moved")
s3.delete_dir_contents(bucket)
assert s3.get_file_info(fs.FileSelector(bucket, recursive=True)) == []
s3.delete_dir(bucket)
