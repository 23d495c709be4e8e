//! Sets `PRISM_VERSION`, the text of `prism --version`: the version, and the commit where
//! git knows it. A source tree outside a git repository has the version alone.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the program, as git's path patterns. Tests are not among them.
const SOURCES: [&str; 4] = ["crates/*/src/*", "bpf", "Cargo.toml", "Cargo.lock"];

fn main() {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    let version = match package.ancestors().nth(2).and_then(commit) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=PRISM_VERSION={version}");
}

/// The short hash of the commit, with `-dirty` when the program's sources differ from it.
/// Cargo runs this script again when the commit or a source changes.
fn commit(repository: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(repository)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A tarball unpacked inside another repository does not have that one's commit.
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != repository.canonicalize().ok()? {
        return None;
    }
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    // Git knows where these are in a worktree. Cargo would run the script in every build
    // for a path that does not exist, such as the file of a packed branch.
    let places = ["HEAD", "logs/HEAD", "packed-refs", &branch];
    let places = places
        .iter()
        .filter_map(|place| git(&["rev-parse", "--git-path", place]));
    let sources = sources(repository).into_iter();
    for path in places.map(|place| repository.join(place)).chain(sources) {
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let is_clean = git(&[&["diff", "--quiet", "HEAD", "--"], &SOURCES[..]].concat()).is_some();
    Some(if is_clean { hash } else { hash + "-dirty" })
}

/// The paths of `SOURCES`. Their change compiles the program again anyway.
fn sources(repository: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(repository.join("crates"));
    let crates = crates.into_iter().flatten().flatten();
    let files = SOURCES.iter().skip(1).map(|path| repository.join(path));
    crates
        .map(|folder| folder.path().join("src"))
        .chain(files)
        .collect()
}
