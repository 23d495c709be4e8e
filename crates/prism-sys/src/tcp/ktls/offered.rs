//! The kernel's TLS versions and ciphers, found by trying them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use super::info::NONCE_BYTES;
use super::{AttachError, Cipher, CryptoError, CryptoInfo, Key, Version, attach, set_tx};

const VERSIONS: [Version; 2] = [Version::Tls13, Version::Tls12];
const CIPHERS: [Cipher; 3] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
];

/// The versions and ciphers that the kernel can send with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered(Vec<(Version, Cipher)>);

/// The kernel does not do TLS, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// the kernel's TLS code was not reached
    #[error("{0}")]
    Attach(#[from] AttachError),
    /// it took no key
    #[error("{0}")]
    Crypto(#[from] CryptoError),
    /// it has no version and cipher that Prism uses
    #[error("this kernel's TLS has no cipher that Prism uses")]
    NoCipher,
    /// there is no connection over loopback to try it on
    #[error("no connection over loopback to try it on: {0}")]
    Loopback(#[source] io::Error),
}

impl Offered {
    /// Tries every version with every cipher, each on a connection over loopback on which nothing
    /// is sent. It loads the kernel's modules if it may (`CAP_NET_ADMIN`), and takes about a
    /// millisecond.
    ///
    /// # Errors
    /// [`ProbeError`]; user space then makes the records.
    pub fn probe() -> Result<Self, ProbeError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ProbeError::Loopback)?;
        let mut offered = Vec::new();
        for version in VERSIONS {
            for cipher in CIPHERS {
                match try_out(&listener, version, cipher) {
                    Ok(()) => offered.push((version, cipher)),
                    Err(ProbeError::Crypto(CryptoError::NotOffered)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        match offered.is_empty() {
            true => Err(ProbeError::NoCipher),
            false => Ok(Self(offered)),
        }
    }

    /// Whether the kernel can send records of this version with this cipher.
    #[must_use]
    pub fn has(&self, version: Version, cipher: Cipher) -> bool {
        self.0.contains(&(version, cipher))
    }
}

fn try_out(listener: &TcpListener, version: Version, cipher: Cipher) -> Result<(), ProbeError> {
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let stream = TcpStream::connect(listener.local_addr()?)?;
        Ok((stream, listener.accept()?.0))
    };
    let (stream, _other_end) = pair().map_err(ProbeError::Loopback)?;
    attach(stream.as_fd())?;
    let key = match cipher {
        Cipher::Aes128Gcm => Key::Aes128Gcm([0; 16]),
        Cipher::Aes256Gcm => Key::Aes256Gcm([0; 32]),
        Cipher::ChaCha20Poly1305 => Key::ChaCha20Poly1305([0; 32]),
    };
    let nothing = CryptoInfo {
        version,
        key,
        iv: [0; NONCE_BYTES],
        sequence: 0,
    };
    Ok(set_tx(stream.as_fd(), &nothing)?)
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (version, cipher)) in self.0.iter().enumerate() {
            let version = match version {
                Version::Tls12 => "1.2",
                Version::Tls13 => "1.3",
            };
            let cipher = match cipher {
                Cipher::Aes128Gcm => "AES-128-GCM",
                Cipher::Aes256Gcm => "AES-256-GCM",
                Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            };
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{version} {cipher}")?;
        }
        Ok(())
    }
}
