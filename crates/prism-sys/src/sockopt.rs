//! `getsockopt`, `setsockopt` and the queue-length `ioctl`s, with types. The callers explain each
//! option.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Types the kernel reads and writes as they lie in memory.
///
/// # Safety
/// Every bit pattern is a valid value, and there is no padding.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers have no padding and no invalid bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: as for `u8`.
unsafe impl Plain for i32 {}
// SAFETY: as for `u8`.
unsafe impl Plain for u32 {}
// SAFETY: as for `u8`.
unsafe impl Plain for u64 {}
// SAFETY: an array of plain values has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Sets one option to one value.
pub(crate) fn set<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    set_bytes(fd, level, name, std::slice::from_ref(value))
}

/// Sets one option to a sequence of values.
pub(crate) fn set_bytes<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    values: &[T],
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(values))
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: `values` is readable for exactly `length` bytes, and has no
    // padding, so every byte is initialised; the kernel does not keep it.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, values.as_ptr().cast(), length) };
    check(result).map(drop)
}

/// Reads an option that the kernel fills in whole.
pub(crate) fn get<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    get_into(fd, level, name, &mut value)?;
    // SAFETY: zeroed at first, then partly or wholly written by the kernel;
    // `Plain` types are valid for every bit pattern.
    Ok(unsafe { value.assume_init() })
}

/// Reads an option of variable length; returns how many bytes the kernel wrote. The other bytes
/// keep their values.
pub(crate) fn get_into<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut MaybeUninit<T>,
) -> io::Result<usize> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is writable for `length` bytes, and the kernel writes no
    // more than that.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    check(result)?;
    Ok(length as usize)
}

/// An `ioctl` whose argument is one integer to be filled in.
pub(crate) fn ioctl_length(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<usize> {
    let mut value: libc::c_int = 0;
    // SAFETY: every request passed here (SIOCINQ, SIOCOUTQ, SIOCOUTQNSD)
    // writes one `int` through the pointer and keeps nothing.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut value) };
    check(result)?;
    usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Turns the C convention of −1 and `errno` into a `Result`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
