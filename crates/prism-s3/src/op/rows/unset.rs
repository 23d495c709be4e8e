//! Configurations that S3 has and that no bucket of Prism can have.
//!
//! Clients such as Terraform read all of them. The answer is that of S3 about a bucket whose owner
//! has set none, and a deletion succeeds. [`crate::unsupported`] refuses to set one.

use super::{DELETE, Entry, GET, OWNER, READ_OR_OWNER};
use crate::Code;
use crate::op::row::{Answerer, Body, Permission, Request, Row};
use crate::policy::actions::Actions;
use crate::xml::acl;
use crate::xml::write::document;

/// Makes the operations, their table, and their answers. Each row has, in this order:
///
/// - the name in Amazon's API
/// - the method and the parameters of its request
/// - the rights of which one is needed, and the action of policies
/// - the answer
macro_rules! unset {
    ($(
        $name:ident $method:ident $parameters:expr,
        $rights:ident $action:ident, $answer:expr;
    )*) => {
        /// An operation on a configuration that no bucket has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are those of Amazon's API")]
        pub enum UnsetConfiguration { $($name,)* }

        /// The table of these operations, of which the first that fits a request counts.
        pub(in crate::op) static UNSET: &[&Entry<UnsetConfiguration>] =
            &[$(UnsetConfiguration::$name.entry(),)*];

        impl UnsetConfiguration {
            const fn entry(self) -> &'static Entry<Self> {
                match self {
                    $(Self::$name => {
                        static ENTRY: Entry<UnsetConfiguration> = Entry {
                            row: Row {
                                name: stringify!($name),
                                request: Request::new($method, &$parameters),
                                permission: Permission::OneOf($rights, Actions::$action),
                                body: Body::Skipped,
                                answerer: Answerer::Backend,
                                moves_connection: false,
                            },
                            read: |_| Ok(UnsetConfiguration::$name),
                        };
                        &ENTRY
                    })*
                }
            }

            /// The facts of the operation that do not depend on its parameters.
            pub const fn row(self) -> &'static Row {
                &self.entry().row
            }

            /// The document of the answer; `None` for a deletion, which is answered 204.
            ///
            /// # Errors
            /// The code that S3 answers without the configuration.
            pub fn answer(self) -> Result<Option<Vec<u8>>, Code> {
                match self { $(Self::$name => $answer,)* }
            }
        }
    };
}

unset! {
    GetBucketAcl GET ["acl"],
        READ_OR_OWNER GetBucketAcl, Ok(Some(acl()));
    GetBucketTagging GET ["tagging"],
        READ_OR_OWNER GetBucketTagging, Err(Code::NoSuchTagSet);
    DeleteBucketTagging DELETE ["tagging"],
        OWNER PutBucketTagging, Ok(None);
    GetBucketLifecycleConfiguration GET ["lifecycle"],
        READ_OR_OWNER GetLifecycleConfiguration, Err(Code::NoSuchLifecycleConfiguration);
    DeleteBucketLifecycle DELETE ["lifecycle"],
        OWNER PutLifecycleConfiguration, Ok(None);
    GetBucketWebsite GET ["website"],
        READ_OR_OWNER GetBucketWebsite, Err(Code::NoSuchWebsiteConfiguration);
    DeleteBucketWebsite DELETE ["website"],
        OWNER DeleteBucketWebsite, Ok(None);
    GetBucketReplication GET ["replication"],
        READ_OR_OWNER GetReplicationConfiguration, Err(Code::ReplicationConfigurationNotFoundError);
    DeleteBucketReplication DELETE ["replication"],
        OWNER PutReplicationConfiguration, Ok(None);
    // S3 encrypts every object by default. Prism does not, so it does not say that it does.
    GetBucketEncryption GET ["encryption"],
        READ_OR_OWNER GetEncryptionConfiguration,
        Err(Code::ServerSideEncryptionConfigurationNotFoundError);
    DeleteBucketEncryption DELETE ["encryption"],
        OWNER PutEncryptionConfiguration, Ok(None);
    GetPublicAccessBlock GET ["publicAccessBlock"],
        READ_OR_OWNER GetBucketPublicAccessBlock, Err(Code::NoSuchPublicAccessBlockConfiguration);
    DeletePublicAccessBlock DELETE ["publicAccessBlock"],
        OWNER PutBucketPublicAccessBlock, Ok(None);
    GetBucketOwnershipControls GET ["ownershipControls"],
        READ_OR_OWNER GetBucketOwnershipControls, Ok(Some(ownership_controls()));
    DeleteBucketOwnershipControls DELETE ["ownershipControls"],
        OWNER PutBucketOwnershipControls, Ok(None);
    GetObjectLockConfiguration GET ["object-lock"],
        READ_OR_OWNER GetBucketObjectLockConfiguration,
        Err(Code::ObjectLockConfigurationNotFoundError);
    GetBucketNotificationConfiguration GET ["notification"],
        READ_OR_OWNER GetBucketNotification, empty("NotificationConfiguration");
    GetBucketLogging GET ["logging"],
        READ_OR_OWNER GetBucketLogging, empty("BucketLoggingStatus");
    GetBucketAccelerateConfiguration GET ["accelerate"],
        READ_OR_OWNER GetAccelerateConfiguration, empty("AccelerateConfiguration");
    GetBucketRequestPayment GET ["requestPayment"],
        READ_OR_OWNER GetBucketRequestPayment, Ok(Some(request_payment()));
    // A bucket has many configurations of these kinds, each with an `id`.
    GetBucketAnalyticsConfiguration GET ["analytics", "id"],
        READ_OR_OWNER GetAnalyticsConfiguration, Err(Code::NoSuchConfiguration);
    ListBucketAnalyticsConfigurations GET ["analytics"],
        READ_OR_OWNER GetAnalyticsConfiguration, none("ListBucketAnalyticsConfigurationResult");
    GetBucketInventoryConfiguration GET ["inventory", "id"],
        READ_OR_OWNER GetInventoryConfiguration, Err(Code::NoSuchConfiguration);
    ListBucketInventoryConfigurations GET ["inventory"],
        READ_OR_OWNER GetInventoryConfiguration, none("ListInventoryConfigurationsResult");
    GetBucketMetricsConfiguration GET ["metrics", "id"],
        READ_OR_OWNER GetMetricsConfiguration, Err(Code::NoSuchConfiguration);
    ListBucketMetricsConfigurations GET ["metrics"],
        READ_OR_OWNER GetMetricsConfiguration, none("ListMetricsConfigurationsResult");
    GetBucketIntelligentTieringConfiguration GET ["intelligent-tiering", "id"],
        READ_OR_OWNER GetIntelligentTieringConfiguration, Err(Code::NoSuchConfiguration);
    ListBucketIntelligentTieringConfigurations GET ["intelligent-tiering"],
        READ_OR_OWNER GetIntelligentTieringConfiguration,
        none("ListBucketIntelligentTieringConfigurationsOutput");
}

/// A document without content.
fn empty(root: &str) -> Result<Option<Vec<u8>>, Code> {
    Ok(Some(document(root, |_| {})))
}

/// A list without entries.
fn none(root: &str) -> Result<Option<Vec<u8>>, Code> {
    Ok(Some(document(root, |doc| doc.text("IsTruncated", "false"))))
}

fn ownership_controls() -> Vec<u8> {
    document("OwnershipControls", |doc| {
        doc.element("Rule", |doc| {
            doc.text("ObjectOwnership", "BucketOwnerEnforced");
        });
    })
}

fn request_payment() -> Vec<u8> {
    document("RequestPaymentConfiguration", |doc| {
        doc.text("Payer", "BucketOwner");
    })
}
