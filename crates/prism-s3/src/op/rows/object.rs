//! The operations on objects, and on uploads of them.

use Body::{Data, Skipped};

use super::{DELETE, DOCUMENT, Entry, GET, HEAD, LONG_LIST, POST, PUT, READ, WRITE, table};
use crate::conditions::Conditions;
use crate::op::params::{upload_id, version_id};
use crate::op::row::{Answerer, Body, Permission, Request, Row};
use crate::op::{
    Attributes, CompleteUpload, CopyObject, CopyPart, CreateUpload, ListParts,
    ObjectOperation as Op, PutObject, ReadObject, UploadPart,
};
use crate::policy::actions::Actions;

/// The parameter of operations that may be about a version.
const VERSION: &[&str] = &["versionId"];

table! { OBJECT of Op:
    // s3fs sends the directive when it renames a large file. S3 accepts it.
    CREATE_UPLOAD "CreateMultipartUpload" Op::CreateUpload(_) =>
        Request::new(POST, &["uploads"]).ignoring(&["metadata-directive"]),
        OneOf(WRITE, [PutObject]), Skipped, Owner,
        |given| CreateUpload::parse(given).map(Op::CreateUpload);
    UPLOAD_PART "UploadPart" Op::UploadPart(_) =>
        Request::new(PUT, &["uploadId", "partNumber"]),
        OneOf(WRITE, [PutObject]), Data, Owner moving,
        |given| UploadPart::parse(given).map(Op::UploadPart);
    COPY_PART "UploadPartCopy" Op::CopyPart(_) =>
        Request::new(PUT, &["uploadId", "partNumber"]).copying(),
        OneOf(WRITE, [PutObject]), Skipped, Owner,
        |given| CopyPart::parse(given).map(Op::CopyPart);
    LIST_PARTS "ListParts" Op::ListParts(_) =>
        Request::new(GET, &["uploadId"]).with(&ListParts::PARAMETERS),
        OneOf(WRITE, [ListMultipartUploadParts]), Skipped, Owner,
        |given| ListParts::parse(given).map(Op::ListParts);
    COMPLETE_UPLOAD "CompleteMultipartUpload" Op::CompleteUpload(_) =>
        Request::new(POST, &["uploadId"]), OneOf(WRITE, [PutObject]), LONG_LIST, Owner,
        |given| CompleteUpload::parse(given).map(Op::CompleteUpload);
    ABORT_UPLOAD "AbortMultipartUpload" Op::AbortUpload { .. } =>
        Request::new(DELETE, &["uploadId"]), OneOf(WRITE, [AbortMultipartUpload]), Skipped, Owner,
        |given| {
            let upload = upload_id(given);
            Ok(Op::AbortUpload { upload })
        };
    GET_TAGGING "GetObjectTagging" Op::GetTagging { .. } =>
        Request::new(GET, &["tagging"]).with(VERSION),
        OfVersion(READ, [GetObjectTagging], [GetObjectVersionTagging]), Skipped, Replica,
        |given| version_id(given).map(|version| Op::GetTagging { version });
    PUT_TAGGING "PutObjectTagging" Op::PutTagging { .. } =>
        Request::new(PUT, &["tagging"]).with(VERSION),
        OfVersion(WRITE, [PutObjectTagging], [PutObjectVersionTagging]), DOCUMENT, Owner,
        |given| version_id(given).map(|version| Op::PutTagging { version });
    DELETE_TAGGING "DeleteObjectTagging" Op::DeleteTagging { .. } =>
        Request::new(DELETE, &["tagging"]).with(VERSION),
        OfVersion(WRITE, [DeleteObjectTagging], [DeleteObjectVersionTagging]), Skipped, Owner,
        |given| version_id(given).map(|version| Op::DeleteTagging { version });
    GET_ACL "GetObjectAcl" Op::GetAcl { .. } =>
        Request::new(GET, &["acl"]).with(VERSION),
        OfVersion(READ, [GetObjectAcl], [GetObjectVersionAcl]), Skipped, Replica,
        |given| version_id(given).map(|version| Op::GetAcl { version });
    GET_ATTRIBUTES "GetObjectAttributes" Op::GetAttributes(_) =>
        Request::new(GET, &["attributes"]).with(VERSION),
        OfVersion(
            READ,
            [GetObject, GetObjectAttributes],
            [GetObjectVersion, GetObjectVersionAttributes]
        ), Skipped, Replica,
        |given| Attributes::parse(given).map(Op::GetAttributes);
    GET_OBJECT "GetObject" Op::Get(_) =>
        Request::new(GET, &[]).with(&ReadObject::PARAMETERS),
        OfVersion(READ, [GetObject], [GetObjectVersion]), Skipped, Replica moving,
        |given| ReadObject::parse(given).map(Op::Get);
    HEAD_OBJECT "HeadObject" Op::Head(_) =>
        Request::new(HEAD, &[]).with(&ReadObject::PARAMETERS),
        OfVersion(READ, [GetObject], [GetObjectVersion]), Skipped, Replica,
        |given| ReadObject::parse(given).map(Op::Head);
    PUT_OBJECT "PutObject" Op::Put(_) =>
        Request::new(PUT, &[]), OneOf(WRITE, [PutObject]), Data, Owner moving,
        |given| PutObject::parse(given).map(Op::Put);
    COPY_OBJECT "CopyObject" Op::Copy(_) =>
        Request::new(PUT, &[]).copying(), OneOf(WRITE, [PutObject]), Skipped, Owner,
        |given| CopyObject::parse(given).map(|copy| Op::Copy(Box::new(copy)));
    DELETE_OBJECT "DeleteObject" Op::Delete { .. } =>
        Request::new(DELETE, &[]).with(VERSION),
        OfVersion(WRITE, [DeleteObject], [DeleteObjectVersion]), Skipped, Owner,
        |given| {
            Ok(Op::Delete {
                version: version_id(given)?,
                conditions: Conditions::from_headers(given.head.headers()),
            })
        };
}
