//! A small HTTP server for pages that are made anew for each request. It only reads: it knows
//! GET and HEAD, and takes no body.
//!
//! `/events` sends the page `/state` each second, as a stream of server-sent events (HTML Living
//! Standard, section 9.2).

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use prism_http::{AnswerForm, Limits, Method, RequestHead, ResponseFraming, ResponseHead, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

/// Connections at a time; more wait in the kernel's queue.
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

/// Answers requests with the page of their path. Never returns.
pub async fn serve(listener: std::net::TcpListener, pages: Arc<Pages>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the admin address has no reactor; it answers nothing");
            return std::future::pending().await;
        }
    };
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    loop {
        // The semaphore is never closed.
        let permit = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let visit = Visit {
                    stream,
                    pages: pages.clone(),
                    streams: streams.clone(),
                };
                tokio::spawn(async move {
                    // The visitor may go at any time.
                    let _ = visit.answer().await;
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
    pages: Arc<Pages>,
    streams: Arc<Semaphore>,
}

impl Visit {
    async fn answer(mut self) -> io::Result<()> {
        let head = match within(self.read_head()).await? {
            Some(Ok(head)) => head,
            Some(Err(page)) => return self.send(&page, &Method::GET).await,
            None => return Ok(()),
        };
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
