//! The output of `prism --version`.

#![allow(clippy::unwrap_used, reason = "test code")]
/// The version, with the commit in brackets where the build knew it: `0.1.0 (1a2b3c4)`, or
/// `0.1.0 (1a2b3c4-dirty)` when the sources differed from that commit.
const VERSION: &str = env!("PRISM_VERSION");

#[test]
fn the_version_names_the_commit_where_it_is_known() {
    let commit = VERSION.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap();
    if commit.is_empty() {
        return;
    }
    let commit = commit
        .strip_prefix(" (")
        .and_then(|commit| commit.strip_suffix(')'));
    let hash = commit.unwrap().trim_end_matches("-dirty");
    assert!(hash.len() >= 4, "{VERSION}");
    let is_hexadecimal = hash.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_hexadecimal, "{VERSION}");
}
