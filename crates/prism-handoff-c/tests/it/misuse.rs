//! Calls that cannot work are errors with a message, whatever they are given.

use std::ffi::c_void;
use std::net::{Ipv4Addr, TcpStream};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use prism_handoff_c::{
    Callbacks, ConnectionId, Endpoint, Status, prism_close, prism_config_new,
    prism_config_set_listen, prism_consume, prism_endpoint_fd, prism_endpoint_free,
    prism_endpoint_open, prism_endpoint_poll, prism_export, prism_relay, prism_unread, prism_write,
};

use crate::node::{message, open};

#[test]
fn null_is_an_error() {
    // SAFETY: null is what these check.
    unsafe {
        assert!(prism_config_new(null(), null()).is_none());
        assert_eq!(prism_endpoint_free(null_mut()), Status::Ok);
        assert_eq!(prism_write(None, 1, null(), 1), Status::Invalid);
        assert_eq!(prism_relay(None, null()), 0);
    }
    assert_eq!(prism_config_set_listen(None, true), Status::Invalid);
    assert!(prism_endpoint_open(None, None, null_mut()).is_none());
    assert_eq!(prism_endpoint_fd(None), -1);
    assert_eq!(prism_endpoint_poll(None), Status::Invalid);
    assert_eq!(message(), "an argument is null");
}

#[test]
fn a_connection_that_is_gone_is_an_error_and_so_is_another_thread() {
    let (endpoint, _) = open(&Callbacks::default(), null_mut());
    let endpoint = Box::into_raw(endpoint);
    let address = endpoint as usize;
    let elsewhere = std::thread::spawn(move || {
        // SAFETY: the endpoint lives until this thread has ended, and is not changed.
        let endpoint = unsafe { (address as *const Endpoint).as_ref() };
        (prism_endpoint_poll(endpoint), prism_endpoint_fd(endpoint))
    });
    assert_eq!(elsewhere.join().unwrap(), (Status::WrongThread, -1));
    // SAFETY: it is an endpoint until it is freed.
    let opened = unsafe { endpoint.as_ref() };
    assert_eq!(prism_consume(opened, 77, 0), Status::Gone);
    assert_eq!(prism_close(opened, 0), Status::Gone);
    let mut len = 0;
    assert!(prism_unread(opened, 77, Some(&mut len)).is_null());
    assert_eq!(message(), "there is no such connection");
    // SAFETY: nothing uses it afterwards.
    assert_eq!(unsafe { prism_endpoint_free(endpoint) }, Status::Ok);
}

/// The findings of a callback.
struct Found {
    endpoint: *mut Endpoint,
    statuses: Vec<Status>,
}

extern "C" fn on_client(user: *mut c_void, client: ConnectionId) {
    // SAFETY: the test gives this, and does not use it while it polls.
    let found = unsafe { &mut *user.cast::<Found>() };
    // SAFETY: the endpoint is open while it is polled.
    let endpoint = unsafe { found.endpoint.as_ref() };
    let large = [0; 5000];
    // SAFETY: the texts and bytes live as long as the calls; the endpoint is not freed.
    found.statuses = unsafe {
        vec![
            prism_endpoint_free(found.endpoint),
            prism_endpoint_poll(endpoint),
            prism_consume(endpoint, client, 1_000_000),
            prism_write(endpoint, client, null(), 5),
            prism_export(
                endpoint,
                client,
                c"other".as_ptr(),
                large.as_ptr(),
                large.len(),
            ),
            prism_export(endpoint, client, c"other".as_ptr(), null(), 0),
            prism_write(endpoint, client, large.as_ptr(), 1),
        ]
    };
}

#[test]
fn a_callback_cannot_poll_or_free_and_an_export_can_only_be_waited_for() {
    let mut found = Found {
        endpoint: null_mut(),
        statuses: Vec::new(),
    };
    let callbacks = Callbacks {
        on_client: Some(on_client),
        ..Callbacks::default()
    };
    let user = &raw mut found;
    let (endpoint, port) = open(&callbacks, user.cast());
    let endpoint = Box::into_raw(endpoint);
    // SAFETY: no callback runs now.
    unsafe { (*user).endpoint = endpoint };
    let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_told = || {
        // SAFETY: callbacks use `user` only while the endpoint is polled.
        let found = unsafe { &*user };
        !found.statuses.is_empty()
    };
    while !is_told() {
        assert!(Instant::now() < deadline);
        // SAFETY: it is open.
        let opened = unsafe { endpoint.as_ref() };
        assert_eq!(prism_endpoint_poll(opened), Status::Ok);
        std::thread::sleep(Duration::from_millis(1));
    }
    use Status::{Busy, Invalid, Ok};
    let expected = [Busy, Busy, Invalid, Invalid, Invalid, Ok, Busy];
    assert_eq!(found.statuses, expected);
    // SAFETY: nothing uses it afterwards.
    assert_eq!(unsafe { prism_endpoint_free(endpoint) }, Ok);
}
