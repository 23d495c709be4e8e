//! Tests of the placement: its hash never changes, it is even, and it moves
//! only what it must.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;

use super::*;
use crate::state::{NODES_MAX, Placing, StateError};

fn names(count: usize) -> BTreeSet<NodeName> {
    (0..count)
        .map(|i| NodeName::new(format!("be{i}")).unwrap())
        .collect()
}

fn keys() -> impl Iterator<Item = String> {
    (0..20_000).map(|i| format!("photos/2024/{i}.jpg"))
}

fn owner(placement: &Placement, key: &str) -> NodeName {
    placement.owner("bucket", key).unwrap().clone()
}

#[test]
fn a_weight_is_the_hash_of_the_documented_bytes() {
    let mut bytes = Vec::new();
    for part in ["be0", "bucket", "some/key"] {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    let expected = SipHasher24::new_with_keys(KEY.0, KEY.1).hash(&bytes);
    let node = Node::new(NodeName::new("be0").unwrap());
    assert_eq!(node.weight("bucket", "some/key"), expected);
}

#[test]
fn each_node_owns_its_even_share() {
    let placement = Placement::new(&names(5));
    let mut owned: HashMap<NodeName, i64> = HashMap::new();
    for key in keys() {
        *owned.entry(owner(&placement, &key)).or_default() += 1;
    }
    assert_eq!(owned.len(), 5);
    // Mean 4,000, standard deviation 57: five of those each way.
    for (name, count) in owned {
        assert!((count - 4000).abs() < 285, "{name} owns {count}");
    }
}

#[test]
fn a_new_node_takes_its_share_and_nothing_else_moves() {
    let before = Placement::new(&names(5));
    let after = Placement::new(&names(6));
    let mut moved = 0_i64;
    for key in keys() {
        let (old, new) = (owner(&before, &key), owner(&after, &key));
        if old != new {
            assert_eq!(new.as_str(), "be5");
            moved += 1;
        }
    }
    assert!((moved - 20_000 / 6).abs() < 265, "{moved} moved");
}

#[test]
fn a_node_that_leaves_loses_its_own_objects_and_no_other_moves() {
    let before = Placement::new(&names(5));
    let mut rest = names(5);
    let gone = NodeName::new("be2").unwrap();
    assert!(rest.remove(&gone));
    let after = Placement::new(&rest);
    for key in keys() {
        let old = owner(&before, &key);
        if old != gone {
            assert_eq!(owner(&after, &key), old);
        } else {
            // Its objects go to whoever was their second replica.
            let second = before.owners("bucket", &key, 2).nth(1).unwrap();
            assert_eq!(&owner(&after, &key), second);
        }
    }
}

#[test]
fn owners_are_distinct_and_fewer_replicas_are_a_head_of_more() {
    let placement = Placement::new(&names(7));
    for key in keys().take(200) {
        let all: Vec<_> = placement.owners("bucket", &key, 7).collect();
        assert_eq!(
            all.iter().collect::<std::collections::HashSet<_>>().len(),
            7
        );
        for replicas in 0..10 {
            let some: Vec<_> = placement.owners("bucket", &key, replicas).collect();
            assert_eq!(some, all[..replicas.min(7)]);
        }
    }
}

#[test]
fn boundaries_between_bucket_and_key_count() {
    let node = Node::new(NodeName::new("n").unwrap());
    assert_ne!(node.weight("ab", "c"), node.weight("a", "bc"));
}

#[test]
fn unusable_names_and_lists_are_refused() {
    assert!(NodeName::new("").is_err());
    assert!(NodeName::new("x".repeat(256)).is_err());
    assert_eq!(Placing::new([], 1), Err(StateError::NoMembers));
    let many = Placing::new(names(NODES_MAX + 1), 1);
    assert_eq!(many, Err(StateError::TooManyMembers));
}

/// Computed by an independent implementation of the documented function. If this fails, objects
/// stored by earlier releases are no longer found. docs/protocol.md, section 2.6, has some of
/// these values.
#[test]
fn weights_and_owners_are_what_they_have_always_been() {
    let long = "k".repeat(1024);
    let weights = [
        ("be0", "bucket", "some/key", 0xb75e_a860_2bb9_d632_u64),
        ("be0", "photos", "2024/été.jpg", 0x2b17_7ad6_01ee_02fb),
        ("be0", "b", &long, 0x8f28_f773_1d99_833a),
        ("be1", "bucket", "some/key", 0x467c_d2a4_afff_2c7a),
        ("be2", "bucket", "some/key", 0xbc82_817d_ca96_ccee),
        (
            "backend-eu.example",
            "photos",
            "2024/été.jpg",
            0xd1b2_6caa_7c15_4395,
        ),
        ("backend-eu.example", "b", &long, 0x6c82_7a35_de2a_dff7),
    ];
    for (name, bucket, key, weight) in weights {
        let node = Node::new(NodeName::new(name).unwrap());
        assert_eq!(node.weight(bucket, key), weight, "{name} {bucket} {key}");
    }
    let owners = [
        ("a", ["be2", "be4", "be0"]),
        ("b", ["be0", "be3", "be1"]),
        ("c", ["be4", "be3", "be2"]),
        ("some/key", ["be2", "be0", "be4"]),
        ("photos/1.jpg", ["be0", "be1", "be3"]),
        ("photos/2.jpg", ["be0", "be3", "be2"]),
    ];
    let placement = Placement::new(&names(5));
    for (key, expected) in owners {
        let found: Vec<_> = placement
            .owners("bucket", key, 3)
            .map(NodeName::as_str)
            .collect();
        assert_eq!(found, expected, "{key}");
    }
}

#[test]
fn a_digest_is_of_the_names_and_the_replicas_and_stays_the_same() {
    let of = |names: &[&str], replicas| {
        let names = names.iter().map(|name| NodeName::new(*name).unwrap());
        Placing::new(names, replicas).unwrap().digest()
    };
    let one = of(&["be0", "be1", "be2"], 1);
    assert_eq!(one, of(&["be2", "be0", "be1"], 1), "in whatever order");
    let others = [
        of(&["be0", "be1", "be2"], 2),
        of(&["be0", "be1"], 1),
        of(&["be0", "be1be2"], 1),
        of(&["be0", "be1", "be3"], 1),
        Placing::digest_in_etcd("/prism/demo/"),
        Placing::digest_in_etcd("/prism/lab/"),
    ];
    for (n, other) in others.iter().enumerate() {
        assert!(*other != one && !others[n + 1..].contains(other), "{n}");
    }
    // Written down in docs/protocol.md.
    let digests = [one, others[0], others[4]];
    let expected = [
        0x1c4b_c822_d651_6ca8,
        0x4b11_794e_8f51_6c32,
        0x1ba2_8f15_7930_d422,
    ];
    assert_eq!(digests, expected, "{digests:#x?}");
}
