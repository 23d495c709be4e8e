//! The domains below which the names of hosts name buckets ("virtual-hosted style"):
//! `https://BUCKET.domain/KEY` is `https://domain/BUCKET/KEY`.
//!
//! The node that verifies a request moves the name to the path, once. All other code, and every
//! node that gets the request later, knows requests in path style only.
//!
//! Reference: "Virtual hosting of general purpose buckets" in the Amazon S3 user guide.

use prism_http::RequestHead;

use crate::{BucketName, S3Error};

/// The domains of a service.
#[derive(Debug, Clone, Default)]
pub struct Domains(Vec<String>);

impl Domains {
    /// These domains, in any letter case.
    pub fn new(domains: &[String]) -> Self {
        Self(domains.to_vec())
    }

    /// Moves the bucket that the host of a request names to its path. A host that is no domain, and
    /// a domain itself, name no bucket.
    ///
    /// # Errors
    /// `InvalidBucketName`.
    pub fn move_bucket(&self, head: &mut RequestHead) -> Result<(), S3Error> {
        let Some(name) = head.host_name().and_then(|host| self.bucket_of(host)) else {
            return Ok(());
        };
        let rest = head.host().and_then(|host| host.get(name.len() + 1..));
        let rest = rest.unwrap_or_default().to_owned();
        let bucket = BucketName::parse(&name.to_ascii_lowercase())?;
        Ok(head.move_host_to_path(bucket.as_str(), &rest)?)
    }

    /// The part of a host's name in front of the longest domain.
    fn bucket_of<'h>(&self, host: &'h str) -> Option<&'h str> {
        if self
            .0
            .iter()
            .any(|domain| domain.eq_ignore_ascii_case(host))
        {
            return None;
        }
        let in_front = self.0.iter().filter_map(|domain| {
            let (front, end) = host.split_at_checked(host.len().checked_sub(domain.len())?)?;
            let is_below = end.eq_ignore_ascii_case(domain);
            front.strip_suffix('.').filter(|_| is_below)
        });
        in_front.min_by_key(|front| front.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    fn domains() -> Domains {
        Domains::new(&["Example.org".to_owned(), "s3.example.org".to_owned()])
    }

    /// The target and the host of a request.
    fn moved(target: &str, host: &str) -> Result<(String, String), S3Error> {
        let text = format!("GET {target} HTTP/1.1\r\nA: b\r\nHost: {host}\r\nC: d\r\n\r\n");
        let parse = |bytes: &[u8]| {
            RequestHead::parse(bytes, &Limits::DEFAULT)
                .unwrap()
                .unwrap()
        };
        let (mut head, len) = parse(text.as_bytes());
        domains().move_bucket(&mut head)?;
        if let Some(bytes) = head.take_rewritten() {
            // Other nodes read the same head, which is no longer.
            let (again, all) = parse(&bytes);
            assert_eq!((again, all), (head.clone(), bytes.len()));
            assert!(bytes.len() <= len);
            assert_eq!(head.headers().get_str("c"), Some("d"));
        }
        let host = head.host().unwrap_or_default().to_owned();
        Ok((head.target().to_owned(), host))
    }

    #[test]
    fn a_host_below_a_domain_names_a_bucket_and_other_hosts_do_not() {
        for (target, host, path, rest) in [
            ("/k", "bkt.s3.example.org", "/bkt/k", "s3.example.org"),
            (
                "/k?a=b",
                "bkt.example.org:80",
                "/bkt/k?a=b",
                "example.org:80",
            ),
            ("/", "my.bkt.s3.example.org.", "/my.bkt/", "s3.example.org."),
            (
                "//a%2Fb",
                "BKT.S3.Example.ORG",
                "/bkt//a%2Fb",
                "S3.Example.ORG",
            ),
            (
                "http://bkt.example.org/k",
                "bkt.example.org",
                "/bkt/k",
                "example.org",
            ),
            (
                "http://bkt.example.org?q",
                "bkt.example.org",
                "/bkt/?q",
                "example.org",
            ),
        ] {
            let moved = moved(target, host).unwrap();
            assert_eq!(moved, (path.to_owned(), rest.to_owned()), "{host}");
        }
        for host in [
            "example.org",
            "s3.example.org",
            "S3.example.org:8080",
            "bktexample.org",
            "example.com",
            "10.0.0.1",
            "[::1]:80",
        ] {
            let same = ("/bkt/k".to_owned(), host.to_owned());
            assert_eq!(moved("/bkt/k", host).unwrap(), same);
        }
    }

    #[test]
    fn a_name_that_no_bucket_can_have_is_refused() {
        for host in [
            "a_b.example.org",
            ".example.org",
            "a%2fb.example.org",
            "x.example.org",
        ] {
            let code = moved("/bkt/k", host).unwrap_err().code();
            assert_eq!(code, crate::Code::InvalidBucketName, "{host}");
        }
    }
}
