//! Random bytes and keys.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes, at most 256.
///
/// # Errors
/// The kernel's.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut random = [0; N];
    fill(&mut random)?;
    Ok(random)
}

/// `bytes` random bytes, at most 256, in hexadecimal digits.
///
/// # Errors
/// The kernel's.
pub fn hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    fill(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // getrandom(2) never returns fewer than the bytes asked for, up to 256.
    getrandom(bytes, GetRandomFlags::empty())?;
    Ok(())
}
