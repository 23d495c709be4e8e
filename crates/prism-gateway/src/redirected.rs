//! Internal redirects: a server's answer names another resource, and a request for that one takes
//! the place of the client's, on the same connection.

use prism_handoff::Connection;
use prism_http::ResponseHead;
use prism_service::{Exchange, Fault, MAX_REDIRECTS, Redirected, Request, Service, has_body};

use crate::connections::ListedConnection;
use crate::gateway::Gateway;
use crate::observe::Sight;
use crate::session::End;

impl<S: Service> Gateway<S> {
    /// Serves the resource that a server's `answer` to `request` names. `end`: that of the exchange
    /// in which the answer came. Returns the connection, if it lives on here.
    pub(crate) async fn follow_redirect(
        &self,
        mut client: Connection,
        request: &mut Request<S::Meaning>,
        answer: &ResponseHead,
        end: End,
        sight: &Sight,
        listed: &ListedConnection<'_>,
    ) -> Option<Connection> {
        let End {
            mut record,
            head_bytes,
            is_body_read,
            ..
        } = end;
        record.status = Some(answer.status());
        let about = self.service.about(&request.meaning);
        self.observe_redirect(sight, about, &request.head, &record);
        let meaning = Some(&request.meaning);
        let redirected = if !is_body_read {
            // Another node was in haste.
            Err(self.service.error_for(Fault::OutOfReach, meaning))
        } else if request.redirection.steps() < MAX_REDIRECTS {
            self.service.redirected(request.view(), answer)
        } else {
            Err(self.service.error_for(Fault::RedirectLoop, meaning))
        };
        let redirected = match redirected {
            Ok(redirected) => redirected,
            Err(error) => {
                let id = request.id;
                let path = request.head.path();
                tracing::info!(request = id, path, %error, "a redirect is not followed");
                return self
                    .refuse_redirected(client, request, head_bytes, &error, sight)
                    .await;
            }
        };
        let Redirected {
            head,
            head_bytes: head_written,
            meaning,
            fields,
        } = redirected;
        // Every node that reads the request from now on reads this one.
        client.replace(head_bytes, &head_written);
        request.head = head;
        request.meaning = meaning;
        request.redirection.add(&fields);
        request.retries = 0;
        self.shared.counters.redirects.add_one();
        let head_bytes = head_written.len();
        if let Err(error) = self.admit(request).await {
            return self
                .refuse_redirected(client, request, head_bytes, &error, sight)
                .await;
        }
        self.serve_admitted(client, request, sight, head_bytes, listed)
            .await
    }

    /// Answers with an error in the place of a resource.
    async fn refuse_redirected(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        head_bytes: usize,
        error: &S::Error,
        sight: &Sight,
    ) -> Option<Connection> {
        let head = &request.head;
        let mut exchange = self.exchange(&mut client, head, request.id, head_bytes);
        exchange.record_mut().redirects = request.redirection.steps();
        exchange.replace_fields(request.replaced_fields());
        // The body that such a head announces is gone already.
        if has_body(head) {
            exchange.close_after();
        }
        let refused = self.refuse_client(&mut exchange, head, error, false).await;
        if refused.is_err() {
            exchange.close_after();
        }
        let end = self.end(exchange);
        let about = self.service.about(&request.meaning);
        self.ended(client, sight, about, Some(head), end).await
    }
}
