//! The encoding of prepared changes.
#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn what_an_older_release_has_prepared_is_of_the_first_epoch() {
    let record = PendingRecord {
        scope: Scope::object("b", "k"),
        epoch: 7,
        stamp: Stamp::NONE,
        before: None,
        change: Change::Remove,
        bytes: None,
    };
    let text = record.encode().unwrap();
    assert_eq!(PendingRecord::decode(&text).unwrap().pending().epoch, 7);
    let text = String::from_utf8(text).unwrap().replace("\"epoch\":7,", "");
    let text = text.replace("\"before\":null,", "");
    let old = PendingRecord::decode(text.as_bytes()).unwrap();
    assert_eq!(old.pending().epoch, 1);
}
