//! The requests that a rule or a limit of the configuration is for.

use prism_config::{Networks, RequestLimit, Rule};
use prism_http::RequestHead;
use prism_rules::{AmbiguousPath, Fit, Matcher, RequestPath};
use prism_service::Remote;

/// The conditions for a request and for its client.
pub(crate) struct Audience {
    matcher: Matcher,
    clients: Networks,
    except_clients: Networks,
    https: Option<bool>,
}

impl Audience {
    /// That of a rule.
    pub(crate) fn of_rule(rule: &Rule) -> Self {
        Self {
            matcher: Matcher::new(&rule.conditions(), rule.ambiguous_paths),
            clients: rule.clients.clone(),
            except_clients: rule.except_clients.clone(),
            https: rule.https,
        }
    }

    /// That of a limit.
    pub(crate) fn of_limit(limit: &RequestLimit) -> Self {
        Self {
            matcher: Matcher::new(&limit.conditions(), limit.ambiguous_paths),
            clients: limit.clients.clone(),
            except_clients: limit.except_clients.clone(),
            https: None,
        }
    }

    /// How a request of `client` fits; `None` if it does not.
    ///
    /// # Errors
    /// Its path can be read in two ways, and the conditions name some paths only.
    pub(crate) fn fit<'m, 'p>(
        &'m self,
        head: &RequestHead,
        path: &'p RequestPath<'p>,
        client: &Remote,
    ) -> Result<Option<Fit<'m, 'p>>, AmbiguousPath> {
        if self.has_client(client) {
            self.matcher.fit(head, path)
        } else {
            Ok(None)
        }
    }

    fn has_client(&self, client: &Remote) -> bool {
        let address = client.address.ip();
        let is_any = self.clients.all().is_empty();
        (is_any || self.clients.have(address))
            && !self.except_clients.have(address)
            && self.https.is_none_or(|https| https == client.is_tls)
    }
}
