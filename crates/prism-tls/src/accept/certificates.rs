//! The certificates that are served, chosen by host name, and their reload.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::files::{CertificateError, CertificateFiles};

/// Most certificates of a server; each is read on every reload.
const MAX_CERTIFICATES: usize = 1_024;

/// The certificates of a server, from files that may be replaced while it runs. A handshake
/// takes the certificates that are in force when it chooses one.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    table: RwLock<Arc<Table>>,
}

impl Certificates {
    /// Reads `files`. The first certificate is the default: clients get it that name no host,
    /// or a host without certificate. If a host has several (ECDSA and RSA), a client gets the
    /// first that it can verify.
    ///
    /// # Errors
    /// If a file cannot be read, or has a fault.
    pub fn load(files: Vec<CertificateFiles>) -> Result<Self, CertificateError> {
        let table = Table::load(&files)?;
        Ok(Self {
            files,
            table: RwLock::new(Arc::new(table)),
        })
    }

    /// Reads the files again, and puts their certificates in force at once.
    ///
    /// # Errors
    /// If a file cannot be read, or has a fault. All old certificates then stay in force.
    pub fn reload(&self) -> Result<(), CertificateError> {
        let table = Arc::new(Table::load(&self.files)?);
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        Ok(())
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
        self.table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.table()
            .find(hello.server_name(), hello.signature_schemes())
    }
}

type Keys = Vec<Arc<CertifiedKey>>;

#[derive(Debug)]
struct Table {
    /// By host name in lower case. A wildcard is `*.` and a name.
    by_name: HashMap<String, Keys>,
    /// All, in the order of the configuration.
    all: Keys,
}

impl Table {
    fn load(files: &[CertificateFiles]) -> Result<Self, CertificateError> {
        if !(1..=MAX_CERTIFICATES).contains(&files.len()) {
            let fault = format!("give 1 to {MAX_CERTIFICATES} certificates");
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
            for name in names {
                table.by_name.entry(name).or_default().push(key.clone());
            }
            table.all.push(key);
        }
        Ok(table)
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
