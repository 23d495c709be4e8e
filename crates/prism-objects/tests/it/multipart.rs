//! Uploads in parts.

use crate::support::Server;

const PART_BYTES: usize = 5 << 20;

fn begin(server: &Server) -> String {
    let begun = server.send("POST /bkt/k?uploads", &[], &[]);
    assert_eq!(begun.status, 200, "{}", begun.text());
    begun.elements("UploadId")[0].to_owned()
}

fn list(parts: &[(u16, &str)]) -> String {
    let part = |(number, etag): &(u16, &str)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let parts: String = parts.iter().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

#[test]
fn an_object_is_made_of_its_parts_in_their_order() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let upload = begin(&server);
    let part = |number: u8, bytes: &[u8]| {
        let start = format!("PUT /bkt/k?partNumber={number}&uploadId={upload}");
        let put = server.send(&start, &[], bytes);
        assert_eq!(put.status, 200, "{}", put.text());
        put.header("etag").to_owned()
    };
    let second = part(2, b"the end");
    let first = part(1, &vec![7; PART_BYTES]);
    let listed = server.send(&format!("GET /bkt/k?uploadId={upload}"), &[], &[]);
    assert_eq!(listed.elements("PartNumber"), ["1", "2"]);
    assert_eq!(
        server
            .send("GET /bkt?uploads", &[], &[])
            .elements("UploadId"),
        [upload.as_str()]
    );
    let complete = |parts: &[(u16, &str)]| {
        let start = format!("POST /bkt/k?uploadId={upload}");
        server.send(&start, &[], list(parts).as_bytes())
    };
    let unordered = complete(&[(2, &second), (1, &first)]);
    assert_eq!(unordered.elements("Code"), ["InvalidPartOrder"]);
    let wrong = complete(&[(1, &second), (2, &second)]);
    assert_eq!(wrong.elements("Code"), ["InvalidPart"]);
    let made = complete(&[(1, &first), (2, &second)]);
    assert_eq!(made.status, 200, "{}", made.text());
    // A client that did not hear the answer asks again.
    assert_eq!(complete(&[(1, &first), (2, &second)]).status, 200);
    let got = server.send("GET /bkt/k", &[], &[]);
    assert_eq!(got.body.len(), PART_BYTES + 7);
    assert!(got.body.ends_with(b"\x07the end"));
    let across = format!("bytes={}-{}", PART_BYTES - 1, PART_BYTES + 2);
    let got = server.send("GET /bkt/k", &[("Range", &across)], &[]);
    assert_eq!(got.body, b"\x07the");
    let got = server.send("GET /bkt/k?partNumber=2", &[], &[]);
    assert_eq!((got.status, got.text()), (206, "the end"));
}

#[test]
fn an_upload_that_is_aborted_or_too_short_makes_no_object() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let upload = begin(&server);
    let part = format!("PUT /bkt/k?partNumber=1&uploadId={upload}");
    let first = server.send(&part, &[], b"short");
    let second = server.send(&part.replace("Number=1", "Number=2"), &[], b"last");
    let parts = [(1, first.header("etag")), (2, second.header("etag"))];
    let start = format!("POST /bkt/k?uploadId={upload}");
    let refused = server.send(&start, &[], list(&parts).as_bytes());
    assert_eq!(refused.elements("Code"), ["EntityTooSmall"]);
    let aborted = server.send(&format!("DELETE /bkt/k?uploadId={upload}"), &[], &[]);
    assert_eq!(aborted.status, 204);
    let late = server.send(&part, &[], b"late");
    assert_eq!(late.elements("Code"), ["NoSuchUpload"]);
    assert_eq!(server.send("GET /bkt/k", &[], &[]).status, 404);
}
