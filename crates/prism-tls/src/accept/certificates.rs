//! The certificates that are served, chosen by host name, and their reload.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::files::{CertificateError, CertificateFiles};

/// Most certificates of a server; each is read on every reload.
const MAX_CERTIFICATES: usize = 1_024;

/// The certificates of a server, which may be replaced while it runs: those of files, and one that
/// is given to it. A handshake takes the certificates that are in force when it chooses one.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    given: Mutex<Option<Named>>,
    table: RwLock<Arc<Table>>,
}

impl Certificates {
    /// Reads `files`. The first certificate is the default: clients get it that name no host,
    /// or a host without certificate. If a host has several (ECDSA and RSA), a client gets the
    /// first that it can verify. Without files handshakes fail until [`Self::give`].
    ///
    /// # Errors
    /// If a file cannot be read, or has a fault.
    pub fn load(files: Vec<CertificateFiles>) -> Result<Self, CertificateError> {
        let table = Table::load(&files, None)?;
        Ok(Self {
            files,
            given: Mutex::new(None),
            table: RwLock::new(Arc::new(table)),
        })
    }

    /// Reads the files again, and puts their certificates in force at once.
    ///
    /// # Errors
    /// If a file cannot be read, or has a fault. All old certificates then stay in force.
    pub fn reload(&self) -> Result<(), CertificateError> {
        let given = self.given.lock();
        self.put_in_force(Table::load(&self.files, given.as_ref())?);
        Ok(())
    }

    /// Puts a certificate and its key, both in PEM, in force at once, in the place of the one that
    /// was given before. It comes after those of files. `name` is for the error.
    ///
    /// # Errors
    /// If it cannot be served. All old certificates then stay in force.
    pub fn give(&self, name: &str, chain: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        let named = CertificateFiles {
            certificate: name.into(),
            key: name.into(),
            names: Vec::new(),
        };
        let (certified, names) = named.served(chain, key)?;
        let named = Named {
            key: Arc::new(certified),
            names,
        };
        let mut given = self.given.lock();
        // The files are not read, because a faulty one must not hold this back.
        let mut table = Table::clone(&self.table());
        if let Some(old) = given.as_ref() {
            table.remove(old);
        }
        table.add(&named);
        *given = Some(named);
        self.put_in_force(table);
        Ok(())
    }

    fn put_in_force(&self, table: Table) {
        *self.table.write() = Arc::new(table);
    }

    /// The host names that have a certificate, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let table = self.table();
        let mut names: Vec<String> = table.by_name.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.table()
            .find(hello.server_name(), hello.signature_schemes())
    }
}

type Keys = Vec<Arc<CertifiedKey>>;

/// A certificate with the host names that it is served for.
#[derive(Debug)]
struct Named {
    key: Arc<CertifiedKey>,
    names: Vec<String>,
}

#[derive(Clone, Debug)]
struct Table {
    /// By host name in lower case. A wildcard is `*.` and a name.
    by_name: HashMap<String, Keys>,
    /// All, in the order of the configuration.
    all: Keys,
}

impl Table {
    fn load(files: &[CertificateFiles], given: Option<&Named>) -> Result<Self, CertificateError> {
        if files.len() > MAX_CERTIFICATES {
            let fault = format!("give at most {MAX_CERTIFICATES} certificates");
            return Err(CertificateError::Unusable(fault));
        }
        let mut table = Self {
            by_name: HashMap::new(),
            all: Vec::with_capacity(files.len()),
        };
        for files in files {
            let (key, names) = files.load()?;
            if names.is_empty() && !table.all.is_empty() {
                let path = files.certificate.display();
                return Err(CertificateError::Unusable(format!(
                    "{path} has no host name, and another is the default; give `names`"
                )));
            }
            let key = Arc::new(key);
            table.add(&Named { key, names });
        }
        if let Some(given) = given {
            table.add(given);
        }
        Ok(table)
    }

    fn add(&mut self, Named { key, names }: &Named) {
        for name in names {
            let keys = self.by_name.entry(name.clone()).or_default();
            keys.push(key.clone());
        }
        self.all.push(key.clone());
    }

    fn remove(&mut self, Named { key, .. }: &Named) {
        let is_other = |other: &Arc<CertifiedKey>| !Arc::ptr_eq(other, key);
        self.by_name.retain(|_, keys| {
            keys.retain(is_other);
            !keys.is_empty()
        });
        self.all.retain(is_other);
    }

    fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let keys = name
            .and_then(|name| self.named(&name.to_ascii_lowercase()))
            .unwrap_or(&self.all);
        let is_verifiable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        // A client that can verify none gets the first, and so the right alert.
        keys.iter().find(is_verifiable).or(keys.first()).cloned()
    }

    fn named(&self, name: &str) -> Option<&Keys> {
        self.by_name.get(name).or_else(|| {
            let (_, parent) = name.split_once('.')?;
            self.by_name.get(&format!("*.{parent}"))
        })
    }
}
