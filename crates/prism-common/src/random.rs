//! Random keys.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// `bytes` random bytes, at most 256, in hexadecimal digits.
///
/// # Errors
/// The kernel's.
pub fn hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    // getrandom(2) never returns fewer than the bytes asked for, up to 256.
    getrandom(random.as_mut_slice(), GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
