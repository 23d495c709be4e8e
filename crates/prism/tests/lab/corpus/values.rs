//! The stand-ins for a value that differs between runs, in requests and in records.

use std::collections::BTreeMap;

use aws_lc_rs::{digest, hmac};
use prism_cluster::Placement;
use prism_http::Headers;
use prism_s3::canonical::{SERVICE, Scope, signing_key};
use prism_s3::time::iso_basic;
use prism_signer::{Body, Signer};
use time::OffsetDateTime;

use super::bytes::{escape, known_bytes, name_known_bytes, unescape};

/// Keys end with a number of so many digits, so that all records have equal lengths.
const KEY_DIGITS: usize = 3;

/// A value in answers that differs between runs.
struct Varying {
    before: &'static str,
    after: &'static str,
    name: &'static str,
    is_value: fn(&str) -> bool,
}

/// All that a record leaves out, beside keys, buckets and addresses.
const VARYING: &[Varying] = &[
    Varying {
        before: "\r\nDate: ",
        after: "\r\n",
        name: "date",
        is_value: is_http_date,
    },
    Varying {
        before: "\r\nLast-Modified: ",
        after: "\r\n",
        name: "date",
        is_value: is_http_date,
    },
    Varying {
        before: "\r\nx-amz-request-id: ",
        after: "\r\n",
        name: "request-id",
        is_value: is_id,
    },
    Varying {
        before: "\r\nX-Request-ID: ",
        after: "\r\n",
        name: "request-id",
        is_value: is_id,
    },
    Varying {
        before: "<RequestId>",
        after: "</RequestId>",
        name: "request-id",
        is_value: is_id,
    },
    Varying {
        before: "<LastModified>",
        after: "</LastModified>",
        name: "time",
        is_value: is_time,
    },
    Varying {
        before: "<CreationDate>",
        after: "</CreationDate>",
        name: "time",
        is_value: is_time,
    },
    Varying {
        before: "<Initiated>",
        after: "</Initiated>",
        name: "time",
        is_value: is_time,
    },
    Varying {
        before: "<UploadId>",
        after: "</UploadId>",
        name: "upload",
        is_value: is_id,
    },
    Varying {
        before: "\r\nx-amz-version-id: ",
        after: "\r\n",
        name: "version",
        is_value: is_id,
    },
    Varying {
        before: "<VersionId>",
        after: "</VersionId>",
        name: "version",
        is_value: is_id,
    },
    Varying {
        before: "<DeleteMarkerVersionId>",
        after: "</DeleteMarkerVersionId>",
        name: "version",
        is_value: is_id,
    },
];

fn is_http_date(text: &str) -> bool {
    text.len() == "Sat, 28 Nov 2026 19:43:34 GMT".len() && text.ends_with(" GMT")
}

fn is_time(text: &str) -> bool {
    text.len() == "2026-11-28T19:43:34.000Z".len() && text.ends_with('Z')
}

fn is_id(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/=".contains(&byte);
    text.len() >= 16 && text.bytes().all(is_part)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The values of one way through a file.
pub struct Values<'c> {
    signer: &'c Signer,
    secret: String,
    region: String,
    placement: Placement,
    bucket: &'static str,
    /// The names that stand for addresses.
    pub addresses: Vec<(String, &'static str)>,
    /// Keys by what stands for them.
    keys: BTreeMap<String, String>,
    /// Values of earlier answers.
    seen: BTreeMap<&'static str, String>,
    chain: Option<Chain>,
}

/// The signature of the last chunk of a body.
struct Chain {
    key: hmac::Key,
    time: String,
    scope: String,
    signature: String,
}

impl<'c> Values<'c> {
    pub fn new(cluster: &'c crate::support::Cluster, bucket: &'static str) -> Self {
        let credential = cluster.lab.credential();
        let names = ["be0", "be1"].map(|name| prism_cluster::NodeName::new(name).unwrap());
        Self {
            signer: &cluster.signer,
            secret: credential.secret_key.as_str().to_owned(),
            region: cluster.lab.region().to_owned(),
            placement: Placement::new(&names.into_iter().collect()),
            bucket,
            addresses: Vec::new(),
            keys: BTreeMap::new(),
            seen: BTreeMap::new(),
            chain: None,
        }
    }

    /// The bytes of a request.
    pub fn request(&mut self, lines: &[String]) -> Vec<u8> {
        let end = lines.iter().position(|line| line == "\\r\\n");
        let (head, body) = lines.split_at(end.map_or(lines.len(), |end| end + 1));
        // Signatures have equal lengths, so that the length is known before the signature.
        let body_bytes = self.body(body);
        let mut bytes = Vec::new();
        for line in head {
            let text = self.expand(line);
            let text = text.replace("$length", &body_bytes.len().to_string());
            match text.strip_prefix("$sign ") {
                Some(what) => {
                    let what = what.trim_end_matches("\\r\\n");
                    let signed = self.sign(&bytes, what, &body_bytes);
                    bytes.extend_from_slice(signed.as_bytes());
                }
                None => bytes.extend(unescape(&text)),
            }
        }
        bytes.extend(self.body(body));
        bytes
    }

    fn body(&mut self, lines: &[String]) -> Vec<u8> {
        let expanded = lines.iter().flat_map(|line| unescape(&self.expand(line)));
        expanded.collect()
    }

    /// The text with all names replaced, the innermost first.
    fn expand(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        while let Some(start) = text.rfind("$(") {
            let end = start + text[start..].find(')').unwrap();
            let value = self.value(&text[start + 2..end]);
            text.replace_range(start..=end, &value);
        }
        text
    }

    /// - `bucket`, `upload`, `version`: the way's bucket; ids of the last answer that had some
    /// - `be0/NAME`: a key of that backend
    /// - `bytes FROM LEN`, `repeat N TEXT`: many bytes
    /// - `length`: the length of the body
    /// - `sign`, `sign body`, `sign streaming`, `sign NAME`: a signature of the lines before, with
    ///   the body unsigned, signed, signed in chunks, or declared by this name
    /// - `chunk TEXT`, `wrong chunk TEXT`: a chunk with its signature
    /// - `presigned METHOD TARGET`: a target with its signature, for the host `h`
    fn value(&mut self, name: &str) -> String {
        let (word, rest) = name.split_once(' ').unwrap_or((name, ""));
        match word {
            "bucket" => self.bucket.to_owned(),
            "upload" | "version" => self.seen.get(word).unwrap().clone(),
            "length" => "$length".to_owned(),
            "sign" => format!("$sign {rest}"),
            "bytes" => {
                let (from, len) = rest.split_once(' ').unwrap();
                let bytes = known_bytes(from.parse().unwrap(), len.parse().unwrap());
                String::from_utf8(bytes).unwrap()
            }
            "repeat" => {
                let (count, text) = rest.split_once(' ').unwrap();
                text.repeat(count.parse().unwrap())
            }
            "chunk" => self.chunk(rest, rest),
            "wrong" => {
                let text = rest.strip_prefix("chunk ").unwrap();
                self.chunk(text, "other")
            }
            "presigned" => {
                let (method, target) = rest.split_once(' ').unwrap();
                let now = OffsetDateTime::now_utc();
                let url = self
                    .signer
                    .presign(method, target, "h", Body::Unsigned, 60, now);
                url.unwrap()
            }
            _ => self.key(name),
        }
    }

    fn key(&mut self, name: &str) -> String {
        let found = self.keys.get(name);
        found.cloned().unwrap_or_else(|| {
            let (host, label) = name.split_once('/').unwrap_or_else(|| panic!("{name:?}"));
            let keys = (0..).map(|n| format!("{label}-{n:0KEY_DIGITS$}"));
            let owner = |key: &str| self.placement.owner(self.bucket, key).unwrap();
            let key = { keys }.find(|key| owner(key).as_str() == host).unwrap();
            self.keys.insert(name.to_owned(), key.clone());
            key
        })
    }

    /// The lines of a signature of this head.
    fn sign(&mut self, head: &[u8], what: &str, body: &[u8]) -> String {
        let head = String::from_utf8(head.to_vec()).unwrap();
        let mut lines = head.split("\r\n").filter(|line| !line.is_empty());
        let first: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let mut headers = Headers::new();
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            headers.append(name, value).unwrap();
        }
        let before = headers.len();
        let payload = match what {
            "" => Body::Unsigned,
            "body" => Body::Bytes(body),
            "streaming" => Body::Declared("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            other => Body::Declared(other),
        };
        let now = OffsetDateTime::now_utc();
        let signed = self
            .signer
            .sign(first[0], first[1], &mut headers, payload, now);
        signed.unwrap();
        let added = headers.iter().skip(before);
        let text: String = added
            .map(|(name, value)| format!("{name}: {}\r\n", String::from_utf8_lossy(value)))
            .collect();
        self.chain = text
            .trim_end()
            .rsplit_once("Signature=")
            .map(|(_, signature)| {
                let time = iso_basic(now).to_string();
                let scope = Scope {
                    date: &time[..8],
                    region: &self.region,
                    service: SERVICE,
                };
                Chain {
                    key: signing_key(&self.secret, scope),
                    scope: format!("{}/{}/{SERVICE}/aws4_request", &time[..8], self.region),
                    signature: signature.to_owned(),
                    time,
                }
            });
        text
    }

    fn chunk(&mut self, text: &str, signed: &str) -> String {
        let sha256 = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
        let signature = match &mut self.chain {
            None => "0".repeat(64),
            Some(chain) => {
                let to_sign = [
                    "AWS4-HMAC-SHA256-PAYLOAD",
                    &chain.time,
                    &chain.scope,
                    &chain.signature,
                    &sha256(b""),
                    &sha256(signed.as_bytes()),
                ];
                let tag = hmac::sign(&chain.key, to_sign.join("\n").as_bytes());
                chain.signature = hex(tag.as_ref());
                chain.signature.clone()
            }
        };
        format!(
            "{:x};chunk-signature={signature}\\r\\n{text}\\r\\n",
            text.len()
        )
    }

    /// The text of a record for these bytes, with names in place of values.
    pub fn record(&mut self, bytes: &[u8]) -> String {
        let mut text = format!("\r\n{}", escape(bytes));
        for varying in VARYING {
            text = self.name_varying(&text, varying);
        }
        text = text.replace(self.bucket, "$(bucket)");
        for (name, key) in &self.keys {
            text = text.replace(key, &format!("$({name})"));
        }
        for (name, value) in &self.seen {
            text = text.replace(value, &format!("$({name})"));
        }
        for (address, name) in &self.addresses {
            text = text.replace(address, &format!("$({name})"));
        }
        name_known_bytes(&text[2..])
    }

    fn name_varying(&mut self, text: &str, varying: &Varying) -> String {
        let mut pieces = text.split(varying.before);
        let mut named = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            named.push_str(varying.before);
            let end = piece.find(varying.after).unwrap_or(0);
            let (value, rest) = piece.split_at(end);
            if (varying.is_value)(value) {
                if ["upload", "version"].contains(&varying.name) {
                    self.seen.insert(varying.name, value.to_owned());
                }
                named.push_str(&format!("$({})", varying.name));
            } else {
                named.push_str(value);
            }
            named.push_str(rest);
        }
        named
    }
}
