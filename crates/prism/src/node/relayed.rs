//! Requests that other nodes pass on, for their clients or for themselves: the
//! other end of `relay` and `ask`.

use std::io;
use std::rc::Rc;

use prism_handoff::RelayStream;
use prism_http::{Exchange, Method, RequestHead};
use prism_proto::relay::Preamble;
use prism_s3::{Operation, Payload, Principal};

use super::Worker;
use super::answer::{discard_body, send_error};
use super::io::Asker;
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
                () = self.told_to_stop(), if io.is_clean() => return,
                else => Ok(1),
            };
            if !matches!(begun, Ok(1..)) {
                return;
            }
            match self.serve_relayed(&mut io).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(peer, %error, "relay connection ended");
                    return;
                }
            }
        }
    }

    async fn serve_relayed(&self, io: &mut RelayStream) -> io::Result<bool> {
        let Some((preamble, len)) = read_preamble(io).await? else {
            return Ok(false);
        };
        io.consume(len);
        // A change travels with its description.
        let more = match preamble.alone {
            true => super::replicate::MAX_HEADER_BYTES as u64 + 4,
            false => 0,
        };
        let limits = prism_http::Limits {
            body_bytes: self.node.limits.body_bytes.saturating_add(more),
            ..self.node.limits
        };
        let (head, len) = loop {
            match RequestHead::parse(io.buffered(), &limits) {
                Ok(Some(read)) => break read,
                Ok(None) if io.fill().await? == 0 => return Ok(false),
                Ok(None) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        };
        io.consume(len);
        self.node.counters.served_relayed.add_one();
        let principal = match preamble.principal {
            empty if empty.is_empty() => Principal::Anonymous,
            key => Principal::AccessKey(key),
        };
        let (date, io) = (self.date(), &mut Asker::Node(io));
        // Nodes ask each other with POST, read objects with GET, and replicate with
        // PUT.
        if preamble.alone && *head.method() == Method::Put {
            return self.serve_prepare(io, &head).await;
        }
        if preamble.alone && *head.method() == Method::Post {
            let question = Request {
                head,
                head_bytes: 0,
                operation: Operation::Unsupported {
                    what: String::new(),
                },
                principal,
                payload: Payload::Unsigned,
                for_node: true,
                most_bytes: None,
                held: self.node.replication.begin(),
            };
            let exchange = question.head.exchange(&date);
            return self.serve_question(io, &question, &exchange).await;
        }
        match self.understand(head, 0, Some(principal)) {
            Ok(request) => {
                let request = Request {
                    for_node: preamble.alone,
                    most_bytes: preamble.most_bytes,
                    ..request
                };
                let exchange = request.head.exchange(&date);
                self.serve_from_store(io, &request, &exchange).await
            }
            Err((head, error)) => {
                let skipped = discard_body(io, &head).await;
                let exchange = Exchange {
                    keep_alive: skipped && head.keep_alive(),
                    ..head.exchange(&date)
                };
                send_error(io, &exchange, &error, head.path()).await
            }
        }
    }
}

pub(crate) fn preamble(principal: &Principal, alone: bool) -> Preamble {
    let principal = match principal {
        Principal::Anonymous => String::new(),
        Principal::AccessKey(key) => key.clone(),
    };
    Preamble {
        alone,
        principal,
        most_bytes: None,
    }
}

async fn read_preamble(io: &mut RelayStream) -> io::Result<Option<(Preamble, usize)>> {
    loop {
        match Preamble::decode(io.buffered()).map_err(io::Error::other)? {
            Some(read) => return Ok(Some(read)),
            None if io.fill().await? == 0 => return Ok(None),
            None => {}
        }
    }
}
