//! A small HTTP server for pages that are made anew for each request. It only reads: it knows
//! GET and HEAD, and takes no body.
//!
//! A request that names another host than this one is refused: a web page can have a name of its
//! own lead to this address, and would read the answers (DNS rebinding).
//!
//! `/events` sends the page `/state` each second, as a stream of server-sent events (HTML Living
//! Standard, section 9.2).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use prism_http::{AnswerForm, Limits, Method, RequestHead, ResponseFraming, ResponseHead, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::MissedTickBehavior;

/// Connections at a time. For a further one, the one gives way that has waited longest for its
/// request. If none waits, it stays until an answer ends.
const MAX_CONNECTIONS: usize = 64;
/// Streams of events at a time, so that some connections are left for the other pages.
const MAX_STREAMS: usize = 16;
/// Time between two events.
const EVENT_EVERY: Duration = Duration::from_secs(1);
/// Time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a failure to accept.
const RETRY: Duration = Duration::from_millis(100);

/// One page.
#[derive(Clone, Debug)]
pub struct Page {
    /// The status of the answer.
    pub status: u16,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The value of `Content-Security-Policy`.
    pub policy: Option<String>,
    /// The content.
    pub body: Cow<'static, str>,
}

impl Page {
    /// A page with this content, and the status 200.
    pub fn new(content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: 200,
            content_type,
            policy: None,
            body: body.into(),
        }
    }

    /// Plain text.
    pub fn text(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", body)
        }
    }

    /// A JSON document.
    pub fn json(document: &serde_json::Value) -> Self {
        Self::new("application/json", format!("{document}\n"))
    }
}

/// A page that takes time.
pub type Making = Pin<Box<dyn Future<Output = Option<Page>> + Send>>;

/// The page of a path, if there is one.
pub type Pages = dyn Fn(&str) -> Making + Send + Sync;

/// Listens on the address of the field `field` of the configuration.
pub fn bind(address: SocketAddr, field: &str) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).map_err(|error| {
        anyhow!("cannot listen on {field} {address}: {error}; choose another address")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers requests with the page of their path. A request names an address, `localhost` or one of
/// the `names` as its host. Never returns.
pub async fn serve(listener: std::net::TcpListener, names: Vec<String>, pages: Arc<Pages>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the admin address has no reactor; it answers nothing");
            return std::future::pending().await;
        }
    };
    let names: Arc<[String]> = names.into();
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    // The connections that wait for their request, those that came first before the others.
    let mut idle = VecDeque::<oneshot::Sender<Infallible>>::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                idle.retain(|visit| !visit.is_closed());
                if connections.available_permits() == 0 {
                    drop(idle.pop_front());
                }
                // The semaphore is never closed.
                let permit = connections.clone().acquire_owned().await;
                let (stays, gives_way) = oneshot::channel();
                idle.push_back(stays);
                let visit = Visit {
                    stream,
                    names: names.clone(),
                    pages: pages.clone(),
                    streams: streams.clone(),
                };
                tokio::spawn(async move {
                    // The visitor may go at any time.
                    let _ = visit.answer(gives_way).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin address cannot accept a connection");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// A connection, which has one request.
struct Visit {
    stream: TcpStream,
    names: Arc<[String]>,
    pages: Arc<Pages>,
    streams: Arc<Semaphore>,
}

impl Visit {
    /// Answers the request, unless the connection `gives_way` before it has come.
    async fn answer(mut self, gives_way: oneshot::Receiver<Infallible>) -> io::Result<()> {
        let head = tokio::select! {
            biased;
            head = within(self.read_head()) => head?,
            _ = gives_way => None,
        };
        let head = match head {
            Some(Ok(head)) => head,
            Some(Err(page)) => return self.send(&page, &Method::GET).await,
            None => return Ok(()),
        };
        if let Some(host) = head.host_name()
            && !is_known_host(host, &self.names)
        {
            let text = format!(
                "{host:?} is no name of this address. Use an IP address or localhost, or add the \
                 name to admin.names.\n"
            );
            return self.send(&Page::text(421, text), head.method()).await;
        }
        let page = match (head.method(), head.path()) {
            (&Method::GET, "/events") => match self.streams.clone().try_acquire_owned() {
                Ok(_permit) => return self.send_events().await,
                Err(_) => Some(Page::text(503, "Too many pages are open.\n")),
            },
            (&Method::GET | &Method::HEAD, path) => (self.pages)(path).await,
            _ => Some(Page::text(405, "Only GET and HEAD.\n")),
        };
        let page = page.unwrap_or_else(|| Page::text(404, "There is no such page.\n"));
        self.send(&page, head.method()).await
    }

    /// Reads the head of the request. `None`: the visitor has gone.
    async fn read_head(&mut self) -> io::Result<Option<Result<RequestHead, Page>>> {
        let mut input = Vec::new();
        loop {
            match RequestHead::parse(&input, &Limits::DEFAULT) {
                Ok(Some((head, _))) => return Ok(Some(Ok(head))),
                Ok(None) => {}
                Err(error) => {
                    let page = Page::text(error.status(), format!("{error}\n"));
                    return Ok(Some(Err(page)));
                }
            }
            if self.stream.read_buf(&mut input).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn send(&mut self, page: &Page, method: &Method) -> io::Result<()> {
        let output = page.written(method)?;
        within(async {
            self.stream.write_all(&output).await?;
            self.stream.shutdown().await
        })
        .await
    }

    /// Sends the state each second until the visitor goes.
    async fn send_events(&mut self) -> io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
            Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
            Connection: close\r\n\r\n";
        within(self.stream.write_all(head.as_bytes())).await?;
        let mut ticks = tokio::time::interval(EVENT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(state) = (self.pages)("/state").await else {
                return Ok(());
            };
            let event = format!("data: {}\n\n", state.body.trim_end());
            within(self.stream.write_all(event.as_bytes())).await?;
        }
    }
}

/// Whether a web page elsewhere cannot have this host lead here: it is an address, `localhost`, or
/// one of the `names`.
fn is_known_host(host: &str, names: &[String]) -> bool {
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_address = address.unwrap_or(host).parse::<IpAddr>().is_ok();
    let own = names.iter().map(String::as_str);
    let mut names = own.chain(["localhost"]);
    is_address || names.any(|name| name.eq_ignore_ascii_case(host))
}

/// The result of `work`, or an error after [`DEADLINE`].
async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Page {
    /// The answer with this page, after which the connection ends.
    fn written(&self, method: &Method) -> io::Result<Vec<u8>> {
        let mut head = ResponseHead::new(self.status)
            .with("Content-Type", self.content_type)
            .and_then(|head| head.with("Cache-Control", "no-store"))
            .and_then(|head| head.with("X-Content-Type-Options", "nosniff"))
            .and_then(|head| head.with("Referrer-Policy", "no-referrer"))
            .map_err(io::Error::other)?;
        if let Some(policy) = &self.policy {
            head = head
                .with("Content-Security-Policy", policy)
                .map_err(io::Error::other)?;
        }
        let form = AnswerForm {
            method,
            version: Version::Http11,
            keep_alive: false,
            date: "",
            extra: [None; 2],
        };
        let mut output = Vec::with_capacity(self.body.len() + 256);
        let written = head.write_to(&form, Some(self.body.len() as u64), &mut output);
        if written.framing != ResponseFraming::None {
            output.extend_from_slice(self.body.as_bytes());
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::time::Instant;

    use super::*;

    /// Serves one page, `/-/ready`, at the returned address.
    fn begin() -> SocketAddr {
        let listener = bind(([127, 0, 0, 1], 0).into(), "admin.listen").unwrap();
        let address = listener.local_addr().unwrap();
        let pages: Arc<Pages> = Arc::new(|path| {
            let page = (path == "/-/ready").then(|| Page::text(200, "ready\n"));
            Box::pin(std::future::ready(page))
        });
        tokio::spawn(serve(listener, vec!["be0.example".into()], pages));
        address
    }

    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        read_to_end(&mut stream).await
    }

    #[tokio::test]
    async fn the_longest_idle_connection_gives_way() {
        let address = begin();
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = Instant::now();
        let answer = ask(address, "GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.ends_with("ready\n"), "{answer}");
        assert!(asked.elapsed() < DEADLINE / 4, "{:?}", asked.elapsed());
        let mut rest = idle.split_off(1);
        let first = idle.first_mut().unwrap();
        assert_eq!(read_to_end(first).await, "");
        let last = rest.last_mut().unwrap();
        let request = b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
        last.write_all(request).await.unwrap();
        let answer = read_to_end(last).await;
        assert!(answer.ends_with("ready\n"), "{answer}");
    }

    #[tokio::test]
    async fn only_addresses_and_own_names_are_answered() {
        let address = begin();
        let status = async |host: &str| {
            let request = format!("GET /-/ready HTTP/1.1\r\n{host}\r\n");
            let answer = ask(address, &request).await;
            answer.split(' ').nth(1).unwrap().to_owned()
        };
        for host in [
            "127.0.0.1:9464",
            "[::1]:9464",
            "[::1]",
            "localhost",
            "LocalHost:1",
        ] {
            assert_eq!(status(&format!("Host: {host}\r\n")).await, "200", "{host}");
        }
        assert_eq!(status("Host: be0.example:9464\r\n").await, "200");
        for host in [
            "evil.example",
            "localhost.evil.example:9464",
            "127.0.0.1.nip.io",
        ] {
            assert_eq!(status(&format!("Host: {host}\r\n")).await, "421", "{host}");
        }
        let answer = ask(address, "GET /-/ready HTTP/1.0\r\n\r\n").await;
        assert!(answer.ends_with("ready\n"), "{answer}");
    }
}
