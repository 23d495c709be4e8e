//! CORS: the web pages that may use a bucket, by its owner's configuration.

use prism_http::{HeaderError, Headers, ResponseHead};

use crate::xml::read::{elements, malformed};
use crate::xml::write::{Document, document};
use crate::{Code, S3Error};

/// One rule. The first rule that fits a request counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsRule {
    /// A name for the owner.
    pub id: Option<String>,
    /// Origins as browsers send them, with at most one `*` each.
    pub origins: Vec<String>,
    /// Methods, of GET, PUT, POST, DELETE and HEAD.
    pub methods: Vec<String>,
    /// Headers that requests may have, with at most one `*` each.
    pub headers: Vec<String>,
    /// Headers of answers that pages may see.
    pub exposed: Vec<String>,
    /// The time for which browsers may cache the answer, in seconds.
    pub max_age_s: Option<u32>,
}

/// The rules of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsConfig {
    rules: Vec<CorsRule>,
}

impl CorsConfig {
    /// The most rules of a bucket.
    pub const MAX_RULES: usize = 100;
    /// The most headers of one preflight. Each is compared with every pattern of a rule, of which
    /// 64 KiB have about 2,000.
    const MAX_ASKED_HEADERS: usize = 100;

    /// Checks rules.
    ///
    /// # Errors
    /// `MalformedXML` if there is no rule, or one lacks an origin or a method; `InvalidRequest`
    /// for an invalid method or pattern.
    pub fn new(rules: Vec<CorsRule>) -> Result<Self, S3Error> {
        let invalid = |message: String| Code::InvalidRequest.with_message(message);
        if rules.is_empty() || rules.len() > Self::MAX_RULES {
            return Err(Code::MalformedXML.into());
        }
        for rule in &rules {
            if rule.origins.is_empty() || rule.methods.is_empty() {
                return Err(Code::MalformedXML.into());
            }
            for method in &rule.methods {
                if !["GET", "PUT", "POST", "DELETE", "HEAD"].contains(&method.as_str()) {
                    return Err(invalid(format!(
                        "The method {method:.32} cannot be allowed."
                    )));
                }
            }
            for pattern in rule.origins.iter().chain(&rule.headers) {
                if pattern.matches('*').count() > 1 {
                    return Err(invalid(format!("{pattern:.64} holds more than one *.")));
                }
            }
            let patterns = rule.origins.iter().chain(&rule.headers);
            for text in patterns.chain(&rule.exposed) {
                if Headers::new().append("Vary", text).is_err() {
                    return Err(invalid("A text cannot be a header.".to_owned()));
                }
            }
        }
        Ok(Self { rules })
    }

    /// Reads a `CORSConfiguration`.
    ///
    /// # Errors
    /// `MalformedXML`, or as for [`CorsConfig::new`].
    pub fn parse(body: &[u8]) -> Result<Self, S3Error> {
        let mut rules = Vec::new();
        let mut rule = CorsRule::default();
        elements(body, "CORSConfiguration", |path, text| {
            let text = text.trim().to_owned();
            match path {
                ["CORSRule", "ID"] => rule.id = Some(text),
                ["CORSRule", "AllowedOrigin"] => rule.origins.push(text),
                ["CORSRule", "AllowedMethod"] => rule.methods.push(text),
                ["CORSRule", "AllowedHeader"] => rule.headers.push(text),
                ["CORSRule", "ExposeHeader"] => rule.exposed.push(text),
                ["CORSRule", "MaxAgeSeconds"] => {
                    rule.max_age_s = Some(text.parse().map_err(|_| malformed())?);
                }
                ["CORSRule"] if rules.len() < Self::MAX_RULES => {
                    rules.push(std::mem::take(&mut rule));
                }
                _ => return Err(malformed()),
            }
            Ok(())
        })?;
        Self::new(rules)
    }

    /// The document, as [`CorsConfig::parse`] reads it.
    pub fn xml(&self) -> Vec<u8> {
        document("CORSConfiguration", |doc| {
            for rule in &self.rules {
                doc.element("CORSRule", |doc| rule.write(doc));
            }
        })
    }

    /// Adds the headers for the browser to the answer of a request.
    ///
    /// # Errors
    /// Only if the answer would outgrow its bound.
    pub fn add_to(
        &self,
        answer: &mut ResponseHead,
        request: &Headers,
        method: &str,
    ) -> Result<(), HeaderError> {
        let Some(origin) = request.get_str("origin") else {
            return Ok(());
        };
        match self.find(origin, method, &[]) {
            Some(rule) => rule.allow(answer.headers_mut(), origin),
            None => Ok(()),
        }
    }

    /// The answer to a preflight request.
    ///
    /// # Errors
    /// `BadRequest` if it is no preflight or names too many headers, `AccessForbidden` if no rule
    /// allows it.
    pub fn preflight(&self, request: &Headers) -> Result<ResponseHead, S3Error> {
        let (origin, method) = asked(request)?;
        let wanted: Vec<&str> = request
            .list("access-control-request-headers")
            .filter_map(|name| std::str::from_utf8(name).ok())
            .take(Self::MAX_ASKED_HEADERS + 1)
            .collect();
        if wanted.len() > Self::MAX_ASKED_HEADERS {
            return Err(Code::BadRequest.with_message(format!(
                "A preflight names at most {} headers.",
                Self::MAX_ASKED_HEADERS
            )));
        }
        let rule = self.find(origin, method, &wanted).ok_or_else(forbidden)?;
        let mut answer = ResponseHead::new(200);
        let added = rule.allow_preflight(answer.headers_mut(), origin, &wanted);
        added.map_err(|_| Code::BadRequest)?;
        Ok(answer)
    }

    fn find(&self, origin: &str, method: &str, headers: &[&str]) -> Option<&CorsRule> {
        self.rules.iter().find(|rule| {
            rule.methods.iter().any(|allowed| allowed == method)
                && rule.origins.iter().any(|pattern| fits(pattern, origin))
                && headers.iter().all(|name| rule.allows_header(name))
        })
    }
}

/// The origin and the method of a preflight.
///
/// # Errors
/// `BadRequest` if it is no preflight, with the message of S3.
pub fn asked(request: &Headers) -> Result<(&str, &str), S3Error> {
    let field = |name, message| {
        let value = request.get_str(name);
        value.ok_or_else(|| Code::BadRequest.with_message(message))
    };
    let origin = field(
        "origin",
        "Insufficient information. Origin request header needed.",
    )?;
    let method = field(
        "access-control-request-method",
        "Invalid Access-Control-Request-Method: null",
    )?;
    Ok((origin, method))
}

/// The answer to a preflight that no rule allows.
pub fn forbidden() -> S3Error {
    Code::AccessForbidden.with_message("CORSResponse: This CORS request is not allowed.")
}

impl CorsRule {
    fn write(&self, doc: &mut Document) {
        doc.optional("ID", self.id.as_deref());
        for (element, texts) in [
            ("AllowedOrigin", &self.origins),
            ("AllowedMethod", &self.methods),
            ("AllowedHeader", &self.headers),
            ("ExposeHeader", &self.exposed),
        ] {
            texts.iter().for_each(|text| doc.text(element, text));
        }
        if let Some(age) = self.max_age_s {
            doc.value("MaxAgeSeconds", age);
        }
    }

    fn allows_header(&self, name: &str) -> bool {
        let mut patterns = self.headers.iter();
        patterns.any(|pattern| fits_in_any_case(pattern, name))
    }

    fn allow_preflight(
        &self,
        headers: &mut Headers,
        origin: &str,
        wanted: &[&str],
    ) -> Result<(), HeaderError> {
        self.allow(headers, origin)?;
        if !wanted.is_empty() {
            let names = wanted.join(", ").to_ascii_lowercase();
            headers.append("Access-Control-Allow-Headers", names)?;
        }
        match self.max_age_s {
            Some(age) => headers.append("Access-Control-Max-Age", age.to_string()),
            None => Ok(()),
        }
    }

    fn allow(&self, headers: &mut Headers, origin: &str) -> Result<(), HeaderError> {
        let is_open = self.origins.iter().any(|pattern| pattern == "*");
        if is_open {
            headers.set("Access-Control-Allow-Origin", "*")?;
        } else {
            headers.set("Access-Control-Allow-Origin", origin)?;
            headers.set("Access-Control-Allow-Credentials", "true")?;
        }
        headers.set("Access-Control-Allow-Methods", self.methods.join(", "))?;
        if !self.exposed.is_empty() {
            headers.set("Access-Control-Expose-Headers", self.exposed.join(", "))?;
        }
        headers.set(
            "Vary",
            "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
        )
    }
}

/// As [`fits`], without regard to the case of ASCII letters.
fn fits_in_any_case(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    let text = text.as_bytes();
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else {
        return pattern.eq_ignore_ascii_case(text);
    };
    let before = pattern.get(..star).unwrap_or_default();
    let behind = pattern.get(star + 1..).unwrap_or_default();
    let Some((start, rest)) = text.split_at_checked(before.len()) else {
        return false;
    };
    let end = rest.len().checked_sub(behind.len());
    let end = end.and_then(|at| rest.get(at..));
    start.eq_ignore_ascii_case(before) && end.is_some_and(|end| end.eq_ignore_ascii_case(behind))
}

/// Whether a text matches a pattern, whose `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, behind)) => text
            .strip_prefix(before)
            .is_some_and(|rest| rest.ends_with(behind)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONFIG: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example.org\
        </AllowedOrigin><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>\
        <AllowedHeader>X-Amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
        <MaxAgeSeconds>300</MaxAgeSeconds></CORSRule><CORSRule><AllowedOrigin>*</AllowedOrigin>\
        <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

    fn request(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in fields {
            headers.append(name, value).unwrap();
        }
        headers
    }

    #[test]
    fn preflights_are_answered_by_the_first_rule_that_fits() {
        let config = CorsConfig::parse(CONFIG.as_bytes()).unwrap();
        let ask = |origin, method, headers| {
            let asked = [
                ("Origin", origin),
                ("Access-Control-Request-Method", method),
                ("Access-Control-Request-Headers", headers),
            ];
            config.preflight(&request(&asked))
        };
        let answer = ask("https://a.example.org", "PUT", "x-amz-date, X-Amz-Meta-A").unwrap();
        let field = |name: &str| {
            answer
                .headers()
                .get_str(name)
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            field("access-control-allow-origin"),
            "https://a.example.org"
        );
        assert_eq!(field("access-control-allow-methods"), "GET, PUT");
        assert_eq!(
            field("access-control-allow-headers"),
            "x-amz-date, x-amz-meta-a"
        );
        assert_eq!(field("access-control-max-age"), "300");
        let open = ask("http://b.test", "GET", "").unwrap();
        assert_eq!(
            open.headers().get_str("access-control-allow-origin"),
            Some("*")
        );
        for (origin, method, headers) in [
            ("http://b.test", "PUT", ""),
            ("https://a.example.org", "PUT", "content-type"),
            ("https://a.example.org.evil", "PUT", ""),
        ] {
            let code = ask(origin, method, headers).unwrap_err().code();
            assert_eq!(code, Code::AccessForbidden, "{origin} {method}");
        }
        let without_method = request(&[("Origin", "http://b.test")]);
        for (asked, named) in [
            (Headers::new(), "Origin request header"),
            (without_method, "Access-Control-Request-Method"),
        ] {
            let none = config.preflight(&asked).unwrap_err();
            assert_eq!(none.code(), Code::BadRequest);
            assert!(none.message().contains(named), "{none}");
        }
        let most = ["X-Amz-A"; 100].join(",");
        assert!(ask("https://a.example.org", "PUT", &most).is_ok());
        let beyond = ["X-Amz-A"; 101].join(",");
        let too_many = ask("https://a.example.org", "PUT", &beyond).unwrap_err();
        assert_eq!(too_many.code(), Code::BadRequest);
    }

    #[test]
    fn a_pattern_of_a_header_has_one_star_and_no_case() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("Content-Type", "content-type", true),
            ("content-type", "content-typ", false),
            ("X-Amz-*", "x-amz-", true),
            ("X-Amz-*", "x-am", false),
            ("x-*-ID", "X-Request-id", true),
            ("x-*-id", "x-id", false),
        ] {
            assert_eq!(
                fits_in_any_case(pattern, name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn configurations_are_read_back_and_nonsense_is_refused() {
        let config = CorsConfig::parse(CONFIG.as_bytes()).unwrap();
        assert_eq!(CorsConfig::parse(&config.xml()).unwrap(), config);
        let rule = |inner: &str| {
            let body =
                format!("<CORSConfiguration><CORSRule>{inner}</CORSRule></CORSConfiguration>");
            CorsConfig::parse(body.as_bytes())
                .map(|_| ())
                .map_err(|e| e.code())
        };
        let origin = "<AllowedOrigin>*</AllowedOrigin>";
        let get = "<AllowedMethod>GET</AllowedMethod>";
        assert_eq!(rule(&format!("{origin}{get}")), Ok(()));
        assert_eq!(rule(origin), Err(Code::MalformedXML));
        assert_eq!(rule(get), Err(Code::MalformedXML));
        let patch = "<AllowedMethod>PATCH</AllowedMethod>";
        assert_eq!(rule(&format!("{origin}{patch}")), Err(Code::InvalidRequest));
        let stars = "<AllowedOrigin>*.*</AllowedOrigin>";
        assert_eq!(rule(&format!("{stars}{get}")), Err(Code::InvalidRequest));
        let split = "<AllowedOrigin>a&#xd;&#xa;b: c</AllowedOrigin>";
        assert_eq!(rule(&format!("{split}{get}")), Err(Code::InvalidRequest));
        assert!(CorsConfig::parse(b"<CORSConfiguration/>").is_err());
    }
}
