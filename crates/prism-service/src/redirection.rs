//! Internal redirects: a server's answer names another resource, and the client gets that one.

use prism_http::{Headers, RequestHead, ResponseHead};
use prism_proto::facts::{Facts, MAX_FIELDS_BYTES, RedirectFacts};

/// Most redirects of a request.
pub const MAX_REDIRECTS: u8 = 5;

/// The request that takes the place of another one.
pub struct Redirected<M> {
    /// Its head.
    pub head: RequestHead,
    /// The same, as a client would have sent it.
    pub head_bytes: Vec<u8>,
    /// Its meaning. Nobody has admitted it.
    pub meaning: M,
    /// The header fields that the client gets in the place of the resource's own.
    pub fields: Headers,
}

/// The internal redirects that have led to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirection(Option<Box<RedirectFacts>>);

impl Redirection {
    /// That of a request with these facts.
    pub fn of(facts: &Facts) -> Self {
        Self(facts.redirect.clone().map(Box::new))
    }

    /// The facts for the node that answers.
    pub fn facts(&self) -> Option<RedirectFacts> {
        self.0.as_deref().cloned()
    }

    /// Their number.
    pub fn steps(&self) -> u8 {
        self.0.as_ref().map_or(0, |redirect| redirect.steps)
    }

    /// The fields that the client gets.
    pub(crate) fn fields(&self) -> Option<Headers> {
        let fields = &self.0.as_ref()?.fields;
        // They were checked when they were taken from an answer.
        Headers::parse_lines(fields).ok()
    }

    /// Adds a redirect. Its `fields`, at most [`MAX_FIELDS_BYTES`] of them, replace those of
    /// earlier ones, but for cookies. If all together are too long, those of earlier ones are lost.
    pub fn add(&mut self, fields: &Headers) {
        let before = self.0.take().unwrap_or_default();
        let mut all = fields.clone();
        if let Ok(earlier) = Headers::parse_lines(&before.fields) {
            let stays = |name: &str| is_cookie(name) || fields.get(name).is_none();
            for (name, value) in earlier.iter().filter(|(name, _)| stays(name)) {
                // They were well-formed before.
                let _ = all.append(name, value);
            }
        }
        let mut bytes = Vec::new();
        all.write_to(&mut bytes);
        if bytes.len() > MAX_FIELDS_BYTES {
            bytes.clear();
            fields.write_to(&mut bytes);
        }
        self.0 = Some(Box::new(RedirectFacts {
            steps: before.steps.saturating_add(1),
            fields: bytes,
        }));
    }
}

fn is_cookie(name: &str) -> bool {
    name.eq_ignore_ascii_case("set-cookie")
}

/// The head of a resource's answer, with the fields of `more` and `added`, and with `fields` in the
/// place of those of the same names; cookies are added. An error of the resource keeps what
/// describes it, and gets cookies alone.
pub(crate) fn with_fields(
    head: &ResponseHead,
    more: Option<&Headers>,
    added: Option<&Headers>,
    fields: &Headers,
) -> ResponseHead {
    let mut whole = head.clone();
    let own = whole.headers_mut();
    let others = [more, added].into_iter().flatten().flat_map(Headers::iter);
    for (name, value) in others {
        // Well-formed, as they would be written otherwise.
        let _ = own.append(name, value);
    }
    // The borders of several parts are in their type. An answer without a body has none, as from
    // nginx.
    let has_parts = own
        .get_str("content-type")
        .is_some_and(|kind| kind.starts_with("multipart/byteranges"));
    if head.status() == 304 {
        own.remove("content-type");
    }
    let has_own_type = head.status() == 304 || head.status() == 206 && has_parts;
    let is_resource = matches!(head.status(), 200 | 206 | 304);
    let is_replaced = |name: &str| {
        let stays = has_own_type && name.eq_ignore_ascii_case("content-type");
        is_resource && !stays && !is_cookie(name)
    };
    for (name, _) in fields.iter().filter(|(name, _)| is_replaced(name)) {
        own.remove(name);
    }
    for (name, value) in fields.iter() {
        if is_cookie(name) || is_replaced(name) {
            // Well-formed, because they were those of an answer.
            let _ = own.append(name, value);
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fields(named: &[(&str, &str)]) -> Headers {
        let mut fields = Headers::new();
        for (name, value) in named {
            fields.append(name, value).unwrap();
        }
        fields
    }

    fn text(fields: &Headers) -> String {
        let mut text = Vec::new();
        fields.write_to(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_fields_of_the_server_replace_all_others_of_a_resource_but_none_of_an_error() {
        let of_server = fields(&[("content-type", "video/mp4"), ("Set-Cookie", "a=1")]);
        let more = fields(&[("Content-Type", "text/plain"), ("ETag", "e")]);
        let added = fields(&[("Vary", "Origin")]);
        let whole = |status| {
            let head = ResponseHead::new(status).with("Content-Type", "x").unwrap();
            let whole = with_fields(&head, Some(&more), Some(&added), &of_server);
            text(whole.headers())
        };
        let found = "ETag: e\r\nVary: Origin\r\ncontent-type: video/mp4\r\nSet-Cookie: a=1\r\n";
        assert_eq!(whole(200), found);
        assert_eq!(whole(206), found);
        let unchanged = found.replace("content-type: video/mp4\r\n", "");
        assert_eq!(whole(304), unchanged);
        let parts = "multipart/byteranges; boundary=x";
        let head = ResponseHead::new(206).with("Content-Type", parts).unwrap();
        let whole_of_parts = with_fields(&head, None, None, &of_server);
        let kind = whole_of_parts.headers().get_str("content-type");
        assert_eq!(kind, Some(parts));
        let error = "Content-Type: x\r\nContent-Type: text/plain\r\nETag: e\r\nVary: Origin\r\n\
                     Set-Cookie: a=1\r\n";
        assert_eq!(whole(404), error);
    }

    #[test]
    fn the_last_redirect_wins_and_cookies_add_up() {
        let mut redirection = Redirection::default();
        assert_eq!((redirection.steps(), redirection.fields()), (0, None));
        redirection.add(&fields(&[("A", "1"), ("B", "1"), ("Set-Cookie", "a=1")]));
        redirection.add(&fields(&[("a", "2"), ("Set-Cookie", "b=2")]));
        assert_eq!(redirection.steps(), 2);
        let known = redirection.fields().unwrap();
        assert_eq!(
            text(&known),
            "a: 2\r\nSet-Cookie: b=2\r\nB: 1\r\nSet-Cookie: a=1\r\n"
        );
        let facts = Facts {
            redirect: redirection.facts(),
            ..Facts::of_anonymous(1)
        };
        assert_eq!(Redirection::of(&facts), redirection);
        let long = "x".repeat(MAX_FIELDS_BYTES - 10);
        redirection.add(&fields(&[("C", &long)]));
        assert_eq!(redirection.fields().unwrap().len(), 1);
    }
}
