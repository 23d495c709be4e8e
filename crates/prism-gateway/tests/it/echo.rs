//! A service that sends the body of each request back, here or at another node, and that fails by
//! the request's path.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::rc::Rc;

use prism_http::{Headers, Limits, RequestHead, ResponseHead};
use prism_proto::facts::Facts;
use prism_service::{
    About, Exchange, Fault, NodeRequests, Redirected, RequestMut, RequestRef, Route, Served,
    Service, Subject, send,
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
    async fn stream(exchange: &mut impl Exchange) -> io::Result<Served<String>> {
        let left = exchange.left_bytes();
        exchange.invite().await?;
        exchange.begin(&ResponseHead::new(200), None, left);
        exchange.flush().await?;
        let mut room = [0; 16 << 10];
        while !exchange.is_done() {
            let read = exchange.read(&mut room).await;
            let read = read.map_err(io::Error::other)?;
            exchange.data(&room[..read]).await?;
        }
        exchange.end(None).await?;
        Ok(Served::Answered)
    }
}

impl NodeRequests for Echo {
    const HEADER_BYTES: u64 = 0;

    async fn serve_node(
        &self,
        _: &mut impl Exchange,
        _: &RequestHead,
        _: &str,
        _: &Facts,
    ) -> io::Result<()> {
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

    fn understand(&self, head: &mut RequestHead, _: Option<Facts>) -> Result<(), String> {
        match head.path() {
            "/refused" => Err("refused".into()),
            _ => Ok(()),
        }
    }

    async fn admit(&self, _: RequestMut<'_>, (): &mut ()) -> Result<(), String> {
        Ok(())
    }

    fn route(&self, (): &(), _: bool) -> Route {
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

    async fn has_moved_on(&self, (): &(), _: u64, _: bool) -> bool {
        false
    }

    fn facts(&self, (): &()) -> Facts {
        Facts::of_anonymous(0)
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
        exchange: &mut impl Exchange,
        request: RequestRef<'_, ()>,
    ) -> io::Result<Served<String>> {
        let path = request.head.path();
        self.served.borrow_mut().push(path.to_owned());
        exchange.limit_body(MAX_BODY_BYTES);
        match path {
            "/silent" => return pending().await,
            "/out" => return Ok(Served::Elsewhere("out of order".into())),
            "/stream" => return Self::stream(exchange).await,
            "/order" | "/loop" | "/bad" => {
                exchange.skip_body().await;
                let next = if path == "/loop" { path } else { "/echo" };
                let answer = ResponseHead::new(202).with("Next", next);
                return Ok(Served::Redirected(Box::new(answer.unwrap())));
            }
            "/hints" => {
                exchange.invite().await?;
                exchange.fill().await?;
                let hints = ResponseHead::new(103).with("Link", "</s>").unwrap();
                exchange.interim(&hints).await?;
            }
            _ => {}
        }
        let bytes = exchange.read_to_end(MAX_BODY_BYTES).await;
        let bytes = bytes.map_err(io::Error::other)?;
        send(exchange, ResponseHead::new(200), &bytes).await?;
        Ok(Served::Answered)
    }

    fn redirected(
        &self,
        request: RequestRef<'_, ()>,
        answer: &ResponseHead,
    ) -> Result<Redirected<()>, String> {
        assert_eq!(answer.status(), 202);
        if request.head.path() == "/bad" {
            return Err("bad".into());
        }
        let next = answer.headers().get_str("next").unwrap();
        let head_bytes = format!("GET {next} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes();
        let parsed = RequestHead::parse(&head_bytes, &Limits::DEFAULT);
        let mut fields = Headers::new();
        fields.append("Set-Cookie", next).unwrap();
        Ok(Redirected {
            head: parsed.unwrap().unwrap().0,
            head_bytes,
            meaning: (),
            fields,
        })
    }

    fn nodes(&self) -> &Self {
        self
    }

    async fn extra_fields(&self, _: &RequestHead) -> Option<Headers> {
        None
    }

    fn error_for(&self, fault: Fault, _: Option<&()>) -> String {
        format!("{fault:?}")
    }

    fn status_of(&self, _: &String) -> (u16, bool) {
        (400, false)
    }

    async fn send_error(
        &self,
        exchange: &mut impl Exchange,
        error: &String,
        _: &str,
    ) -> io::Result<()> {
        send(exchange, ResponseHead::new(400), error.as_bytes()).await
    }
}
