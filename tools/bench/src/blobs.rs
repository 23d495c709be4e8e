//! Blobs of a registry of container images (Distribution), as it stores them.

use aws_lc_rs::digest::{SHA256, digest};

/// The beginning of the targets of blobs.
pub(crate) const BLOBS: &str = "v2/bench/blobs";
/// The directory of the storage.
const ROOT: &str = "docker/registry/v2";

/// The name of a blob.
pub(crate) fn name(body: &[u8]) -> String {
    let hash = digest(&SHA256, body);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

/// The file with the bytes of a blob in the storage of a registry.
pub(crate) fn path_of_data(name: &str) -> String {
    let hex = name.trim_start_matches("sha256:");
    let two = hex.get(..2).unwrap_or_default();
    format!("{ROOT}/blobs/sha256/{two}/{hex}/data")
}

/// The files of a blob in the storage of a registry, with their bytes.
pub(crate) fn stored<'b>(name: &'b str, body: &'b [u8]) -> [(String, &'b [u8]); 2] {
    let hex = name.trim_start_matches("sha256:");
    [
        (path_of_data(name), body),
        (
            format!("{ROOT}/repositories/bench/_layers/sha256/{hex}/link"),
            name.as_bytes(),
        ),
    ]
}
