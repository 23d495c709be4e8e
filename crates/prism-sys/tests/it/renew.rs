//! Sockets that are built anew because their first bytes were lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use crate::common::veth::Pair;
use crate::common::{self, DOWN, UP, both_families, bytes, eventually, privileged};
use socket2::{SockFilter, SockRef};

use prism_sys::tcp::{Freezer, InitialWindow, Paused, RenewError, TcpInfo, renew, restore};

const ANSWER_BYTES: usize = 20_000;

/// A connection that was handed to host 1.
struct Moved {
    pair: Pair,
    freezer: Freezer,
    window: InitialWindow,
    client: TcpStream,
    server: TcpStream,
}

impl Moved {
    fn new(pair: Pair) -> Self {
        let (client, server) = pair.connect();
        let load = || (Freezer::new().unwrap(), InitialWindow::new().unwrap());
        let (freezer, window) = pair.hosts[1].run(load).unwrap();
        let service = pair.family.service();
        let paused = Paused::freeze(server, &freezer).unwrap();
        let state = paused.save(service).unwrap();
        let restored = pair.hosts[1].run(|| restore(&state, service).unwrap());
        pair.own(1);
        let server: OwnedFd = restored.unwrap().go_live().unwrap().fd;
        paused.close_silently();
        Self {
            pair,
            freezer,
            window,
            client,
            server: server.into(),
        }
    }

    fn renew(&self) -> Result<bool, RenewError> {
        let renew = || renew(self.server.as_fd(), &self.freezer, &self.window);
        self.pair.hosts[1].run(renew).unwrap()
    }

    fn mss_bytes(&self) -> u32 {
        SockRef::from(&self.server).tcp_mss().unwrap()
    }

    fn set_client_mac(&self, last: u8) {
        let set = || common::ip(&format!("link set c1 address 02:00:00:00:01:0{last}"));
        self.pair.client.run(set).unwrap();
    }

    /// Whether the server's socket takes segments in.
    fn set_hearing(&self, hears: bool) {
        let server = SockRef::from(&self.server);
        let drop_all = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
        match hears {
            true => server.detach_filter().unwrap(),
            false => server.attach_filter(&[drop_all]).unwrap(),
        }
    }

    fn client_reads(&mut self, from: u64, length: usize) {
        let (mut got, mut piece) = (0, vec![0; length]);
        eventually("the client gets all", 20, || {
            match self.client.read(&mut piece[got..]) {
                Ok(n) => got += n,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            got == length
        });
        assert!(piece == bytes(DOWN, from, length), "wrong bytes");
    }
}

#[test]
fn lost_bytes_are_sent_again_at_once_and_the_connection_goes_on() {
    if !privileged() {
        return;
    }
    both_families(|family| {
        let mut moved = Moved::new(Pair::new(family));
        // What host 1 sends is for another interface.
        moved.set_client_mac(7);
        (&moved.server)
            .write_all(&bytes(DOWN, 0, ANSWER_BYTES))
            .unwrap();
        let options = TcpInfo::read(moved.server.as_fd()).unwrap();
        let mss_bytes = moved.mss_bytes();
        moved.set_client_mac(1);
        let emitted = moved.pair.emitted(1);
        assert!(moved.renew().unwrap());
        // The kernel's own timer is a second away.
        assert!(moved.pair.emitted(1) >= emitted + 2);
        moved.client_reads(0, ANSWER_BYTES);
        let now = TcpInfo::read(moved.server.as_fd()).unwrap();
        assert!(now.srtt_us > 0);
        let negotiated = |info: TcpInfo| (info.sack, info.timestamps, info.window_scale);
        assert_eq!(negotiated(now), negotiated(options));
        assert_eq!(moved.mss_bytes(), mss_bytes);
        // Both directions go on, and the end is an ordinary one.
        moved.client.write_all(&bytes(UP, 0, 100)).unwrap();
        let mut request = [0; 100];
        moved.server.set_nonblocking(false).unwrap();
        moved.server.read_exact(&mut request).unwrap();
        assert_eq!(request[..], bytes(UP, 0, 100));
        let more = bytes(DOWN, ANSWER_BYTES as u64, 10);
        moved.server.write_all(&more).unwrap();
        moved.client_reads(ANSWER_BYTES as u64, 10);
        moved.server.shutdown(Shutdown::Write).unwrap();
        eventually("the client hears the end", 20, || {
            matches!(moved.client.read(&mut [0; 1]), Ok(0))
        });
    });
}

#[test]
fn a_client_that_has_the_bytes_already_acknowledges_them() {
    if !privileged() {
        return;
    }
    both_families(|family| {
        let mut moved = Moved::new(Pair::new(family));
        moved.set_hearing(false);
        (&moved.server)
            .write_all(&bytes(DOWN, 0, ANSWER_BYTES))
            .unwrap();
        moved.client_reads(0, ANSWER_BYTES / 2);
        moved.set_hearing(true);
        let unheard = TcpInfo::read(moved.server.as_fd()).unwrap();
        assert!(unheard.srtt_us == 0 && unheard.unacked_segments > 2);
        assert!(moved.renew().unwrap());
        let read = ANSWER_BYTES / 2;
        moved.client_reads(read as u64, ANSWER_BYTES - read);
        eventually("all is acknowledged", 20, || {
            let now = TcpInfo::read(moved.server.as_fd()).unwrap();
            now.srtt_us > 0 && now.unacked_segments == 0
        });
    });
}

#[test]
fn a_socket_with_input_or_at_its_end_stays_as_it_is() {
    if !privileged() {
        return;
    }
    both_families(|family| {
        let mut moved = Moved::new(Pair::new(family));
        moved.client.write_all(&bytes(UP, 0, 10)).unwrap();
        let mut request = [0; 10];
        let server = moved.server.try_clone().unwrap();
        eventually("the request comes", 20, || {
            server.peek(&mut request).is_ok()
        });
        assert!(!moved.renew().unwrap());
        (&server).read_exact(&mut request).unwrap();
        assert_eq!(request[..], bytes(UP, 0, 10));
        moved.client.shutdown(Shutdown::Write).unwrap();
        eventually("the end comes", 20, || {
            matches!(server.peek(&mut request), Ok(0))
        });
        let refused = moved.renew();
        assert!(matches!(refused, Ok(false)), "{refused:?}");
        (&server).write_all(&bytes(DOWN, 0, 10)).unwrap();
        moved.client_reads(0, 10);
        server.shutdown(Shutdown::Write).unwrap();
        let refused = moved.renew();
        assert!(matches!(refused, Err(RenewError::Pause(_))), "{refused:?}");
    });
}
