//! The functions that C calls. Only this file has unsafe code.
//!
//! Each function checks its pointers, and its thread. A panic ends here, as
//! `PRISM_STATUS_INTERNAL`. References and boxes as arguments are pointers of C that are null
//! or came from this file; the header says so.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::time::Duration;

use crate::config::Config;
use crate::endpoint::{Callbacks, ConnectionId, Endpoint};
use crate::status::{Error, Status, note, with_last};

/// Runs `work`; an error becomes `otherwise` of its status, and leaves its message.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>, otherwise: impl FnOnce(Status) -> T) -> T {
    let done = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error(Status::Internal, "an error in this library".into())));
    done.unwrap_or_else(|error| otherwise(note(&error)))
}

fn status(work: impl FnOnce() -> Result<(), Error>) -> Status {
    guarded(|| work().map(|()| Status::Ok), |status| status)
}

fn given<T>(argument: Option<T>) -> Result<T, Error> {
    argument.ok_or_else(|| Error::invalid("an argument is null"))
}

/// The endpoint, if the calling thread is the one that opened it.
fn owned(endpoint: Option<&Endpoint>) -> Result<&Endpoint, Error> {
    let endpoint = given(endpoint)?;
    if endpoint.is_owned_here() {
        Ok(endpoint)
    } else {
        Err(Error(
            Status::WrongThread,
            "an endpoint belongs to the thread that opened it".into(),
        ))
    }
}

/// The text at `text`.
///
/// # Safety
/// It is null or ends with a byte of value 0, and does not change during `'a`.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::invalid("an argument is null"));
    }
    // SAFETY: it is not null, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Error::invalid("text is not UTF-8"))
}

/// The `len` bytes at `bytes`.
///
/// # Safety
/// There are as many, or `len` is 0; they do not change during `'a`.
unsafe fn bytes<'a>(bytes: *const u8, len: usize) -> Result<&'a [u8], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() || isize::try_from(len).is_err() {
        return Err(Error::invalid("bytes are null or too many"));
    }
    // SAFETY: it is not null, `len` fits, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(bytes, len) })
}

/// The message of the last error in this thread; empty before the first one. It is valid until
/// the next call that fails in this thread, also in a callback, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn prism_error() -> *const c_char {
    with_last(CStr::as_ptr)
}

/// A configuration of the node `node`, whose certificate and authority are in the directory
/// `pki_dir` (`prism pki`). Null after an error.
///
/// # Safety
/// Both are text that ends with a byte of value 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_config_new(
    node: *const c_char,
    pki_dir: *const c_char,
) -> Option<Box<Config>> {
    let work = || {
        // SAFETY: promised by the caller.
        let (node, pki_dir) = unsafe { (text(node)?, text(pki_dir)?) };
        Ok(Some(Box::new(Config::new(node, pki_dir)?)))
    };
    guarded(work, |_| None)
}

/// Frees a configuration. Endpoints that were opened with it stay as they are.
#[unsafe(no_mangle)]
pub extern "C" fn prism_config_free(config: Option<Box<Config>>) {
    drop(config);
}

/// Adds a node, this one or another one, or a second address of it. All nodes have to be added.
///
/// # Safety
/// Both are text that ends with a byte of value 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_config_add_node(
    config: Option<&mut Config>,
    name: *const c_char,
    address: *const c_char,
) -> Status {
    // SAFETY: promised by the caller.
    status(|| unsafe { given(config)?.add_node(text(name)?, text(address)?) })
}

/// Adds an address that clients connect to, as `192.0.2.1:7` or `[2001:db8::1]:7`.
///
/// # Safety
/// It is text that ends with a byte of value 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_config_add_service(
    config: Option<&mut Config>,
    address: *const c_char,
) -> Status {
    // SAFETY: promised by the caller.
    status(|| unsafe { given(config)?.add_service(text(address)?) })
}

/// Sets the switch: its control address, and the key of 16 bytes that the switch and all nodes
/// share, under the number `key_id`. Without a switch no connection moves.
///
/// # Safety
/// `address` is text that ends with a byte of value 0, and `key` has 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_config_set_switch(
    config: Option<&mut Config>,
    address: *const c_char,
    key_id: u32,
    key: *const u8,
) -> Status {
    // SAFETY: promised by the caller.
    status(|| unsafe { given(config)?.set_switch(text(address)?, key_id, bytes(key, 16)?) })
}

/// Sets whether this node accepts clients; it then has the service addresses. Default no.
#[unsafe(no_mangle)]
pub extern "C" fn prism_config_set_listen(config: Option<&mut Config>, listen: bool) -> Status {
    status(|| {
        given(config)?.listen = listen;
        Ok(())
    })
}

/// Sets the port on which all nodes speak to each other. Default 7400.
#[unsafe(no_mangle)]
pub extern "C" fn prism_config_set_node_port(config: Option<&mut Config>, port: u16) -> Status {
    status(|| {
        given(config)?.node_port = Some(port);
        Ok(())
    })
}

/// Sets the time after which a connection that sends or takes nothing ends, in milliseconds.
/// Default 60,000. A client's connection of which nothing was consumed, and to which nothing was
/// written, ends 30 s after it was accepted, or earlier if many such connections wait.
#[unsafe(no_mangle)]
pub extern "C" fn prism_config_set_timeout_ms(config: Option<&mut Config>, ms: u32) -> Status {
    status(|| {
        given(config)?.io_timeout = Duration::from_millis(ms.into());
        Ok(())
    })
}

/// Opens an endpoint: binds its addresses and starts its worker, and waits for that. `user` is
/// what callbacks get. Configuration and callbacks are copied. Null after an error. All later
/// calls have to come from the calling thread.
/// The threads of the library block all signals.
#[unsafe(no_mangle)]
pub extern "C" fn prism_endpoint_open(
    config: Option<&Config>,
    callbacks: Option<&Callbacks>,
    user: *mut c_void,
) -> Option<Box<Endpoint>> {
    let work = || {
        let opened = Endpoint::open(given(config)?, *given(callbacks)?, user)?;
        Ok(Some(Box::new(opened)))
    };
    guarded(work, |_| None)
}

/// Closes all connections, ends the worker, waits for that, and frees the endpoint. Not in a
/// callback. Bytes that no kernel has taken are lost, also those of a connection after
/// prism_close(): on_written tells of them before it.
///
/// # Safety
/// The endpoint is null or was opened and not freed, and is not used afterwards if this
/// returns PRISM_STATUS_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_endpoint_free(endpoint: *mut Endpoint) -> Status {
    status(|| {
        // SAFETY: it is null or an endpoint, as the caller promises.
        let Some(opened) = (unsafe { endpoint.as_ref() }) else {
            return Ok(());
        };
        if owned(Some(opened))?.is_polling() {
            return Err(Error::busy("a callback is running"));
        }
        // SAFETY: it came from a box. Nothing else refers to it: only its thread uses it, and
        // no callback is running there.
        drop(unsafe { Box::from_raw(endpoint) });
        Ok(())
    })
}

/// The descriptor that is readable when prism_endpoint_poll() has something to do; -1 after an
/// error. The endpoint closes it when it is freed. A loop only waits for it, and does not read
/// from it.
#[unsafe(no_mangle)]
pub extern "C" fn prism_endpoint_fd(endpoint: Option<&Endpoint>) -> c_int {
    guarded(|| Ok(owned(endpoint)?.fd()), |_| -1)
}

/// Runs the callbacks of all events so far, and does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn prism_endpoint_poll(endpoint: Option<&Endpoint>) -> Status {
    status(|| owned(endpoint)?.poll())
}

/// A stream on which the node `peer` answers; 0 after an error. It can be written to at once.
/// If the peer is out of reach, on_end says so.
///
/// # Safety
/// `peer` is text that ends with a byte of value 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_relay(
    endpoint: Option<&Endpoint>,
    peer: *const c_char,
) -> ConnectionId {
    // SAFETY: promised by the caller.
    guarded(|| unsafe { owned(endpoint)?.relay(text(peer)?) }, |_| 0)
}

/// Hands a client's connection over to the node `peer`, with all that is written first, with
/// the unread bytes, and with a context of at most 4096 bytes for the program there.
/// on_exported says how that ended, some 15 s at most after the kernel has taken what is written.
/// Until then prism_consume(), prism_write() and another export are PRISM_STATUS_BUSY.
///
/// # Safety
/// `peer` is text that ends with a byte of value 0, and `context` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_export(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    peer: *const c_char,
    context: *const u8,
    len: usize,
) -> Status {
    status(|| {
        // SAFETY: promised by the caller.
        let (peer, context) = unsafe { (text(peer)?, bytes(context, len)?) };
        owned(endpoint)?.export(connection, peer, context)
    })
}

/// The unread bytes, whose number goes to `len`; null after an error. The pointer is valid until
/// the next prism_endpoint_poll() or prism_endpoint_free(), also if the bytes are consumed, more
/// are read, or the connection ends. While 256 KiB are unread nothing more is read and no timeout
/// runs: consume them or close. At most some 512 KiB are read ahead.
#[unsafe(no_mangle)]
pub extern "C" fn prism_unread(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    len: Option<&mut usize>,
) -> *const u8 {
    placed(|| owned(endpoint)?.unread(connection), len)
}

/// The context of an imported connection, valid as prism_unread(). It is empty for others.
#[unsafe(no_mangle)]
pub extern "C" fn prism_context(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    len: Option<&mut usize>,
) -> *const u8 {
    placed(|| owned(endpoint)?.context(connection), len)
}

fn placed(
    find: impl FnOnce() -> Result<(*const u8, usize), Error>,
    len: Option<&mut usize>,
) -> *const u8 {
    let work = || {
        let (bytes, found) = find()?;
        *given(len)? = found;
        Ok(bytes)
    };
    guarded(work, |_| null())
}

/// Consumes the first `len` unread bytes. Bytes that are not consumed move with an export.
#[unsafe(no_mangle)]
pub extern "C" fn prism_consume(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    len: usize,
) -> Status {
    status(|| owned(endpoint)?.consume(connection, len))
}

/// Writes a copy of `len` bytes, at most 8 MiB. PRISM_STATUS_BUSY if more than 8 MiB would wait:
/// on_written says when none do. If a write fails, on_end tells why, and later ones are dropped.
///
/// # Safety
/// `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prism_write(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    data: *const u8,
    len: usize,
) -> Status {
    // SAFETY: promised by the caller.
    status(|| unsafe { owned(endpoint)?.write(connection, bytes(data, len)?) })
}

/// Closes a connection when all is written. It is gone at once for the program, and no callback
/// tells of it any more. During an export it is closed only if it stays here.
#[unsafe(no_mangle)]
pub extern "C" fn prism_close(endpoint: Option<&Endpoint>, connection: ConnectionId) -> Status {
    status(|| owned(endpoint)?.close(connection))
}

/// The client's address and port, or the name of the peer of a relay stream; null after an
/// error. Valid as long as the connection, and after its end as prism_unread().
#[unsafe(no_mangle)]
pub extern "C" fn prism_from(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
) -> *const c_char {
    guarded(|| owned(endpoint)?.from(connection), |_| null())
}

/// The name of the node that accepted the connection, valid as prism_from().
#[unsafe(no_mangle)]
pub extern "C" fn prism_origin(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
) -> *const c_char {
    guarded(|| owned(endpoint)?.origin(connection), |_| null())
}

/// Keeps a pointer of the program with the connection. The library never follows or frees it.
#[unsafe(no_mangle)]
pub extern "C" fn prism_set_data(
    endpoint: Option<&Endpoint>,
    connection: ConnectionId,
    data: *mut c_void,
) -> Status {
    status(|| owned(endpoint)?.set_data(connection, data))
}

/// The pointer of prism_set_data(); null before it and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn prism_data(endpoint: Option<&Endpoint>, connection: ConnectionId) -> *mut c_void {
    guarded(|| owned(endpoint)?.data(connection), |_| null_mut())
}
