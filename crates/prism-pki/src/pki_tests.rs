#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData};

use super::*;

/// A directory of an authority whose key is kept, with certificates of be0 and be1.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { dir };
        let how = Founding {
            key_file: Some(site.path("ca.key")),
            ..Founding::default()
        };
        found(site.dir.path(), &names(&["be0", "be1"]), &how).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn issue(&self, key: &str, days: u32, replace: bool, name: &str) -> Result<u64, String> {
        let how = Issuing {
            key_file: self.path(key),
            days,
            replace,
        };
        let made = issue(self.dir.path(), &names(&[name]), &how);
        let made = made.map_err(|error| error.to_string())?;
        Ok(made[0].end_s)
    }

    /// Makes another authority, and returns its serial number.
    fn new_authority(&self) -> String {
        let made = new_authority(self.dir.path(), &self.path("new.key"), 10);
        made.unwrap().serial
    }

    fn identity(&self, name: &str) -> Identity {
        Identity::of_node(self.dir.path(), name).unwrap()
    }

    fn authorities(&self) -> Vec<Certificate> {
        Certificate::read_all(&self.path("ca.crt")).unwrap()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn now() -> u64 {
    certificate::now_s()
}

/// Passes what `from` has to say to `to`. Whether `to` accepts it.
fn pass_flight<F: SideData, T: SideData>(
    from: &mut ConnectionCommon<F>,
    to: &mut ConnectionCommon<T>,
) -> bool {
    let mut flight = Vec::new();
    from.write_tls(&mut flight).unwrap();
    let mut left = &*flight;
    while !left.is_empty() {
        to.read_tls(&mut left).unwrap();
        if to.process_new_packets().is_err() {
            return false;
        }
    }
    true
}

/// Whether be1 as `dialler` and be0 as `acceptor` accept each other.
fn admits(acceptor: &Identity, dialler: &Identity) -> bool {
    let name = node_name("be0").unwrap();
    let mut client = ClientConnection::new(dialler.present().client.clone(), name).unwrap();
    let mut server = ServerConnection::new(acceptor.present().server.clone()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        if !pass_flight(&mut client, &mut server) || !pass_flight(&mut server, &mut client) {
            return false;
        }
    }
    let shown = server.peer_certificates().unwrap();
    peer_name(&shown[0], ["be0", "be1"].into_iter()).as_deref() == Some("be1")
}

/// The one of be0, be1 and be2 that a certificate for these names identifies.
fn peer_of(shown: &[&str]) -> Option<String> {
    let params = CertificateParams::new(names(shown)).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    peer_name(certificate.der(), ["be0", "be1", "be2"].into_iter())
}

#[test]
fn a_certificate_shows_the_one_node_that_it_is_valid_for_or_none() {
    assert_eq!(peer_of(&["be1"]).as_deref(), Some("be1"));
    assert_eq!(peer_of(&["other", "be1"]).as_deref(), Some("be1"));
    assert_eq!(peer_of(&["other"]), None);
    assert_eq!(peer_of(&["be1", "be2"]), None);
    assert_eq!(peer_of(&["be2", "be0", "be1"]), None);
}

#[test]
fn the_authoritys_key_is_kept_only_where_asked_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    init(dir.path(), &names(&["be0"])).unwrap();
    let mut files: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    files.sort_by_key(|file| file.as_ref().unwrap().file_name());
    let files = files.into_iter().map(|file| file.unwrap().file_name());
    let files: Vec<_> = files.collect();
    assert_eq!(files, ["be0.crt", "be0.key", "ca.crt"]);

    let site = Site::new();
    for name in ["ca.key", "be0.key", "be1.key"] {
        let mode = fs::metadata(site.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let key = fs::read(site.path("be0.key")).unwrap();
    let error = init(site.dir.path(), &names(&["be2"])).unwrap_err();
    assert!(
        error.to_string().contains("ca.crt exists already"),
        "{error}"
    );
    // Nor without a ca.crt, nor before it is known that all can be made.
    fs::remove_file(site.path("ca.crt")).unwrap();
    let error = init(site.dir.path(), &names(&["be2", "be0"])).unwrap_err();
    assert!(
        error.to_string().contains("be0.crt exists already"),
        "{error}"
    );
    assert!(!site.path("be2.key").exists() && !site.path("ca.crt").exists());
    let how = Founding {
        key_file: Some(site.path("ca.key")),
        ..Founding::default()
    };
    let error = found(&site.path("other"), &names(&["be0"]), &how).unwrap_err();
    assert!(
        error.to_string().contains("ca.key exists already"),
        "{error}"
    );
    assert_eq!(fs::read(site.path("be0.key")).unwrap(), key);
}

#[test]
fn a_kept_authority_adds_and_renews_single_nodes() {
    let site = Site::new();
    let (be0, old) = (
        site.identity("be0"),
        fs::read(site.path("be1.key")).unwrap(),
    );
    let end_s = site.issue("ca.key", 30, false, "be2").unwrap();
    assert!(
        (30 * 86_400 - 5..=30 * 86_400).contains(&(end_s - now())),
        "{end_s}"
    );
    site.identity("be2");
    let error = site.issue("ca.key", 30, false, "be1").unwrap_err();
    assert!(
        error.contains("be1.crt exists already") && error.contains("--replace"),
        "{error}"
    );
    site.issue("ca.key", 30, true, "be1").unwrap();
    assert_ne!(fs::read(site.path("be1.key")).unwrap(), old);
    let mode = fs::metadata(site.path("be1.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(admits(&be0, &site.identity("be1")));
    // The authority ends first.
    let authority = site.authorities()[0].end_s;
    assert_eq!(site.issue("ca.key", 7_300, true, "be1"), Ok(authority));
    let left = fs::read_dir(site.dir.path()).unwrap();
    let left = left.map(|file| file.unwrap().path());
    let left: Vec<_> = left
        .filter(|path| path.extension().unwrap() == "new")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_certificate_is_not_issued_with_an_unsafe_or_foreign_key() {
    let (site, other) = (Site::new(), Site::new());
    let fault = |change: &dyn Fn()| {
        fs::copy(other.path("ca.key"), site.path("key")).unwrap();
        change();
        site.issue("key", 30, false, "be2").unwrap_err()
    };
    let set_mode = |mode| {
        let mode = PermissionsExt::from_mode(mode);
        fs::set_permissions(site.path("key"), mode).unwrap();
    };
    let foreign = fault(&|| ());
    assert!(
        foreign.contains("ca.crt has no certificate of the authority"),
        "{foreign}"
    );
    let open = fault(&|| set_mode(0o640));
    assert!(open.contains("run `chmod 600 "), "{open}");
    set_mode(0o600);
    let other_file = fault(&|| fs::write(site.path("key"), "key").unwrap());
    assert!(other_file.contains("holds no private key"), "{other_file}");
    let absent = fault(&|| fs::remove_file(site.path("key")).unwrap());
    assert!(
        absent.contains("/key cannot be read: No such file"),
        "{absent}"
    );
    let name = site.issue("ca.key", 30, false, "../be2").unwrap_err();
    assert!(name.contains("is no DNS label"), "{name}");
    assert!(!site.path("be2.key").exists());
}

#[test]
fn two_authorities_are_valid_side_by_side_until_one_is_dropped() {
    let site = Site::new();
    let (be0, be1) = (site.identity("be0"), site.identity("be1"));
    let old = site.authorities()[0].serial.clone();
    let new = site.new_authority();
    assert_ne!(old, new);
    let found = site.authorities();
    assert_eq!(found.len(), 2);
    assert_ne!(found[0].subject, found[1].subject);
    // Step by step: each node trusts both, be1 is renewed, then be0.
    be0.reload().unwrap();
    assert!(admits(&be0, &be1));
    be1.reload().unwrap();
    site.issue("new.key", 5, true, "be1").unwrap();
    be1.reload().unwrap();
    assert!(admits(&be0, &be1));
    let error = drop_authority(site.dir.path(), &old)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("be0.crt is signed by the authority"),
        "{error}"
    );
    let left = site.identity("be0");
    site.issue("new.key", 5, true, "be0").unwrap();
    be0.reload().unwrap();
    assert!(admits(&be0, &be1));
    for digits in ["", "abc", "no digits"] {
        assert!(drop_authority(site.dir.path(), digits).is_err(), "{digits}");
    }
    assert_eq!(
        drop_authority(site.dir.path(), &old[..12]).unwrap().serial,
        old
    );
    be0.reload().unwrap();
    be1.reload().unwrap();
    assert!(admits(&be0, &be1));
    let serials: Vec<_> = be0.in_use().into_iter().skip(1).collect();
    assert!(
        serials.len() == 1 && serials[0].1.serial == new,
        "{serials:?}"
    );
    // One that still has the old certificate meets nobody, in neither direction.
    assert!(!admits(&left, &be1));
    let old_be1 = Site::new().identity("be1");
    assert!(!admits(&be0, &old_be1));
    let error = drop_authority(site.dir.path(), &new)
        .unwrap_err()
        .to_string();
    assert!(error.contains("has no other authority"), "{error}");
}

#[test]
fn files_that_cannot_be_used_leave_the_former_identity() {
    let site = Site::new();
    let (be0, be1) = (site.identity("be0"), site.identity("be1"));
    let clone = be0.clone();
    let faults: [(&str, &dyn Fn()); 5] = [
        ("be0.key is not the key of", &|| {
            fs::copy(site.path("be1.key"), site.path("be0.key")).unwrap();
        }),
        ("be0.key holds no unencrypted private key", &|| {
            fs::write(site.path("be0.key"), "secret").unwrap();
        }),
        ("which is no trusted authority", &|| {
            let other = Site::new();
            fs::copy(other.path("be0.crt"), site.path("be0.crt")).unwrap();
            fs::copy(other.path("be0.key"), site.path("be0.key")).unwrap();
        }),
        ("be0.crt: No such file", &|| {
            fs::remove_file(site.path("be0.crt")).unwrap();
        }),
        ("be0.crt ended on", &|| {
            site.issue("ca.key", 0, true, "be0").unwrap();
            std::thread::sleep(Duration::from_millis(1_100));
        }),
    ];
    for (expected, spoil) in faults {
        spoil();
        let error = be0.reload().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(admits(&be0, &be1), "{expected}");
    }
    // A node with a certificate that has ended starts, and others refuse it.
    let ended = site.identity("be0");
    assert!(!admits(&ended, &be1));
    let before = clone.in_use()[0].1.serial.clone();
    site.issue("ca.key", 30, true, "be0").unwrap();
    be0.reload().unwrap();
    assert_ne!(clone.in_use()[0].1.serial, before);
    assert!(admits(&clone, &be1));
}
