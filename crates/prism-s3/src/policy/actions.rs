//! The actions that policies name. Only those of operations that Prism serves exist here.

use bitflags::bitflags;

use super::fits;

bitflags! {
    /// A set of actions of S3.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Actions: u64 {
        const AbortMultipartUpload = 1 << 0;
        const CreateBucket = 1 << 1;
        const DeleteBucket = 1 << 2;
        const DeleteBucketPolicy = 1 << 3;
        const DeleteBucketWebsite = 1 << 4;
        const DeleteObject = 1 << 5;
        const DeleteObjectTagging = 1 << 6;
        const DeleteObjectVersion = 1 << 7;
        const DeleteObjectVersionTagging = 1 << 8;
        const GetAccelerateConfiguration = 1 << 9;
        const GetAnalyticsConfiguration = 1 << 10;
        const GetBucketAcl = 1 << 11;
        const GetBucketCors = 1 << 12;
        const GetBucketLocation = 1 << 13;
        const GetBucketLogging = 1 << 14;
        const GetBucketNotification = 1 << 15;
        const GetBucketObjectLockConfiguration = 1 << 16;
        const GetBucketOwnershipControls = 1 << 17;
        const GetBucketPolicy = 1 << 18;
        const GetBucketPolicyStatus = 1 << 19;
        const GetBucketPublicAccessBlock = 1 << 20;
        const GetBucketRequestPayment = 1 << 21;
        const GetBucketTagging = 1 << 22;
        const GetBucketVersioning = 1 << 23;
        const GetBucketWebsite = 1 << 24;
        const GetEncryptionConfiguration = 1 << 25;
        const GetIntelligentTieringConfiguration = 1 << 26;
        const GetInventoryConfiguration = 1 << 27;
        const GetLifecycleConfiguration = 1 << 28;
        const GetMetricsConfiguration = 1 << 29;
        const GetObject = 1 << 30;
        const GetObjectAcl = 1 << 31;
        const GetObjectAttributes = 1 << 32;
        const GetObjectTagging = 1 << 33;
        const GetObjectVersion = 1 << 34;
        const GetObjectVersionAcl = 1 << 35;
        const GetObjectVersionAttributes = 1 << 36;
        const GetObjectVersionTagging = 1 << 37;
        const GetReplicationConfiguration = 1 << 38;
        const ListBucket = 1 << 39;
        const ListBucketMultipartUploads = 1 << 40;
        const ListBucketVersions = 1 << 41;
        const ListMultipartUploadParts = 1 << 42;
        const PutBucketCors = 1 << 43;
        const PutBucketOwnershipControls = 1 << 44;
        const PutBucketPolicy = 1 << 45;
        const PutBucketPublicAccessBlock = 1 << 46;
        const PutBucketTagging = 1 << 47;
        const PutBucketVersioning = 1 << 48;
        const PutEncryptionConfiguration = 1 << 49;
        const PutLifecycleConfiguration = 1 << 50;
        const PutObject = 1 << 51;
        const PutObjectTagging = 1 << 52;
        const PutObjectVersionTagging = 1 << 53;
        const PutReplicationConfiguration = 1 << 54;
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
            .filter(|(name, _)| fits(pattern.bytes(), name.to_ascii_lowercase().bytes()));
        named.map(|(_, action)| action).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_actions_have_the_same_bit() {
        assert_eq!(Actions::all().bits().count_ones(), 55);
        assert_eq!(Actions::all().iter_names().count(), 55);
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
            "s3:PutObjectAcl",
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
