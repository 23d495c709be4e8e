//! A small HTTP server for pages that are made anew for each request. It only reads: it knows
//! GET and HEAD, and takes no body.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_http::{Exchange, Limits, Method, RequestHead, ResponseFraming, ResponseHead, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// Time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a failure to accept.
const RETRY: Duration = Duration::from_millis(100);

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Page {
    /// Plain text.
    pub(crate) fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    /// A JSON document.
    pub(crate) fn json(document: &serde_json::Value) -> Self {
        Self {
            status: 200,
            content_type: "application/json",
            body: format!("{document}\n"),
        }
    }
}

/// The page of a path, if there is one.
pub(crate) type Pages = dyn Fn(&str) -> Option<Page> + Send + Sync;

/// Listens on the address of the field `field` of the configuration.
pub(crate) fn bind(address: SocketAddr, field: &str) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {field} {address}; choose another address, or \"\" for none")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers requests with the page of their path. Never returns.
pub(crate) async fn serve(listener: std::net::TcpListener, pages: Arc<Pages>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the admin address has no reactor; it answers nothing");
            return std::future::pending().await;
        }
    };
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let permit = permits.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(DEADLINE, answer(stream, &*pages)).await;
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

async fn answer(mut stream: TcpStream, pages: &Pages) -> io::Result<()> {
    let mut input = Vec::new();
    let output = loop {
        match RequestHead::parse(&input, &Limits::DEFAULT) {
            Ok(Some((head, _))) => break answer_to(&head, pages)?,
            Ok(None) => {}
            Err(error) => {
                let page = Page::text(error.status(), format!("{error}\n"));
                break page.written(&Method::Get)?;
            }
        }
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    };
    stream.write_all(&output).await?;
    stream.shutdown().await
}

fn answer_to(head: &RequestHead, pages: &Pages) -> io::Result<Vec<u8>> {
    let page = match head.method() {
        Method::Get | Method::Head => pages(head.path()),
        _ => Some(Page::text(405, "Only GET and HEAD.\n")),
    };
    let page = page.unwrap_or_else(|| Page::text(404, "There is no such page.\n"));
    page.written(head.method())
}

impl Page {
    /// The answer with this page, after which the connection ends.
    fn written(&self, method: &Method) -> io::Result<Vec<u8>> {
        let head = ResponseHead::new(self.status)
            .with("Content-Type", self.content_type)
            .and_then(|head| head.with("Cache-Control", "no-store"))
            .map_err(io::Error::other)?;
        let exchange = Exchange {
            method,
            version: Version::Http11,
            keep_alive: false,
            date: "",
            extra: None,
            noted: None,
        };
        let mut output = Vec::with_capacity(self.body.len() + 256);
        let written = head.write_to(&exchange, Some(self.body.len() as u64), &mut output);
        if written.framing != ResponseFraming::None {
            output.extend_from_slice(self.body.as_bytes());
        }
        Ok(output)
    }
}
