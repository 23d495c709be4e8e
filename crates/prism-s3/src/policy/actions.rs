//! The actions that policies name. Only those of operations that Prism serves exist here.

use bitflags::bitflags;

use super::fits;

bitflags! {
    /// A set of actions of S3.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Actions: u32 {
        const AbortMultipartUpload = 1 << 0;
        const CreateBucket = 1 << 1;
        const DeleteBucket = 1 << 2;
        const DeleteBucketPolicy = 1 << 3;
        const DeleteObject = 1 << 4;
        const DeleteObjectTagging = 1 << 5;
        const DeleteObjectVersion = 1 << 6;
        const DeleteObjectVersionTagging = 1 << 7;
        const GetBucketCors = 1 << 8;
        const GetBucketLocation = 1 << 9;
        const GetBucketPolicy = 1 << 10;
        const GetBucketVersioning = 1 << 11;
        const GetObject = 1 << 12;
        const GetObjectAttributes = 1 << 13;
        const GetObjectTagging = 1 << 14;
        const GetObjectVersion = 1 << 15;
        const GetObjectVersionAttributes = 1 << 16;
        const GetObjectVersionTagging = 1 << 17;
        const ListBucket = 1 << 18;
        const ListBucketMultipartUploads = 1 << 19;
        const ListBucketVersions = 1 << 20;
        const ListMultipartUploadParts = 1 << 21;
        const PutBucketCors = 1 << 22;
        const PutBucketPolicy = 1 << 23;
        const PutBucketVersioning = 1 << 24;
        const PutObject = 1 << 25;
        const PutObjectTagging = 1 << 26;
        const PutObjectVersionTagging = 1 << 27;
    }
}

impl Actions {
    /// The actions that a name or a pattern of a policy stands for; none if it is not known.
    /// Letter case does not count, as in S3.
    pub(crate) fn named(pattern: &str) -> Self {
        let pattern = pattern.to_ascii_lowercase();
        let pattern = match pattern.strip_prefix("s3:") {
            Some(name) => name,
            None if pattern == "*" => "*",
            None => return Self::default(),
        };
        let named = Self::all()
            .iter_names()
            .filter(|(name, _)| fits(pattern.chars(), name.to_ascii_lowercase().chars()));
        named.map(|(_, action)| action).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_actions_have_the_same_bit() {
        assert_eq!(Actions::all().bits().count_ones(), 28);
        assert_eq!(Actions::all().iter_names().count(), 28);
    }

    #[test]
    fn names_and_patterns_stand_for_actions() {
        let named = |text| Actions::named(text);
        assert_eq!(named("s3:GetObject"), Actions::GetObject);
        assert_eq!(named("S3:getobject"), Actions::GetObject);
        let tags = Actions::GetObjectTagging | Actions::GetObjectVersionTagging;
        assert_eq!(named("s3:GetObject*Tagging"), tags);
        assert_eq!(named("s3:?etBucketCORS"), named("s3:GetBucketCORS"));
        assert_eq!(named("s3:*"), Actions::all());
        assert_eq!(named("*"), Actions::all());
        for unknown in [
            "s3:GetObjectAcl",
            "iam:*",
            "GetObject",
            "s3:",
            "",
            "sqs:GetObject",
        ] {
            assert!(named(unknown).is_empty(), "{unknown}");
        }
    }
}
