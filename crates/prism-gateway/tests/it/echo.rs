//! A service that sends the body of each request back, here or at another node, and that fails by
//! the request's path.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::rc::Rc;

use prism_http::{Exchange, Headers, Limits, RequestHead, ResponseHead};
use prism_proto::verified::{Body, Caller, Verified};
use prism_service::{
    About, Fault, Io, NodeRequests, Remote, Request, RequestBody, Route, Served, Service, Subject,
    send,
};

/// Longest body, in bytes.
const MAX_BODY_BYTES: u64 = 64 << 20;

#[derive(Clone, Default)]
pub(crate) struct Echo {
    /// The way of requests, if they are not answered here. Before a hand-off their answers are
    /// taken for short.
    pub(crate) route: Option<Route>,
    /// The paths of the requests that were carried out here.
    pub(crate) served: Rc<RefCell<Vec<String>>>,
}

impl Echo {
    /// Sends each piece of a body back when it arrives.
    async fn stream(
        io: &mut impl Io,
        body: &mut RequestBody,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<String>> {
        let mut head = Vec::new();
        let written = ResponseHead::new(200).write_to(exchange, body.left(), &mut head);
        body.invite(io).await?;
        io.write_all(&head).await?;
        while !body.is_done() {
            if io.buffered().is_empty() && io.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let step = body.reader().consume(io.buffered());
            let step = step.map_err(io::Error::other)?;
            let data = io.buffered()[step.data].to_vec();
            io.consume(step.consumed);
            io.write_all(&data).await?;
        }
        Ok(Served::answered(written.keep_alive))
    }
}

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
        self.route.clone().unwrap_or(Route::Here)
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
        matches!(self.route, Some(Route::HandOff(_))).then_some(Subject {
            group: "group",
            name: "name",
            is_settling: false,
        })
    }

    async fn serve(
        &self,
        io: &mut impl Io,
        request: &Request<()>,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<String>> {
        let path = request.head.path();
        self.served.borrow_mut().push(path.to_owned());
        let mut body = request.take_body(MAX_BODY_BYTES);
        match path {
            "/silent" => return pending().await,
            "/out" => return Ok(Served::Elsewhere("out of order".into())),
            "/stream" => return Self::stream(io, &mut body, exchange).await,
            "/hints" => {
                body.invite(io).await?;
                io.fill().await?;
                io.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </s>\r\n\r\n")
                    .await?;
            }
            _ => {}
        }
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
