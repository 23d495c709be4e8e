//! The other end of a TLS session after its handshake. It knows the keys, parses records itself,
//! and accepts each sequence number once, in order.

use std::io::Read;
use std::net::TcpStream;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use prism_proto::tls::{KernelKeys, Suite as Cipher, Version};

use zeroize::Zeroizing;

use crate::common::bytes;

/// A version with a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suite {
    pub version: Version,
    pub cipher: Cipher,
}

const fn suite(version: Version, cipher: Cipher) -> Suite {
    Suite { version, cipher }
}

pub const SUITES: [Suite; 6] = [
    suite(Version::Tls13, Cipher::Aes128Gcm),
    suite(Version::Tls13, Cipher::Aes256Gcm),
    suite(Version::Tls13, Cipher::ChaCha20Poly1305),
    suite(Version::Tls12, Cipher::Aes128Gcm),
    suite(Version::Tls12, Cipher::Aes256Gcm),
    suite(Version::Tls12, Cipher::ChaCha20Poly1305),
];

/// RFC 8446, section 5.1.
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
const KEY: [u8; 32] = *b"a key of 32 bytes, for this test";
const IV: [u8; 12] = [
    0xf0, 1, 2, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x10,
];

impl Suite {
    /// The parameters for the kernel.
    pub fn info(self, sequence: u64) -> KernelKeys {
        let mut iv = IV;
        if self.has_explicit_nonce() {
            iv[4..].copy_from_slice(&explicit_nonce(sequence));
        }
        KernelKeys {
            version: self.version,
            suite: self.cipher,
            key: Zeroizing::new(KEY[..self.cipher.key_bytes()].into()),
            nonce: Zeroizing::new(iv),
            sequence,
        }
    }

    /// Bytes of a record beyond its plaintext.
    pub fn overhead_bytes(self) -> u64 {
        let inside = u64::from(self.version == Version::Tls13);
        let explicit = if self.has_explicit_nonce() { 8 } else { 0 };
        5 + 16 + inside + explicit
    }

    fn algorithm(self) -> (&'static Algorithm, usize) {
        match self.cipher {
            Cipher::Aes128Gcm => (&AES_128_GCM, 16),
            Cipher::Aes256Gcm => (&AES_256_GCM, 32),
            Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, 32),
        }
    }

    fn has_explicit_nonce(self) -> bool {
        self.version == Version::Tls12 && self.cipher != Cipher::ChaCha20Poly1305
    }
}

/// The nonce that counts up from record to record in TLS 1.2 with GCM.
fn explicit_nonce(sequence: u64) -> [u8; 8] {
    let base = u64::from_be_bytes(*IV.last_chunk().unwrap());
    base.wrapping_add(sequence).to_be_bytes()
}

pub struct Peer {
    stream: TcpStream,
    suite: Suite,
    key: LessSafeKey,
    direction: u8,
    /// The sequence number of the next record.
    pub sequence: u64,
    /// The number of correct bytes of application data so far.
    pub plaintext: u64,
    /// Content of the last record that was no application data.
    pub last: Vec<u8>,
}

impl Peer {
    pub fn new(stream: TcpStream, suite: Suite, direction: u8, sequence: u64) -> Self {
        let (algorithm, length) = suite.algorithm();
        let key = UnboundKey::new(algorithm, &KEY[..length]).unwrap();
        Self {
            stream,
            suite,
            key: LessSafeKey::new(key),
            direction,
            sequence,
            plaintext: 0,
            last: Vec::new(),
        }
    }

    pub fn read_plaintext(&mut self, until: u64) {
        while self.plaintext < until {
            self.read_record();
        }
        assert_eq!(self.plaintext, until);
    }

    pub fn read_until_alert(&mut self) {
        while self.read_record() != ALERT {}
    }

    /// Reads, opens and compares one record; returns its content type.
    pub fn read_record(&mut self) -> u8 {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[1..3], [3, 3], "not a record: {header:?}");
        let mut body = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
        self.stream.read_exact(&mut body).unwrap();
        let (content, data) = self.open(header, body);
        self.sequence += 1;
        if content == APPLICATION_DATA {
            let wanted = bytes(self.direction, self.plaintext, data.len());
            assert!(data == wanted, "wrong bytes from offset {}", self.plaintext);
            self.plaintext += data.len() as u64;
        } else {
            self.last = data;
        }
        content
    }

    fn open(&self, header: [u8; 5], mut body: Vec<u8>) -> (u8, Vec<u8>) {
        let nonce = self.nonce(&mut body);
        let aad = match self.suite.version {
            Version::Tls13 => header.to_vec(),
            Version::Tls12 => {
                let length = (body.len() - 16) as u16;
                let mut aad = self.sequence.to_be_bytes().to_vec();
                aad.extend_from_slice(&header[..3]);
                aad.extend_from_slice(&length.to_be_bytes());
                aad
            }
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(aad), &mut body);
        let length = opened
            .unwrap_or_else(|_| panic!("record {:#x} is not authentic", self.sequence))
            .len();
        body.truncate(length);
        match self.suite.version {
            Version::Tls12 => (header[0], body),
            Version::Tls13 => {
                assert_eq!(header[0], 23);
                (body.pop().unwrap(), body)
            }
        }
    }

    /// The nonce of this record. Takes an explicit one off `body`.
    fn nonce(&self, body: &mut Vec<u8>) -> [u8; 12] {
        let mut nonce = IV;
        if self.suite.has_explicit_nonce() {
            let wanted = explicit_nonce(self.sequence);
            let explicit: Vec<u8> = body.drain(..8).collect();
            assert_eq!(explicit, wanted, "nonce of record {:#x}", self.sequence);
            nonce[4..].copy_from_slice(&wanted);
        } else {
            let mask = self.sequence.to_be_bytes();
            nonce[4..].iter_mut().zip(mask).for_each(|(n, m)| *n ^= m);
        }
        nonce
    }
}
