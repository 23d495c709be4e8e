//! A node on loopback, as a C program opens it, and what it is told.

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use prism_handoff::pki;
use prism_handoff_c::{
    Callbacks, ConnectionId, Endpoint, Outcome, Status, prism_config_add_node,
    prism_config_add_service, prism_config_free, prism_config_new, prism_config_set_listen,
    prism_config_set_node_port, prism_endpoint_free, prism_endpoint_open, prism_endpoint_poll,
    prism_error, prism_unread, prism_write,
};

/// The message of the last error.
pub(crate) fn message() -> String {
    // SAFETY: it is text of this thread, and no call comes in between.
    let text = unsafe { CStr::from_ptr(prism_error()) };
    text.to_str().unwrap().to_owned()
}

pub(crate) fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    free.local_addr().unwrap().port()
}

/// A node on loopback without a switch, and the port of its service.
pub(crate) fn open(callbacks: &Callbacks, user: *mut c_void) -> (Box<Endpoint>, u16) {
    let dir = tempfile::tempdir().unwrap();
    pki::init(dir.path(), &["node".into()]).unwrap();
    let text = |text: &str| CString::new(text).unwrap();
    let port = free_port();
    let (name, pki_dir) = (text("node"), text(dir.path().to_str().unwrap()));
    // SAFETY: all is text that lives as long as the call.
    unsafe {
        let mut config = prism_config_new(name.as_ptr(), pki_dir.as_ptr()).unwrap();
        assert_eq!(
            prism_config_add_service(Some(&mut config), text("nowhere").as_ptr()),
            Status::Invalid
        );
        assert_eq!(message(), "\"nowhere\" is not ADDRESS:PORT");
        let service = text(&format!("127.0.0.1:{port}"));
        assert_eq!(
            prism_config_add_service(Some(&mut config), service.as_ptr()),
            Status::Ok
        );
        assert!(prism_endpoint_open(Some(&config), Some(callbacks), user).is_none());
        assert!(
            message().contains("no node is called node"),
            "{}",
            message()
        );
        let address = text("127.0.0.1");
        let added = prism_config_add_node(Some(&mut config), name.as_ptr(), address.as_ptr());
        assert_eq!(added, Status::Ok);
        prism_config_set_node_port(Some(&mut config), free_port());
        prism_config_set_listen(Some(&mut config), true);
        let endpoint = prism_endpoint_open(Some(&config), Some(callbacks), user).unwrap();
        prism_config_free(Some(config));
        (endpoint, port)
    }
}

/// The events so far.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) client: ConnectionId,
    pub(crate) written: usize,
    pub(crate) exported: Vec<Outcome>,
    /// The reasons.
    pub(crate) ends: Vec<Option<String>>,
}

/// A node with at most one client.
pub(crate) struct Node {
    endpoint: *mut Endpoint,
    port: u16,
    told: *mut Told,
}

impl Node {
    pub(crate) fn open() -> Self {
        let callbacks = Callbacks {
            on_client: Some(on_client),
            on_written: Some(on_written),
            on_exported: Some(on_exported),
            on_end: Some(on_end),
            ..Callbacks::default()
        };
        let told = Box::into_raw(Box::<Told>::default());
        let (endpoint, port) = open(&callbacks, told.cast());
        let endpoint = Box::into_raw(endpoint);
        Self {
            endpoint,
            port,
            told,
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap()
    }

    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        // SAFETY: it is open until the drop.
        unsafe { self.endpoint.as_ref() }
    }

    pub(crate) fn told(&self) -> &Told {
        // SAFETY: callbacks change it in `poll_until` only, which borrows all of this.
        unsafe { &*self.told }
    }

    /// The unread bytes.
    pub(crate) fn unread(&self) -> &[u8] {
        let mut len = 0;
        let bytes = prism_unread(self.endpoint(), self.told().client, Some(&mut len));
        assert!(!bytes.is_null());
        // SAFETY: they stay until a poll or a call that the test makes later.
        unsafe { std::slice::from_raw_parts(bytes, len) }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Status {
        let client = self.told().client;
        // SAFETY: the bytes are there.
        unsafe { prism_write(self.endpoint(), client, bytes.as_ptr(), bytes.len()) }
    }

    /// Polls until `is_done`.
    pub(crate) fn poll_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_done(self) {
            assert!(Instant::now() < deadline);
            assert_eq!(prism_endpoint_poll(self.endpoint()), Status::Ok);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: both are boxes, and nothing uses them afterwards.
        unsafe {
            prism_endpoint_free(self.endpoint);
            drop(Box::from_raw(self.told));
        }
    }
}

/// The record that a callback changes.
///
/// # Safety
/// `user` is a node's `told`, and nothing else refers to it during the callback.
unsafe fn told<'a>(user: *mut c_void) -> &'a mut Told {
    // SAFETY: promised by the caller.
    unsafe { &mut *user.cast::<Told>() }
}

extern "C" fn on_client(user: *mut c_void, client: ConnectionId) {
    // SAFETY: `Node::open` gives it, and nothing refers to it during a poll.
    unsafe { told(user) }.client = client;
}

extern "C" fn on_written(user: *mut c_void, _: ConnectionId) {
    // SAFETY: as above.
    unsafe { told(user) }.written += 1;
}

extern "C" fn on_exported(user: *mut c_void, _: ConnectionId, outcome: Outcome, _: *const c_char) {
    // SAFETY: as above.
    unsafe { told(user) }.exported.push(outcome);
}

extern "C" fn on_end(user: *mut c_void, _: ConnectionId, reason: *const c_char) {
    let reason = match reason.is_null() {
        true => None,
        // SAFETY: it is text until the callback returns.
        false => Some(unsafe { CStr::from_ptr(reason) }),
    };
    let reason = reason.map(|reason| reason.to_str().unwrap().to_owned());
    // SAFETY: as above.
    unsafe { told(user) }.ends.push(reason);
}
