//! The body of an error's answer.

use super::write::Document;
use crate::S3Error;

impl S3Error {
    /// The XML body. `resource` is the path of the request.
    pub fn xml(&self, resource: &str, request_id: &str) -> Vec<u8> {
        let mut doc = Document::new();
        doc.element("Error", |doc| {
            doc.text("Code", self.code().as_str());
            doc.text("Message", self.message());
            for (name, text) in self.details() {
                doc.text(name, text);
            }
            doc.text("Resource", resource);
            doc.text("RequestId", request_id);
        });
        doc.finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Code;

    #[test]
    fn the_body_names_code_resource_and_request_and_is_escaped() {
        let error = Code::NoSuchKey.with_message("no <such> & key");
        let body = String::from_utf8(error.xml("/b/a&b", "r1")).unwrap();
        assert_eq!(
            body,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>\
             <Message>no &lt;such&gt; &amp; key</Message><Resource>/b/a&amp;b</Resource>\
             <RequestId>r1</RequestId></Error>"
        );
        assert_eq!(error.status(), 404);
        let elsewhere =
            S3Error::new(Code::AuthorizationHeaderMalformed).with_detail("Region", "here");
        let body = String::from_utf8(elsewhere.xml("/", "r1")).unwrap();
        assert!(body.contains("<Region>here</Region>"), "{body}");
    }
}
