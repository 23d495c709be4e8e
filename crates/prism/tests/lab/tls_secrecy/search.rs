//! Finds secrets and objects in bytes of any kind.

use std::collections::{HashMap, HashSet};

use crate::support::objects::Object;

/// The bytes by which content is recognised. None of 2^128 occurs by chance.
const MARK: usize = 16;
/// The distance of an object's marks. Longer pieces of it cannot pass unseen.
const STRIDE: usize = 64;

/// Finds any of many byte strings, by their first [`MARK`] bytes.
#[derive(Default)]
pub struct Search {
    marks: HashMap<[u8; MARK], String>,
}

impl Search {
    fn add(&mut self, what: &str, bytes: &[u8]) {
        let mark = *bytes.first_chunk().unwrap();
        self.marks.insert(mark, what.to_owned());
    }

    pub fn add_object(&mut self, object: &Object) {
        for piece in object.bytes().chunks_exact(STRIDE) {
            self.add(&object.key, piece);
        }
    }

    /// The raw form, and forms in which programs print bytes.
    pub fn add_secret(&mut self, what: &str, secret: &[u8]) {
        let hex = |digits: fn(&u8) -> String| secret.iter().map(digits).collect::<Vec<_>>();
        self.add(what, secret);
        self.add(what, hex(|b| format!("{b:02x}")).concat().as_bytes());
        self.add(what, hex(|b| format!("{b:02X}")).concat().as_bytes());
        self.add(what, hex(u8::to_string).join(", ").as_bytes());
        self.add(what, hex(|b| format!("{b:02x}")).join(" ").as_bytes());
    }

    /// The names of secrets in `bytes`.
    pub fn found(&self, bytes: &[u8]) -> HashSet<&str> {
        let windows = bytes.windows(MARK);
        let marks = windows.filter_map(|window| self.marks.get(window));
        marks.map(String::as_str).collect()
    }
}

#[test]
fn the_search_finds_a_secret_in_every_form() {
    let secret: Vec<u8> = (100..132).collect();
    let mut search = Search::default();
    search.add_secret("it", &secret);
    let is_found = |bytes: &[u8]| search.found(&[b"before", bytes, b"after"].concat()).len() == 1;
    assert!(is_found(&secret));
    assert!(is_found(format!("{secret:?}").as_bytes()));
    assert!(is_found(
        format!("{secret:02x?}").replace(", ", "").as_bytes()
    ));
    assert!(!is_found(&secret[1..]));
}
