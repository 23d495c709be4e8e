//! TUN devices: network interfaces whose packets go to a program instead of a link.
//!
//! This module makes and reads one. Its owner sets addresses, routes and state (`ip` does that).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use prism_sys::lab::make_tun;

use crate::named_call;

/// The device that makes them.
const CLONE_DEVICE: &str = "/dev/net/tun";
/// The kernel replaces this by the first free number.
const NUMBER: &str = "%d";
/// The largest length of that number: a namespace has fewer interfaces.
const MAX_DIGITS: usize = 5;

/// A device of IP packets without a header before them (`IFF_TUN | IFF_NO_PI`). It ends with this
/// handle, and so do its routes.
#[derive(Debug)]
pub struct Tun {
    queue: File,
    name: String,
}

impl Tun {
    /// Makes a device in the namespace of the calling thread. Its name is `prefix` and the first
    /// free number. It is down.
    ///
    /// # Errors
    /// `InvalidInput` unless `prefix` has 1 to 10 lower case letters; the kernel's error without
    /// `CAP_NET_ADMIN` or without the driver.
    pub fn create(prefix: &str) -> io::Result<Self> {
        let mut name = pattern(prefix).ok_or_else(|| {
            let fault = format!("{prefix:?} cannot begin the name of an interface");
            io::Error::new(io::ErrorKind::InvalidInput, fault)
        })?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let queue = options
            .custom_flags(libc::O_NONBLOCK)
            .open(CLONE_DEVICE)
            .map_err(named_call("opening /dev/net/tun"))?;
        make_tun(&queue, &mut name).map_err(named_call("TUNSETIFF"))?;
        let name: Vec<u8> = name.into_iter().take_while(|byte| *byte != 0).collect();
        Ok(Self {
            queue,
            name: String::from_utf8_lossy(&name).into_owned(),
        })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next packet into `packet`, and returns the number of its bytes. The rest of a
    /// longer packet is lost. Checksums are complete.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; else the kernel's error.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.queue).read(packet)
    }
}

impl AsFd for Tun {
    /// Readable while there is a packet.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// The pattern of a name that begins with `prefix`.
fn pattern(prefix: &str) -> Option<[u8; libc::IFNAMSIZ]> {
    let is_word = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_lowercase());
    // One byte is the zero at the end.
    if !is_word || prefix.len() + MAX_DIGITS >= libc::IFNAMSIZ {
        return None;
    }
    let mut name = [0; libc::IFNAMSIZ];
    for (place, byte) in name.iter_mut().zip(prefix.bytes().chain(NUMBER.bytes())) {
        *place = byte;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_words_begin_a_name() {
        for wrong in ["", "a b", "A", "tun%d", "a/b", "eleven-long", "elevenlongx"] {
            assert!(pattern(wrong).is_none(), "{wrong:?}");
        }
        assert!(pattern("delay").is_some() && pattern("tenletters").is_some());
    }
}
