//! The actions that policies name. Only those of operations that Prism serves exist here.

use super::fits;

macro_rules! actions {
    ($($name:ident $text:literal,)*) => {
        /// An action of S3.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Action { $($name,)* }

        impl Action {
            /// All actions.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in policies, in lower case and without `s3:`.
            const fn lower_case(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

actions! {
    AbortMultipartUpload "abortmultipartupload",
    CreateBucket "createbucket",
    DeleteBucket "deletebucket",
    DeleteBucketPolicy "deletebucketpolicy",
    DeleteObject "deleteobject",
    DeleteObjectTagging "deleteobjecttagging",
    DeleteObjectVersion "deleteobjectversion",
    DeleteObjectVersionTagging "deleteobjectversiontagging",
    GetBucketCors "getbucketcors",
    GetBucketLocation "getbucketlocation",
    GetBucketPolicy "getbucketpolicy",
    GetBucketVersioning "getbucketversioning",
    GetObject "getobject",
    GetObjectAttributes "getobjectattributes",
    GetObjectTagging "getobjecttagging",
    GetObjectVersion "getobjectversion",
    GetObjectVersionAttributes "getobjectversionattributes",
    GetObjectVersionTagging "getobjectversiontagging",
    ListBucket "listbucket",
    ListBucketMultipartUploads "listbucketmultipartuploads",
    ListBucketVersions "listbucketversions",
    ListMultipartUploadParts "listmultipartuploadparts",
    PutBucketCors "putbucketcors",
    PutBucketPolicy "putbucketpolicy",
    PutBucketVersioning "putbucketversioning",
    PutObject "putobject",
    PutObjectTagging "putobjecttagging",
    PutObjectVersionTagging "putobjectversiontagging",
}

/// A set of actions, of which there are at most 32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Actions(u32);

const _: () = assert!(Action::ALL.len() <= 32);

impl Actions {
    pub(crate) const fn of(actions: &[Action]) -> Self {
        let mut set = 0;
        let mut rest = actions;
        while let [first, more @ ..] = rest {
            set |= 1 << *first as u32;
            rest = more;
        }
        Self(set)
    }

    /// The actions that a name or a pattern of a policy stands for; none if it is not known.
    /// Letter case does not count, as in S3.
    pub(crate) fn named(pattern: &str) -> Self {
        let pattern = pattern.to_ascii_lowercase();
        let pattern = match pattern.strip_prefix("s3:") {
            Some(name) => name,
            None if pattern == "*" => "*",
            None => return Self::default(),
        };
        let is_named = |action: &&Action| fits(pattern.chars(), action.lower_case().chars());
        let named = Action::ALL.iter().filter(is_named);
        named.fold(Self::default(), |set, action| set.and(Self::of(&[*action])))
    }

    #[must_use]
    pub(crate) const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) const fn has_all(self, of: Self) -> bool {
        self.0 & of.0 == of.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_stand_for_actions() {
        let named = |text| Actions::named(text);
        assert_eq!(named("s3:GetObject"), Actions::of(&[Action::GetObject]));
        assert_eq!(named("S3:getobject"), Actions::of(&[Action::GetObject]));
        let tags = Actions::of(&[Action::GetObjectTagging, Action::GetObjectVersionTagging]);
        assert_eq!(named("s3:GetObject*Tagging"), tags);
        assert_eq!(named("s3:?etBucketCORS"), named("s3:GetBucketCORS"));
        assert_eq!(named("s3:*"), Actions::of(Action::ALL));
        assert_eq!(named("*"), Actions::of(Action::ALL));
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
