//! PEM files: read with a bound, and written without losing what was there.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::error::PkiError;

/// The longest file: the authorities that a system trusts take 500 KB, eight times over.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The modes of keys and of certificates.
pub(crate) const PRIVATE: u32 = 0o600;
pub(crate) const PUBLIC: u32 = 0o644;

/// The content of a file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, PkiError> {
    let mut content = Zeroizing::new(Vec::new());
    let file = fs::File::open(path).map_err(PkiError::file(path))?;
    let mut bounded = file.take(MAX_FILE_BYTES + 1);
    bounded
        .read_to_end(&mut content)
        .map_err(PkiError::file(path))?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(PkiError::content(path, "is longer than 4 MiB"));
    }
    Ok(content)
}

/// The content of a file that only its owner may read.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, PkiError> {
    let metadata = fs::metadata(path).map_err(PkiError::file(path))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let shown = path.display();
        let fault = format!("can be read by others (mode {mode:03o}); run `chmod 600 {shown}`");
        return Err(PkiError::content(path, fault));
    }
    read(path)
}

/// The private key in a file.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, PkiError> {
    // The library's message is left out: it may quote the file.
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|_| PkiError::content(path, "holds no unencrypted private key in PEM"))
}

/// The certificates in a file, of which there is at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    certificates_in(path, &read(path)?)
}

/// The certificates in the content of a file, of which there is at least one.
pub(crate) fn certificates_in(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found =
        found.map_err(|error| PkiError::content(path, format!("is not valid PEM: {error}")))?;
    if found.is_empty() {
        return Err(PkiError::content(path, "holds no certificate in PEM"));
    }
    Ok(found)
}

/// Refuses a path at which there is something; `remedy` is for the error.
pub(crate) fn refuse_existing(path: &Path, remedy: &'static str) -> Result<(), PkiError> {
    let path = path.to_owned();
    match path.symlink_metadata() {
        Ok(_) => Err(PkiError::Exists { path, remedy }),
        Err(_) => Ok(()),
    }
}

/// A file that is written, and not at its place yet. Without a commit it goes.
pub(crate) struct Staged<'a> {
    path: &'a Path,
    new: PathBuf,
}

impl<'a> Staged<'a> {
    /// Writes the future content of `path`. The file belongs to the owner of the present one, if
    /// there is one: a node may run as another user than the operator.
    pub(crate) fn write(path: &'a Path, pem: &str, mode: u32) -> Result<Self, PkiError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        // One that a former run has left.
        let _ = fs::remove_file(&new);
        let staged = Self { path, new };
        let written = staged.fill(pem, mode);
        written.map_err(PkiError::file(path)).map(|()| staged)
    }

    fn fill(&self, pem: &str, mode: u32) -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&self.new)?;
        if let Ok(former) = fs::metadata(self.path) {
            fchown(&file, Some(former.uid()), Some(former.gid()))?;
        }
        file.write_all(pem.as_bytes())?;
        file.sync_all()
    }

    /// Puts the file at its place, where it replaces what is there if that is wanted.
    pub(crate) fn commit(self, replace: bool) -> Result<(), PkiError> {
        let put = if replace {
            fs::rename(&self.new, self.path)
        } else {
            // Unlike a rename it refuses a path at which there is something.
            fs::hard_link(&self.new, self.path)
        };
        put.map_err(PkiError::file(self.path))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // After a rename there is none.
        let _ = fs::remove_file(&self.new);
    }
}
