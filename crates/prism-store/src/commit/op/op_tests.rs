//! The operations that share a batch.
use super::*;
use crate::record::Payload;

fn delete(keys: &[&str]) -> Op {
    Op::Delete(DeleteOp {
        bucket: "b".into(),
        deletions: keys
            .iter()
            .map(|key| (key.as_bytes().to_vec(), None))
            .collect(),
        condition: None,
    })
}

fn bucket() -> Op {
    Op::ForgetBucket {
        name: "b".into(),
        stamp: Stamp::NONE,
    }
}

fn part(key: &str, number: u16) -> Op {
    let id = FileId::from_bytes([0; 8]);
    Op::Put(PutOp {
        object_key: key.into(),
        part: Some((UploadId::new(1, 1), number)),
        record: Record::new(Payload::File { id }, 0, ObjectMeta::default()),
        id,
        bytes: PutBytes::File(Vec::new()),
        condition: None,
        quota: None,
    })
}

fn together(ops: &[Op]) -> usize {
    independent(&mut ops.iter())
}

#[test]
fn a_group_ends_before_a_key_repeats_or_a_bucket_is_concerned() {
    fn one(key: &str) -> Op {
        delete(&[key])
    }
    assert_eq!(together(&[one("1"), one("2"), one("1"), one("3")]), 2);
    assert_eq!(together(&[delete(&["1", "2"]), one("2")]), 1);
    assert_eq!(together(&[delete(&["1", "2"]), one("3")]), 2);
    assert_eq!(together(&[one("1"), bucket(), one("2")]), 1);
    assert_eq!(together(&[bucket(), one("1")]), 1);
    assert_eq!(together(&[bucket(), bucket()]), 1);
    let many: Vec<Op> = (0..1000).map(|k| one(&k.to_string())).collect();
    assert_eq!(together(&many), GROUP_MAX);
}

#[test]
fn parts_of_one_upload_go_together_but_not_with_their_object() {
    assert_eq!(together(&[part("k", 1), part("k", 2), part("k", 1)]), 2);
    assert_eq!(together(&[part("k", 1), delete(&["k"])]), 1);
    assert_eq!(together(&[delete(&["k"]), part("k", 1)]), 1);
    assert_eq!(together(&[delete(&["x"]), part("k", 1)]), 2);
}
