//! A service that sends the body of each request back.

use std::io;

use prism_http::{Exchange, Headers, Limits, RequestHead, ResponseHead};
use prism_proto::verified::{Body, Caller, Verified};
use prism_service::{
    About, Fault, Io, NodeRequests, Remote, Request, Route, Served, Service, Subject, send,
};

/// Longest body, in bytes.
const MAX_BODY_BYTES: u64 = 1 << 10;

pub(crate) struct Echo;

impl NodeRequests for Echo {
    const HEADER_BYTES: u64 = 0;

    async fn serve_node(
        &self,
        _: &mut impl Io,
        _: &RequestHead,
        _: &str,
        _: &Exchange<'_>,
    ) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Service for Echo {
    type Meaning = ();
    type Error = String;
    type Change<'s> = ();
    type Nodes = Self;

    fn limits(&self) -> &Limits {
        &Limits::DEFAULT
    }

    fn understand(&self, head: &mut RequestHead, _: Option<Verified>) -> Result<(), String> {
        match head.path() {
            "/refused" => Err("refused".into()),
            _ => Ok(()),
        }
    }

    async fn admit(&self, _: &mut Request<()>, _: Remote) -> Result<(), String> {
        Ok(())
    }

    async fn begin(&self, (): &()) -> Option<()> {
        None
    }

    fn route(&self, (): &()) -> Route {
        Route::Here
    }

    fn is_elsewhere(&self, (): &()) -> bool {
        false
    }

    fn may_stay(&self, (): &()) -> bool {
        true
    }

    fn epoch(&self) -> u64 {
        0
    }

    async fn has_moved_on(&self, _: u64, _: bool) -> bool {
        false
    }

    fn vouch(&self, (): &()) -> Verified {
        Verified {
            request_id: 0,
            trace: None,
            caller: Caller::Anonymous,
            body: Body::Unsaid,
        }
    }

    fn about<'m>(&self, (): &'m ()) -> About<'m> {
        About::UNKNOWN
    }

    fn subject<'m>(&self, (): &'m ()) -> Option<Subject<'m>> {
        None
    }

    async fn serve(
        &self,
        io: &mut impl Io,
        request: &Request<()>,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<String>> {
        let mut body = request.take_body(MAX_BODY_BYTES);
        let bytes = body.read_to_end(io, MAX_BODY_BYTES).await;
        let bytes = bytes.map_err(io::Error::other)?;
        let sent = send(io, exchange, ResponseHead::new(200), &bytes).await;
        sent.map(Served::answered)
    }

    fn nodes(&self) -> &Self {
        self
    }

    async fn extra_fields(&self, _: &RequestHead) -> Option<Headers> {
        None
    }

    fn error_for(&self, fault: Fault) -> String {
        format!("{fault:?}")
    }

    fn status_of(&self, _: &String) -> (u16, bool) {
        (400, false)
    }

    async fn send_error(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        error: &String,
        _: &str,
    ) -> io::Result<bool> {
        send(io, exchange, ResponseHead::new(400), error.as_bytes()).await
    }
}
