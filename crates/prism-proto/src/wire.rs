//! Bounded reading and writing of big-endian wire formats.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The reason why bytes from the network are no message. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum DecodeError {
    #[error("message is truncated: {0} is missing or cut")]
    Truncated(&'static str),
    #[error("{0} is over its limit")]
    TooLong(&'static str),
    #[error("{0} has a value without meaning")]
    Invalid(&'static str),
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// The message has a version that this node does not speak.
    #[error("version {found} is unknown here, which has {expected}")]
    Version {
        /// The version of the message.
        found: u8,
        /// The version that this code speaks.
        expected: u8,
    },
}

/// A cursor over received bytes. No read goes past the end or copies more than
/// its caller's limit.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The bytes that are not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes exactly `N` bytes; `field` names them in the error.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes one byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// Takes a 16-bit integer.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// Takes a 32-bit integer.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Takes a 64-bit integer.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Takes a byte that must be 0 or 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid(field)),
        }
    }

    /// Takes a 32-bit number that must be `magic`.
    pub fn magic(&mut self, magic: u32, field: &'static str) -> Result<(), DecodeError> {
        if self.u32(field)? == magic {
            Ok(())
        } else {
            Err(DecodeError::Invalid(field))
        }
    }

    /// Takes a byte that must be the version `expected`.
    pub fn version(&mut self, expected: u8, field: &'static str) -> Result<(), DecodeError> {
        match self.u8(field)? {
            found if found == expected => Ok(()),
            found => Err(DecodeError::Version { found, expected }),
        }
    }

    /// Takes the code of one of `values`.
    pub fn one_of<T: Copy, const N: usize>(
        &mut self,
        values: [T; N],
        code: impl Fn(T) -> u8,
        field: &'static str,
    ) -> Result<T, DecodeError> {
        let found = self.u8(field)?;
        let value = values.into_iter().find(|value| code(*value) == found);
        value.ok_or(DecodeError::Invalid(field))
    }

    /// Takes an address of 16 bytes, unmapping IPv4.
    pub fn ip(&mut self, field: &'static str) -> Result<IpAddr, DecodeError> {
        let bytes: [u8; 16] = self.array(field)?;
        Ok(Ipv6Addr::from(bytes).to_canonical())
    }

    /// Takes an address of 16 bytes and a port of 2.
    pub fn socket_addr(&mut self, field: &'static str) -> Result<SocketAddr, DecodeError> {
        let ip = self.ip(field)?;
        Ok(SocketAddr::new(ip, self.u16(field)?))
    }

    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a 32-bit length and that many bytes, at most `max`.
    pub fn sized(&mut self, max: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(field)? as usize;
        if len > max {
            return Err(DecodeError::TooLong(field));
        }
        self.bytes(len, field)
    }

    /// Takes an 8-bit length and that many bytes of UTF-8.
    pub fn short_str(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let len = usize::from(self.u8(field)?);
        std::str::from_utf8(self.bytes(len, field)?).map_err(|_| DecodeError::Invalid(field))
    }

    /// Ends the reading; bytes that are left are an error.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(n)),
        }
    }
}

/// Sixteen bytes of an address, IPv4 mapped.
pub fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Appends a wire format to a buffer.
pub trait Put {
    /// Appends raw bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends an address (16 bytes) and a port (2 bytes).
    fn put_socket_addr(&mut self, addr: SocketAddr) {
        self.put(&ip_bytes(addr.ip()));
        self.put(&addr.port().to_be_bytes());
    }

    /// Appends a 32-bit length and the bytes. Every caller's limit is far below `u32::MAX`.
    fn put_sized(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.put(&len.to_be_bytes());
        self.put(bytes);
    }

    /// Appends an 8-bit length and at most 255 bytes of text.
    fn put_short_str(&mut self, text: &str) {
        let mut end = text.len().min(255);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text.get(..end).unwrap_or_default();
        self.put(&[u8::try_from(text.len()).unwrap_or(0)]);
        self.put(text.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
