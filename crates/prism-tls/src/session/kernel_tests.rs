use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

use prism_proto::tls::KernelKeys;

use super::*;

/// The kernel's sealing of records, as in `net/tls/tls_sw.c`.
struct KernelTls {
    keys: KernelKeys,
    iv: Vec<u8>,
    sequence: u64,
}

impl KernelTls {
    fn new(keys: KernelKeys) -> Self {
        let (iv, sequence) = (keys.nonce[4..].to_vec(), keys.sequence);
        Self { keys, iv, sequence }
    }

    fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let explicit =
            self.keys.suite != Suite::ChaCha20Poly1305 && self.keys.version == Version::Tls12;
        let mut nonce: [u8; 12] = [&self.keys.nonce[..4], &self.iv]
            .concat()
            .try_into()
            .unwrap();
        if !explicit {
            let sequence = self.sequence.to_be_bytes();
            nonce[4..]
                .iter_mut()
                .zip(sequence)
                .for_each(|(n, s)| *n ^= s);
        }
        let mut inner = content.to_vec();
        let mut outer = kind;
        if self.keys.version == Version::Tls13 {
            (outer, inner) = (23, [content, &[kind]].concat());
        }
        let body = inner.len() + 16 + if explicit { 8 } else { 0 };
        let mut record = vec![outer, 3, 3, (body >> 8) as u8, body as u8];
        let aad = match self.keys.version {
            Version::Tls13 => record.clone(),
            Version::Tls12 => {
                let [high, low] = (inner.len() as u16).to_be_bytes();
                [&self.sequence.to_be_bytes()[..], &[kind, 3, 3, high, low]].concat()
            }
        };
        if explicit {
            record.extend_from_slice(&self.iv);
            let next = u64::from_be_bytes(self.iv[..].try_into().unwrap()) + 1;
            self.iv = next.to_be_bytes().to_vec();
        }
        self.sequence += 1;
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key()
            .seal_in_place_append_tag(nonce, Aad::from(aad), &mut inner)
            .unwrap();
        record.extend_from_slice(&inner);
        record
    }

    fn key(&self) -> LessSafeKey {
        let algorithm = match self.keys.suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, &self.keys.key).unwrap())
    }
}

#[test]
fn records_of_the_kernel_and_of_the_session_alternate() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        for round in 0..4 {
            let mut out = sealed(&mut server, b"ours, ");
            let mut kernel = KernelTls::new(server.write_to_kernel().unwrap());
            assert_eq!(server.seal(b"x", &mut out), Err(SealError::InKernel));
            assert_eq!(server.seal_close_notify(&mut out), Err(SealError::InKernel));
            for _ in 0..round {
                out.extend(kernel.seal(kind::APPLICATION_DATA, b"kernel's, "));
            }
            server.write_from_kernel(kernel.sequence).unwrap();
            server = Session::restore(&server.save().unwrap()).unwrap();
            out.extend(sealed(&mut server, b"ours."));
            let wanted = format!("ours, {}ours.", "kernel's, ".repeat(round));
            assert_eq!(open_all(&mut client, out).0, wanted.as_bytes());
        }
    }
}

#[test]
fn a_direction_changes_hands_in_order_only() {
    let (mut server, _) = tls13();
    assert_eq!(
        server.write_from_kernel(100).unwrap_err(),
        SealError::NotInKernel
    );
    plan_update(&mut server);
    assert_eq!(
        server.write_to_kernel().unwrap_err(),
        SealError::ControlFirst
    );
    server.seal_control(&mut Vec::new()).unwrap();
    server.seal(b"x", &mut Vec::new()).unwrap();
    server.write_to_kernel().unwrap();
    assert_eq!(server.write_to_kernel().unwrap_err(), SealError::InKernel);
    assert_eq!(
        server.write_from_kernel(0).unwrap_err(),
        SealError::Sequence
    );
    assert_eq!(
        server.write_from_kernel(u64::MAX).unwrap_err(),
        SealError::Sequence
    );
    server.write_from_kernel(1 << 24).unwrap();
    assert!(server.wants_control(), "the kernel has worn the key out");
}

#[test]
fn a_session_that_did_not_move_goes_on_beside_its_kernel() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let mut kernel = KernelTls::new(server.write_to_kernel().unwrap());
        let mut out = kernel.seal(kind::APPLICATION_DATA, b"before, ");
        server.write_from_kernel(kernel.sequence).unwrap();
        server = Session::restore(&server.save().unwrap()).unwrap();
        let elsewhere = kernel.sequence + 1;
        assert_eq!(
            server.write_still_in_kernel(elsewhere),
            Err(SealError::Sequence)
        );
        server.write_still_in_kernel(kernel.sequence).unwrap();
        assert!(server.write_in_kernel());
        assert_eq!(server.seal(b"x", &mut out), Err(SealError::InKernel));
        out.extend(kernel.seal(kind::APPLICATION_DATA, b"after"));
        assert_eq!(open_all(&mut client, out).0, b"before, after");
    }
}

#[test]
fn a_key_update_that_is_due_stays_so_beside_the_kernel() {
    let (mut server, _) = tls13();
    server.write_to_kernel().unwrap();
    plan_update(&mut server);
    let sequence = server.writer.half.sequence;
    server.write_from_kernel(sequence).unwrap();
    server = Session::restore(&server.save().unwrap()).unwrap();
    server.write_still_in_kernel(sequence).unwrap();
    assert!(server.wants_control() && server.write_in_kernel());
}

#[test]
fn alerts_go_through_the_kernel_and_close_the_session() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        assert_eq!(server.close_notify_by_kernel(), Err(SealError::NotInKernel));
        let mut kernel = KernelTls::new(server.write_to_kernel().unwrap());
        let alert = server.close_notify_by_kernel().unwrap();
        let out = kernel.seal(kind::ALERT, &alert);
        assert_eq!(open_all(&mut client, out).1, [Event::CloseNotify]);
        assert!(server.write_closed() && !server.write_in_kernel());
        assert_eq!(server.close_notify_by_kernel(), Err(SealError::NotInKernel));

        let (mut server, mut client) = pair(version, suite);
        let mut kernel = KernelTls::new(server.write_to_kernel().unwrap());
        let description = rustls::AlertDescription::BadRecordMac;
        let alert = server.fatal_alert_by_kernel(description).unwrap();
        let out = kernel.seal(kind::ALERT, &alert);
        assert_eq!(open_all(&mut client, out).1, [Event::Aborted(description)]);
    }
}
