#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;

const TAG: [u8; LogTag::LEN] = *b"known to a store";

fn item(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut item = vec![ITEM, 0, 0];
    item.extend_from_slice(&7_u64.to_le_bytes());
    item.extend_from_slice(&u16::try_from(key.len()).unwrap().to_le_bytes());
    for _ in 0..2 {
        item.extend_from_slice(&u32::try_from(value.len()).unwrap().to_le_bytes());
    }
    item.extend_from_slice(key);
    item.extend_from_slice(value);
    item
}

fn batch_of(sequence: u64, items: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(items.len()).unwrap();
    let items = items.concat();
    let mut out = vec![START];
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&items);
    out.push(END);
    out.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&items).to_le_bytes());
    out.extend_from_slice(&TRAILER);
    out
}

/// As the store writes it, with one item.
pub(crate) fn batch(sequence: u64, value: &[u8]) -> Vec<u8> {
    let tag = item(LogTag::KEY.as_bytes(), &TAG);
    batch_of(sequence, &[tag, item(b"key", value)])
}

/// As a user can write it, or an older release has.
pub(crate) fn batch_without_tag(sequence: u64, value: &[u8]) -> Vec<u8> {
    batch_of(sequence, &[item(b"key", value)])
}

pub(crate) fn tag() -> LogTag {
    LogTag(TAG)
}

fn tail_of(bytes: &[u8], tag: Option<LogTag>) -> Tail {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Log::open(file.path(), tag).unwrap().inspect().unwrap()
}

#[test]
fn whole_batches_and_reserved_zeros_are_clean() {
    let value = vec![5; READ_LEN + 17];
    let mut log = [batch(1, b"a"), batch(4, &value), batch(5, b"")].concat();
    assert_eq!(tail_of(&log, Some(tag())), Tail::Clean);
    log.resize(log.len() + 100_000, 0);
    assert_eq!(tail_of(&log, Some(tag())), Tail::Clean);
    assert_eq!(tail_of(&[], Some(tag())), Tail::Clean);
}

#[test]
fn every_cut_of_the_last_batch_is_torn_and_no_cut_is_damage() {
    let first = batch(1, b"first");
    let last = batch(2, b"FJL\x03 is no end in a value");
    for len in 1..last.len() {
        let log = [&first, &last[..len]].concat();
        let at = first.len() as u64;
        assert_eq!(tail_of(&log, Some(tag())), Tail::Torn { at }, "{len} bytes");
        let zeros = [log.as_slice(), &[0; 50]].concat();
        assert_eq!(
            tail_of(&zeros, Some(tag())),
            Tail::Torn { at },
            "{len} bytes"
        );
    }
}

#[test]
fn any_flip_before_the_last_batch_is_damage_unless_it_changes_nothing() {
    let logs = [
        [batch(10, b"one"), batch(20, b"two"), batch(30, b"end")],
        // A log of an older release, followed by the first batch of this one.
        [
            batch_without_tag(10, b"one"),
            batch_without_tag(20, b"two"),
            batch(30, b"end"),
        ],
    ];
    for (log, tag) in logs
        .iter()
        .flat_map(|log| [(log, Some(tag())), (log, None)])
    {
        let [first, second, _] = log;
        let before_last = first.len() + second.len();
        for at in 0..before_last {
            let mut bad = log.concat();
            bad[at] ^= 0x40;
            let found = tail_of(&bad, tag);
            // A lower sequence number of the first batch, which has no order to keep.
            let harmless = (5..13).contains(&at);
            assert!(
                matches!(found, Tail::Damaged { .. }) || harmless,
                "byte {at}: {found:?}"
            );
        }
    }
}

#[test]
fn a_sequence_number_that_no_store_reaches_is_damage_also_at_the_end() {
    for bit in [62, 63] {
        let log = [batch(1, b"first"), batch(2 | 1 << bit, b"last")];
        let at = log[0].len() as u64;
        assert_eq!(tail_of(&log.concat(), Some(tag())), Tail::Damaged { at });
        assert_eq!(tail_of(&log[1], Some(tag())), Tail::Damaged { at: 0 });
    }
}

/// The pages of a batch reach the disk in any order, and a user has chosen what is in
/// most of them.
#[test]
fn a_torn_batch_is_torn_whatever_an_object_in_it_looks_like() {
    let first = batch(1, b"first");
    let at = first.len() as u64;
    let forged: Vec<u8> = (2..40)
        .flat_map(|sequence| batch_without_tag(sequence, b"forged"))
        .collect();
    let last = batch(2, &forged);
    for lost in 1..last.len() {
        let mut log = [first.as_slice(), &last].concat();
        log[first.len()..first.len() + lost].fill(0);
        let found = tail_of(&log, Some(tag()));
        assert_eq!(found, Tail::Torn { at }, "{lost} bytes are lost");
    }
    // Without the tag the damage cannot be told from a torn tail.
    let mut log = [first.as_slice(), &last].concat();
    log[first.len()..first.len() + TAG_END].fill(0);
    assert_eq!(tail_of(&log, None), Tail::Damaged { at });
}
