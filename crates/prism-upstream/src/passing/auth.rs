//! Forward authentication: a server of another upstream is asked about a request before the
//! request goes on. The question is a GET with the client's fields and without a body. An answer
//! 2xx allows the request; the client gets any other answer.

use std::io;

use prism_config::ForwardAuth;
use prism_http::{HeadError, Headers, Limits, RequestHead, ResponseHead, are_alike};
use prism_proxy::SWITCHING;
use prism_service::{Exchange, NodeRequests, RequestRef, Served};

use super::{Attempt, Purpose};
use crate::error::Error;
use crate::forwarded;
use crate::private::Sharing;
use crate::redirect::is_redirect;
use crate::service::Meaning;

/// The fields of a request that say nothing of its client, but of its body and its connection, or
/// under which condition the resource is wanted.
const NOT_ASKED: [&str; 9] = [
    "connection",
    "expect",
    "host",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const NOT_ASKED_FAMILIES: [&str; 3] = ["content-", "if-", "proxy-"];

/// A permission, as a server has given it.
pub(super) struct Grant {
    /// The names of the fields that no client can give its request.
    names: Vec<String>,
    /// The fields that the request gets.
    fields: Headers,
    /// The fields that the client gets.
    answer_fields: Headers,
}

impl Grant {
    fn of(auth: &ForwardAuth, answer: &ResponseHead) -> Result<Self, HeadError> {
        Ok(Self {
            names: auth.fields.clone(),
            fields: fields_of(answer, &auth.fields)?,
            answer_fields: fields_of(answer, &auth.answer_fields)?,
        })
    }

    /// Gives the request its fields. The client's own of these names are gone, also where the
    /// answer had none.
    pub(super) fn give_to(&self, head: &mut RequestHead) -> Result<(), HeadError> {
        // A client must not have the fields dropped.
        head.end_named_fields();
        let headers = head.headers_mut();
        headers.drop_where(|name| {
            let mut names = self.names.iter();
            names.any(|own| are_alike(name, own.as_bytes()))
        });
        append_all(headers, &self.fields)
    }

    /// Adds the client's fields to its answer.
    pub(super) fn add_to(&self, answer: &mut Headers) {
        // No error: they were read from a head, which has a bound.
        let _ = append_all(answer, &self.answer_fields);
    }
}

impl Purpose {
    /// Whether an answer is not for the client.
    pub(super) fn is_order(&self, meaning: &Meaning, answer: &ResponseHead) -> bool {
        match self {
            Self::Permission => (200..300).contains(&answer.status()),
            Self::Answer(_) => {
                let settings = meaning.pool.settings.redirects.as_ref();
                let may_redirect = meaning.upgrade.is_none() && answer.status() != SWITCHING;
                may_redirect && settings.is_some_and(|settings| is_redirect(settings, answer))
            }
        }
    }
}

impl<N: NodeRequests, X: Exchange> Attempt<'_, N, X> {
    /// Asks whether the request may go on. Returns the outcome if it may not.
    pub(super) async fn ask_for_permission(
        &mut self,
        auth: &ForwardAuth,
    ) -> io::Result<Option<Served<Error>>> {
        let Some(pool) = self.node.shared.pool_named(&auth.upstream) else {
            // Another configuration has it, or had it.
            return self.refuse(&Error::OutOfReach).await.map(Some);
        };
        let own = &pool.settings.request_headers;
        let head = match question(self.request.head, auth, own, &self.node.shared.limits) {
            Ok(head) => head,
            Err(error) => return self.refuse(&error.into()).await.map(Some),
        };
        let mut meaning = Meaning::of(&head, pool);
        meaning.sharing = Sharing::Everybody;
        let mut attempt = Attempt {
            node: self.node,
            exchange: &mut *self.exchange,
            request: RequestRef {
                head: &head,
                max_answer_bytes: None,
                ..self.request.with(&meaning)
            },
            sharing: Sharing::Everybody,
            replay: Some(Vec::new()),
            purpose: Purpose::Permission,
        };
        let answer = match attempt.try_servers(None).await? {
            Served::Redirected(answer) => answer,
            served => return Ok(Some(served)),
        };
        match Grant::of(auth, &answer) {
            Ok(grant) => self.purpose = Purpose::Answer(Some(grant)),
            Err(_) => return self.refuse(&Error::Malformed).await.map(Some),
        }
        Ok(None)
    }
}

/// The question about a request.
fn question(
    request: &RequestHead,
    auth: &ForwardAuth,
    own: &[String],
    limits: &Limits,
) -> Result<RequestHead, HeadError> {
    let host = request.host().unwrap_or_default();
    let mut text = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", auth.path).into_bytes();
    let mut fields = Headers::new();
    let is_asked = |name: &str| {
        let name = name.to_ascii_lowercase();
        let mut families = NOT_ASKED_FAMILIES.iter();
        !NOT_ASKED.contains(&name.as_str()) && !families.any(|family| name.starts_with(family))
    };
    let all = request.headers().iter();
    for (name, value) in all.filter(|(name, _)| is_asked(name)) {
        let added = fields.append(name, value);
        added.map_err(|_| HeadError::HeadTooLong)?;
    }
    for (name, value) in [
        ("X-Forwarded-Method", request.method().as_str()),
        ("X-Forwarded-Uri", request.target()),
    ] {
        let set = fields.set(name, value);
        set.map_err(|_| HeadError::HeadTooLong)?;
    }
    forwarded::set_own(request, &mut fields, own).map_err(|_| HeadError::HeadTooLong)?;
    fields.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    let parsed = RequestHead::parse(&text, limits)?;
    let (head, _) = parsed.ok_or(HeadError::HeadTooLong)?;
    Ok(head)
}

/// The fields of an answer that have these names.
fn fields_of(answer: &ResponseHead, names: &[String]) -> Result<Headers, HeadError> {
    let mut fields = Headers::new();
    for name in names {
        for value in answer.headers().get_all(name) {
            let added = fields.append(name, value);
            added.map_err(|_| HeadError::HeadTooLong)?;
        }
    }
    Ok(fields)
}

fn append_all(to: &mut Headers, fields: &Headers) -> Result<(), HeadError> {
    for (name, value) in fields.iter() {
        let added = to.append(name, value);
        added.map_err(|_| HeadError::HeadTooLong)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::BodyFraming;

    use super::*;

    fn request(text: &str) -> RequestHead {
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        parsed.unwrap().unwrap().0
    }

    fn written(head: &RequestHead) -> String {
        let mut out = Vec::new();
        head.write_forward(BodyFraming::None, &Headers::new(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_question_has_what_says_who_asks_for_what() {
        let auth = ForwardAuth {
            path: "/verify?by=p".into(),
            ..ForwardAuth::default()
        };
        let request = request(
            "PUT /a%20b?c HTTP/1.1\r\nHost: h:1\r\nCookie: a=b\r\nContent-Length: 9\r\n\
             Content-Type: text/plain\r\nContent_Length: 3\r\nExpect: 100-continue\r\nRange: bytes=0-\r\n\
             If-None-Match: *\r\nConnection: upgrade\r\nUpgrade: echo\r\nTE: trailers\r\n\
             X-Forwarded-For: 192.0.2.1\r\nX-Env: client\r\nX_Env: client\r\n\r\n",
        );
        let own = ["X-Env: {client}".to_owned()];
        let asked = question(&request, &auth, &own, &Limits::DEFAULT).unwrap();
        assert_eq!(
            written(&asked),
            "GET /verify?by=p HTTP/1.1\r\nHost: h:1\r\nCookie: a=b\r\nX-Forwarded-For: 192.0.2.1\r\n\
             X-Forwarded-Method: PUT\r\nX-Forwarded-Uri: /a%20b?c\r\nX-Env: 192.0.2.1\r\n\r\n"
        );
        let few = Limits {
            head_bytes: 100,
            ..Limits::DEFAULT
        };
        assert!(question(&request, &auth, &own, &few).is_err());
    }

    #[test]
    fn no_client_gives_itself_what_a_permission_gives() {
        let auth = ForwardAuth {
            fields: vec!["X-User".into(), "X-Groups".into()],
            answer_fields: vec!["Set-Cookie".into()],
            ..ForwardAuth::default()
        };
        let mut answer = ResponseHead::new(204);
        for (name, value) in [
            ("X-User", "ada"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("X-Other", "no"),
        ] {
            answer.headers_mut().append(name, value).unwrap();
        }
        let grant = Grant::of(&auth, &answer).unwrap();
        let mut head = request(
            "GET / HTTP/1.1\r\nHost: h\r\nx-user: root\r\nX_USER: root\r\nX-Groups: admins\r\n\
             Connection: X-User\r\n\r\n",
        );
        grant.give_to(&mut head).unwrap();
        assert_eq!(
            written(&head),
            "GET / HTTP/1.1\r\nHost: h\r\nX-User: ada\r\n\r\n"
        );
        let mut fields = Headers::new();
        grant.add_to(&mut fields);
        let cookies: Vec<_> = fields.get_all("set-cookie").collect();
        assert_eq!(cookies, [b"a=1", b"b=2"]);
    }
}
