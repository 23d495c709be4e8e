//! The rights of other users on the files that a process makes.

use rustix::fs::Mode;
use rustix::process::umask;

/// Gives other users no right on the files and directories that this process makes from now on, and
/// the group none to write. The directory of a store is closed to the group too.
pub fn keep_files_private() {
    let present = umask(Mode::RWXG | Mode::RWXO);
    umask(present | Mode::WGRP | Mode::RWXO);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    #[test]
    fn others_have_no_right_on_what_is_made() {
        umask(Mode::empty());
        keep_files_private();
        let directory = tempfile::tempdir().unwrap();
        let [file, inner] = ["file", "inner"].map(|name| directory.path().join(name));
        fs::write(&file, "").unwrap();
        fs::create_dir(&inner).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&inner)), (0o640, 0o750));
        umask(Mode::RWXG);
        keep_files_private();
        fs::write(file.with_extension("new"), "").unwrap();
        assert_eq!(mode(&file.with_extension("new")), 0o600);
    }
}
