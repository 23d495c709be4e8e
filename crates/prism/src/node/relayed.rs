//! Requests that other nodes pass on, for their clients or for themselves: the
//! other end of `relay` and `ask`.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use prism_handoff::RelayStream;
use prism_http::{Exchange, Method, RequestHead, ResponseHead};
use prism_proto::relay::{HAND_OVER, Preamble};
use prism_proto::verified::{Body, Policy, Verified};
use prism_proto::wire::DecodeError;
use prism_s3::{Operation, Payload, Principal, S3Error};

use super::Worker;
use super::answer::{send, send_error};
use super::auth::caller;
use super::fence::elsewhere;
use super::io::Asker;
use super::request_body::{MAX_SKIP_BYTES, RequestBody};
use super::session::Request;

impl Worker {
    /// Answers the requests that another node relays, until it closes.
    pub(crate) async fn serve_relay(self: Rc<Self>, stream: RelayStream, peer: String) {
        let mut io = stream;
        io.set_io_timeout(self.node.config.limits.stall_timeout());
        loop {
            // An idle stream would otherwise hold up the end of the node.
            let begun = tokio::select! {
                filled = io.fill(), if io.is_clean() => filled,
                () = self.told_to_stop(), if io.is_clean() => return io.close().await,
                else => Ok(1),
            };
            if !matches!(begun, Ok(1..)) {
                return io.close().await;
            }
            match self.serve_relayed(&mut io, &peer).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(peer, %error, "relay connection ended");
                    return;
                }
            }
        }
    }

    async fn serve_relayed(&self, io: &mut RelayStream, peer: &str) -> io::Result<bool> {
        let (preamble, len) = match read_preamble(io).await? {
            Some(Ok(read)) => read,
            // Nothing says that what follows is HTTP, or where it would begin.
            Some(Err(error)) => {
                self.node.counters.malformed.add_one();
                tracing::warn!(peer, %error, "a node's request is not understood");
                return Ok(false);
            }
            None => return Ok(false),
        };
        io.consume(len);
        // A change travels with its description.
        let more = match preamble.alone {
            true => super::replicate::MAX_HEADER_BYTES as u64 + 4,
            false => 0,
        };
        let limits = prism_http::Limits {
            body_bytes: self.node.limits.body_bytes.saturating_add(more),
            // The relaying node has counted them, and may have added one.
            headers: prism_http::Limits::MAX_HEADERS,
            ..self.node.limits
        };
        let (head, len) = loop {
            match RequestHead::parse(io.buffered(), &limits) {
                Ok(Some(read)) => break read,
                Ok(None) if io.fill().await? == 0 => return Ok(false),
                Ok(None) => {}
                Err(error) => return self.refuse_head_of_node(io, &S3Error::from(error)).await,
            }
        };
        io.consume(len);
        self.node.counters.served_relayed.add_one();
        let (date, io) = (self.date(), &mut Asker::Node(io));
        // Nodes ask each other with POST, read objects with GET, and replicate with
        // PUT.
        if preamble.alone && *head.method() == Method::Put {
            return self.serve_prepare(io, (&head, peer)).await;
        }
        if preamble.alone && *head.method() == Method::Post {
            let question = Request {
                head,
                head_bytes: 0,
                operation: Operation::Unsupported {
                    what: String::new(),
                },
                principal: Principal::Anonymous,
                payload: Payload::Unsigned,
                policy: Policy::NotAsked,
                for_node: true,
                most_bytes: None,
                held: self.node.replication.begin(),
                is_body_taken: Cell::new(false),
            };
            let exchange = question.head.exchange(&date);
            return self.serve_question(io, &question, &exchange).await;
        }
        let refused = match self.understand(head, 0, Some(preamble.verified)) {
            Ok(mut request) => {
                request.for_node = preamble.alone;
                request.most_bytes = preamble.most_bytes;
                // Nodes may read for themselves, whatever a policy says.
                let let_in = match preamble.alone {
                    true => Ok(()),
                    false => self.let_in(&mut request).await,
                };
                match let_in {
                    Ok(()) => return self.answer_relayed(io, &request).await,
                    Err(error) => (request.head, error),
                }
            }
            Err(refused) => refused,
        };
        self.refuse_relayed(io, &refused).await
    }

    /// Answers a request whose head makes no sense. The next one cannot be found.
    async fn refuse_head_of_node(&self, io: &mut RelayStream, error: &S3Error) -> io::Result<bool> {
        self.node.counters.malformed.add_one();
        let date = self.date();
        let exchange = Exchange {
            method: &Method::Get,
            version: prism_http::Version::Http11,
            keep_alive: false,
            date: &date,
            extra: None,
        };
        send_error(&mut Asker::Node(io), &exchange, error, "").await?;
        Ok(false)
    }

    async fn refuse_relayed(
        &self,
        io: &mut Asker<'_>,
        (head, error): &(RequestHead, S3Error),
    ) -> io::Result<bool> {
        let mut body = RequestBody::new(head, MAX_SKIP_BYTES);
        let date = self.date();
        let extra = self.for_browsers(head).await;
        let exchange = Exchange {
            keep_alive: head.keep_alive() && body.can_skip_rest(io).await,
            extra: extra.as_ref(),
            ..head.exchange(&date)
        };
        let answered = send_error(io, &exchange, error, head.path()).await;
        body.skip_behind(io, answered).await
    }
}

impl Worker {
    /// Answers what this node may answer, and tells the other node where that is not so: it
    /// knows, or is about to hear, who does.
    async fn answer_relayed(&self, io: &mut Asker<'_>, request: &Request) -> io::Result<bool> {
        let date = self.date();
        let exchange = request.head.exchange(&date);
        // Decided by the cluster as it is behind a pause.
        let _write = self.begin_write(&request.operation).await;
        let is_elsewhere = request.held.is_some() && self.may_answer(request).is_err();
        if !is_elsewhere || request.for_node {
            return self.serve_from_store(io, request, &exchange).await;
        }
        tracing::info!(error = %elsewhere(), path = request.head.path(), "sent back");
        let mut body = request.take_body(MAX_SKIP_BYTES);
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.can_skip_rest(io).await,
            ..exchange
        };
        let answered = send(io, &exchange, ResponseHead::new(HAND_OVER), &[]).await;
        body.skip_behind(io, answered).await
    }
}

/// Precedes a client's request.
pub(crate) fn for_client(request: &Request) -> Preamble {
    Preamble {
        alone: false,
        verified: request.verified(),
        most_bytes: None,
    }
}

/// Precedes a request of this node itself, on behalf of somebody.
pub(crate) fn for_itself(principal: &Principal) -> Preamble {
    Preamble {
        alone: true,
        verified: Verified {
            caller: caller(principal, Policy::NotAsked),
            body: Body::Unsaid,
        },
        most_bytes: None,
    }
}

/// The next preamble with its length, or what is wrong with it; `None` at the end.
async fn read_preamble(
    io: &mut RelayStream,
) -> io::Result<Option<Result<(Preamble, usize), DecodeError>>> {
    loop {
        match Preamble::decode(io.buffered()).transpose() {
            None if io.fill().await? == 0 => return Ok(None),
            None => {}
            read => return Ok(read),
        }
    }
}
