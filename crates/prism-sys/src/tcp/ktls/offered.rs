//! The kernel's TLS versions and ciphers, found by trying them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use prism_proto::tls::{KernelKeys, Suite, Version};
use zeroize::Zeroizing;

use super::{KtlsError, attach, set_tx};

/// The versions and ciphers that the kernel can send with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered(Vec<(Version, Suite)>);

/// The kernel does not do TLS, or could not be asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum ProbeError {
    /// the kernel's TLS code was not reached, or took no key
    #[error("{0}")]
    Tls(#[from] KtlsError),
    #[error("this kernel's TLS has no cipher that Prism uses")]
    NoCipher,
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
        for version in Version::ALL {
            for suite in Suite::ALL {
                match try_out(&listener, version, suite) {
                    Ok(()) => offered.push((version, suite)),
                    Err(ProbeError::Tls(KtlsError::NoCipher)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if offered.is_empty() {
            Err(ProbeError::NoCipher)
        } else {
            Ok(Self(offered))
        }
    }

    /// Whether the kernel can send records of this version with this cipher.
    #[must_use]
    pub fn has(&self, version: Version, suite: Suite) -> bool {
        self.0.contains(&(version, suite))
    }
}

fn try_out(listener: &TcpListener, version: Version, suite: Suite) -> Result<(), ProbeError> {
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let stream = TcpStream::connect(listener.local_addr()?)?;
        Ok((stream, listener.accept()?.0))
    };
    let (stream, _other_end) = pair().map_err(ProbeError::Loopback)?;
    attach(stream.as_fd())?;
    let nothing = KernelKeys {
        version,
        suite,
        key: Zeroizing::new(vec![0; suite.key_bytes()].into()),
        nonce: Zeroizing::default(),
        sequence: 0,
    };
    Ok(set_tx(stream.as_fd(), &nothing)?)
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (version, suite)) in self.0.iter().enumerate() {
            let version = match version {
                Version::Tls12 => "1.2",
                Version::Tls13 => "1.3",
            };
            let cipher = match suite {
                Suite::Aes128Gcm => "AES-128-GCM",
                Suite::Aes256Gcm => "AES-256-GCM",
                Suite::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            };
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{version} {cipher}")?;
        }
        Ok(())
    }
}
