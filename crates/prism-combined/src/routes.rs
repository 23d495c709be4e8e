//! Which requests the object store gets.

use std::sync::Arc;

use parking_lot::RwLock;
use prism_config::{Config, ObjectRoutes};
use prism_http::{HeadError, RequestHead};
use prism_rules::{AmbiguousPath, Matcher, RequestPath};

/// The rules of a service for requests to its object store, which a reload replaces.
pub struct Routes(RwLock<Arc<Rules>>);

struct Rules {
    settings: ObjectRoutes,
    matcher: Matcher,
}

/// The part of the service that the rules name for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The store gets it.
    Store,
    /// The store gets it if no upstream does.
    StoreAtLast,
    /// The store does not get it.
    Upstream,
}

/// The reason why the store gets no request for a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathFault {
    /// It can be read in two ways.
    Ambiguous,
    /// The new one is malformed, or too long.
    Malformed(HeadError),
}

impl Routes {
    /// The rules of a configuration.
    pub fn of(config: &Config) -> Self {
        Self(RwLock::new(Arc::new(Rules::of(config))))
    }

    /// Makes those of `config` the present ones.
    pub fn reconfigure(&self, config: &Config) {
        *self.0.write() = Arc::new(Rules::of(config));
    }

    fn now(&self) -> Arc<Rules> {
        self.0.read().clone()
    }

    /// Which part of the service gets a request. `is_redirected`: a server has named the resource,
    /// so the store may be an internal one.
    pub(crate) fn verdict(
        &self,
        head: &RequestHead,
        is_redirected: bool,
    ) -> Result<Verdict, AmbiguousPath> {
        let rules = self.now();
        let settings = &rules.settings;
        if settings.internal && !is_redirected {
            return Ok(Verdict::Upstream);
        }
        if settings.conditions().are_none() {
            return Ok(Verdict::StoreAtLast);
        }
        let path = RequestPath::of(head);
        let fit = rules.matcher.fit(head, &path)?;
        Ok(fit.map_or(Verdict::Upstream, |_| Verdict::Store))
    }

    /// Gives a request for the store the path that the store sees, as far as the rules replace the
    /// beginning.
    pub(crate) fn replace_prefix(
        &self,
        head: &mut RequestHead,
        max_bytes: usize,
    ) -> Result<(), PathFault> {
        let rules = self.now();
        let Some(new) = &rules.settings.replace_prefix else {
            return Ok(());
        };
        let replaced = {
            let path = RequestPath::of(head);
            let fit = rules.matcher.fit_path(&path);
            let fit = fit.map_err(|AmbiguousPath| PathFault::Ambiguous)?;
            let replaced = fit.map(|fit| fit.replace_beginning(new)).transpose();
            replaced.map_err(|AmbiguousPath| PathFault::Ambiguous)?
        };
        let Some(path) = replaced.flatten() else {
            return Ok(());
        };
        if path.len() > max_bytes {
            return Err(PathFault::Malformed(HeadError::TargetTooLong));
        }
        head.rewrite_path(&path).map_err(PathFault::Malformed)
    }
}

impl Rules {
    fn of(config: &Config) -> Self {
        let settings = config.service.objects.clone().unwrap_or_default();
        Self {
            // The store itself reads a path in one way only, unless it sees another one.
            matcher: Matcher::new(&settings.conditions(), settings.replace_prefix.is_none()),
            settings,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    fn routes(objects: ObjectRoutes) -> Routes {
        let mut config: Config = Config::default();
        config.service.objects = Some(objects);
        Routes::of(&config)
    }

    fn head(target: &str) -> RequestHead {
        let text = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        parsed.unwrap().unwrap().0
    }

    #[test]
    fn the_store_gets_what_it_names_or_what_is_left() {
        let named = routes(ObjectRoutes {
            paths: vec!["/media/".into()],
            ..ObjectRoutes::default()
        });
        assert_eq!(named.verdict(&head("/media/a"), false), Ok(Verdict::Store));
        assert_eq!(named.verdict(&head("/app"), false), Ok(Verdict::Upstream));
        let last = routes(ObjectRoutes::default());
        assert_eq!(last.verdict(&head("/app"), false), Ok(Verdict::StoreAtLast));
        let internal = routes(ObjectRoutes {
            internal: true,
            ..ObjectRoutes::default()
        });
        assert_eq!(internal.verdict(&head("/a"), false), Ok(Verdict::Upstream));
        assert_eq!(
            internal.verdict(&head("/a"), true),
            Ok(Verdict::StoreAtLast)
        );
    }

    #[test]
    fn the_store_sees_another_beginning_and_so_does_every_later_node() {
        let routes = routes(ObjectRoutes {
            paths: vec!["/protected/".into()],
            replace_prefix: Some("/media/".into()),
            ..ObjectRoutes::default()
        });
        let mut request = head("/protected/a%20b?partNumber=1");
        assert_eq!(routes.replace_prefix(&mut request, 100), Ok(()));
        assert_eq!(request.target(), "/media/a%20b?partNumber=1");
        let written = request.take_rewritten().unwrap();
        assert!(written.starts_with(b"GET /media/a%20b?partNumber=1 HTTP/1.1\r\nHost: h\r\n"));
        let mut other = head("/media/a");
        assert_eq!(routes.replace_prefix(&mut other, 100), Ok(()));
        assert_eq!(other.target(), "/media/a");
        let long = routes.replace_prefix(&mut head("/protected/long"), 5);
        assert_eq!(long, Err(PathFault::Malformed(HeadError::TargetTooLong)));
        let odd = routes.replace_prefix(&mut head("/protected/..%2fx"), 100);
        assert_eq!(odd, Err(PathFault::Ambiguous));
    }
}
