//! Attaches tc and XDP programs to interfaces, and detaches them.
//!
//! tc uses `clsact`, which every kernel from 6.1 on has. The filter belongs to the interface,
//! so it needs no process and no pin, and the kernel replaces it in one step. XDP is a link,
//! pinned beside the maps.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{ErrorKind, Link, ProgramMut, TC_INGRESS, TcHook, TcHookBuilder};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};

use crate::bpffs;
use crate::error::{KernelError, LoadError, kernel};

/// Priority ("PR") and handle of the switch's filter, which tell it from other filters of an
/// interface.
const PRIORITY: u32 = 0x5052;
const HANDLE: u32 = 1;
/// Prefix of the pins of XDP links.
const XDP_PREFIX: &str = "xdp_";

/// The index of an interface of this network namespace.
///
/// # Errors
/// [`LoadError::NoInterface`].
pub fn interface_index(name: &str) -> Result<i32, LoadError> {
    let failed = |e: rustix::io::Errno| LoadError::NoInterface {
        name: name.to_owned(),
        source: e.into(),
    };
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(failed)?;
    let index = name_to_index(any, name).map_err(failed)?;
    i32::try_from(index).map_err(|_| failed(rustix::io::Errno::NODEV))
}

fn failed<E: Into<libbpf_rs::Error>>(what: &str, name: &str) -> impl FnOnce(E) -> KernelError {
    kernel(format!("{what} on {name}"))
}

fn hook(program: &ProgramMut<'_>, index: i32) -> TcHook {
    TcHookBuilder::new(program.as_fd())
        .ifindex(index)
        .replace(true)
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(TC_INGRESS)
}

/// Attaches the tc program, or replaces it in one step.
pub(crate) fn tc(program: &ProgramMut<'_>, name: &str, index: i32) -> Result<(), KernelError> {
    let mut hook = hook(program, index);
    hook.create().map_err(failed("add clsact", name))?;
    hook.attach().map_err(failed("attach tc", name))?;
    Ok(())
}

pub(crate) fn xdp_pin(dir: &Path, name: &str) -> PathBuf {
    // bpffs allows no dots in names; interfaces may have them.
    dir.join(format!("{XDP_PREFIX}{}", name.replace('.', "-")))
}

/// Attaches the XDP program, or replaces the program of the pinned link. A link whose
/// interface is gone is replaced too.
pub(crate) fn xdp(
    program: &ProgramMut<'_>,
    name: &str,
    index: i32,
    pin: &Path,
) -> Result<(), KernelError> {
    if let Ok(mut link) = Link::open(pin) {
        if link.update_prog(program).is_ok() {
            return Ok(());
        }
        no_xdp(name, pin)?;
    }
    let mut link = program
        .attach_xdp(index)
        .map_err(failed("attach XDP", name))?;
    link.pin(pin).map_err(failed("pin XDP", name))
}

/// Detaches XDP if it is attached.
pub(crate) fn no_xdp(name: &str, pin: &Path) -> Result<(), KernelError> {
    bpffs::remove(pin).map_err(failed("unpin XDP", name))
}

/// Removes the filter from every interface of this network namespace. XDP links go with their
/// pins. An empty `clsact` stays, because another program may be about to use it.
pub(crate) fn detach_all() -> Result<(), KernelError> {
    let names = interface_names().map_err(kernel("list interfaces"))?;
    for name in names {
        // An interface that is gone by now has no filter either.
        let Ok(index) = interface_index(&name) else {
            continue;
        };
        detach(index).map_err(kernel(format!("detach from {name}")))?;
    }
    Ok(())
}

fn detach(index: i32) -> libbpf_rs::Result<()> {
    // Detaching needs no program; any descriptor makes a hook.
    let null = fs::File::open("/dev/null").map_err(libbpf_rs::Error::from)?;
    let mut hook = TcHookBuilder::new(null.as_fd())
        .ifindex(index)
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(TC_INGRESS);
    match hook.detach() {
        Err(e) if is_absent(&e) => Ok(()),
        other => other,
    }
}

/// Whether there is no filter, or no `clsact` (EINVAL).
fn is_absent(e: &libbpf_rs::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
}

/// The interfaces of this thread's network namespace; `/sys` may show another one's.
fn interface_names() -> std::io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
    Ok(table.lines().skip(2).filter_map(name).collect())
}
