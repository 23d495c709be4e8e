//! The service: each request goes to one of its two parts.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use prism_config::STORE;
use prism_http::{BodyFraming, HeadError, Headers, Limits, RequestHead, ResponseHead};
use prism_objects::Objects;
use prism_proto::facts::Facts;
use prism_replicas::Replicator;
use prism_rules::AmbiguousPath;
use prism_s3::{Code, S3Error};
use prism_service::{
    About, Exchange, Fault, Redirected, RequestMut, RequestRef, Route, Served, Service, Subject,
};
use prism_upstream::{Destination, Upstreams};

use crate::routes::{PathFault, Routes, Verdict};

type Servers = Upstreams<Rc<Replicator>>;

/// The service, as one thread of a node serves it.
pub struct Combined {
    upstreams: Servers,
    objects: Objects,
    routes: Arc<Routes>,
}

/// A request as one of the two parts understands it.
pub enum Meaning {
    /// A server answers it.
    Upstream(prism_upstream::Meaning),
    /// The object store answers it.
    Objects(Box<prism_objects::Meaning>),
}

/// The reason for a refusal, by one of the two parts.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// By the upstreams.
    #[error(transparent)]
    Upstream(#[from] prism_upstream::Error),
    /// By the object store.
    #[error(transparent)]
    Objects(#[from] S3Error),
}

impl From<PathFault> for Error {
    fn from(fault: PathFault) -> Self {
        match fault {
            PathFault::Ambiguous => prism_upstream::Error::AmbiguousPath.into(),
            PathFault::Malformed(error) => S3Error::from(error).into(),
        }
    }
}

impl Combined {
    /// The service of these parts, for the calling thread.
    pub fn new(upstreams: Servers, objects: Objects, routes: Arc<Routes>) -> Self {
        Self {
            upstreams,
            objects,
            routes,
        }
    }

    /// Whether the object store gets a client's request.
    fn is_for_store(&self, head: &RequestHead) -> Result<bool, Error> {
        let verdict = self.routes.verdict(head, false);
        let verdict = verdict.map_err(|AmbiguousPath| prism_upstream::Error::AmbiguousPath)?;
        Ok(match verdict {
            Verdict::Store => true,
            Verdict::StoreAtLast => !self.upstreams.takes(head, false)?,
            Verdict::Upstream => false,
        })
    }

    /// The meaning of a request for the store, whose limits are not those of other requests.
    fn of_store(&self, head: &RequestHead, read: prism_objects::Meaning) -> Result<Meaning, Error> {
        let max_bytes = self.objects.limits().body_bytes;
        let is_too_long = matches!(head.framing(), BodyFraming::Length(bytes) if bytes > max_bytes);
        if is_too_long {
            return Err(S3Error::from(HeadError::BodyTooLong).into());
        }
        Ok(Meaning::Objects(Box::new(read)))
    }

    /// The request for an object that a server has named.
    fn redirect_to_store(
        &self,
        destination: Destination,
        access_key: Option<&str>,
    ) -> Result<Redirected<Meaning>, Error> {
        let Destination {
            part,
            has_host,
            mut head,
            mut head_bytes,
            fields,
        } = destination;
        if part.is_none() {
            let max_bytes = self.objects.limits().target_bytes;
            self.routes.replace_prefix(&mut head, max_bytes)?;
        }
        let host = head.host().filter(|_| !has_host).map(str::to_owned);
        if host.is_some() {
            // That of the application names no bucket.
            set_host(&mut head, STORE)?;
        }
        let meaning = self.objects.understand_redirected(&mut head, access_key)?;
        if let Some(host) = host {
            set_host(&mut head, &host)?;
        }
        if let Some(rewritten) = head.take_rewritten() {
            head_bytes = rewritten;
        }
        Ok(Redirected {
            head,
            head_bytes,
            meaning: Meaning::Objects(Box::new(meaning)),
            fields,
        })
    }

    /// Whether the object store has the resource that a server has named.
    fn store_has(&self, destination: &Destination) -> Result<bool, Error> {
        if let Some(part) = &destination.part {
            return Ok(part == STORE);
        }
        let verdict = self.routes.verdict(&destination.head, true);
        let verdict = verdict.map_err(|AmbiguousPath| prism_upstream::Error::AmbiguousPath)?;
        Ok(match verdict {
            Verdict::Store => true,
            Verdict::StoreAtLast => !self.upstreams.takes(&destination.head, true)?,
            Verdict::Upstream => false,
        })
    }
}

impl Service for Combined {
    type Meaning = Meaning;
    type Error = Error;
    type Change<'s> = <Objects as Service>::Change<'s>;
    type Nodes = Servers;

    fn limits(&self) -> &Limits {
        self.upstreams.limits()
    }

    async fn hear_of(&self, facts: &Facts) -> Result<(), Error> {
        Ok(self.objects.hear_of(facts).await?)
    }

    fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Facts>,
    ) -> Result<Meaning, Error> {
        let is_for_store = match &verified {
            // The node that has read it has chosen.
            Some(facts) => facts.upstream.is_none(),
            None => self.is_for_store(head)?,
        };
        if !is_for_store {
            return Ok(Meaning::Upstream(
                self.upstreams.understand(head, verified)?,
            ));
        }
        if verified.is_none() {
            let max_bytes = self.objects.limits().target_bytes;
            self.routes.replace_prefix(head, max_bytes)?;
        }
        let read = self.objects.understand(head, verified)?;
        self.of_store(head, read)
    }

    async fn admit(&self, request: RequestMut<'_>, meaning: &mut Meaning) -> Result<(), Error> {
        match meaning {
            Meaning::Upstream(meaning) => Ok(self.upstreams.admit(request, meaning).await?),
            Meaning::Objects(meaning) => Ok(self.objects.admit(request, meaning).await?),
        }
    }

    async fn confirm(&self, meaning: &mut Meaning) -> Result<(), Error> {
        match meaning {
            Meaning::Upstream(_) => Ok(()),
            Meaning::Objects(meaning) => Ok(self.objects.confirm(meaning).await?),
        }
    }

    fn refuses_for_itself(&self) -> bool {
        self.objects.refuses_for_itself()
    }

    async fn hold(&self, meaning: &Meaning) -> Option<Self::Change<'_>> {
        match meaning {
            Meaning::Upstream(_) => None,
            Meaning::Objects(meaning) => self.objects.hold(meaning).await,
        }
    }

    fn route(&self, meaning: &Meaning, has_failed: bool) -> Route {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.route(meaning, has_failed),
            Meaning::Objects(meaning) => self.objects.route(meaning, has_failed),
        }
    }

    fn is_elsewhere(&self, meaning: &Meaning) -> bool {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.is_elsewhere(meaning),
            Meaning::Objects(meaning) => self.objects.is_elsewhere(meaning),
        }
    }

    fn may_stay(&self, meaning: &Meaning) -> bool {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.may_stay(meaning),
            Meaning::Objects(meaning) => self.objects.may_stay(meaning),
        }
    }

    fn has_to_move(&self, meaning: &Meaning) -> bool {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.has_to_move(meaning),
            Meaning::Objects(meaning) => self.objects.has_to_move(meaning),
        }
    }

    fn epoch(&self) -> u64 {
        self.objects.epoch()
    }

    async fn has_moved_on(&self, meaning: &Meaning, epoch: u64, was_sent_elsewhere: bool) -> bool {
        let Meaning::Objects(meaning) = meaning else {
            return false;
        };
        let objects = &self.objects;
        objects
            .has_moved_on(meaning, epoch, was_sent_elsewhere)
            .await
    }

    fn facts(&self, meaning: &Meaning) -> Facts {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.facts(meaning),
            Meaning::Objects(meaning) => self.objects.facts(meaning),
        }
    }

    fn about<'m>(&self, meaning: &'m Meaning) -> About<'m> {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.about(meaning),
            Meaning::Objects(meaning) => self.objects.about(meaning),
        }
    }

    fn subject<'m>(&self, meaning: &'m Meaning) -> Option<Subject<'m>> {
        match meaning {
            Meaning::Upstream(meaning) => self.upstreams.subject(meaning),
            Meaning::Objects(meaning) => self.objects.subject(meaning),
        }
    }

    async fn serve(
        &self,
        exchange: &mut impl Exchange,
        request: RequestRef<'_, Meaning>,
    ) -> io::Result<Served<Error>> {
        Ok(match request.meaning {
            Meaning::Upstream(meaning) => {
                let serving = self.upstreams.serve(exchange, request.with(meaning));
                mapped(serving.await?)
            }
            Meaning::Objects(meaning) => {
                let serving = self.objects.serve(exchange, request.with(&**meaning));
                mapped(serving.await?)
            }
        })
    }

    fn redirected(
        &self,
        request: RequestRef<'_, Meaning>,
        answer: &ResponseHead,
    ) -> Result<Redirected<Meaning>, Error> {
        let Meaning::Upstream(meaning) = request.meaning else {
            return Err(S3Error::from(Code::InternalError).into());
        };
        let destination = self.upstreams.destination(request.with(meaning), answer)?;
        if self.store_has(&destination)? {
            // An open redirect of the application must not read by its key.
            let access_key = meaning.redirects_as().filter(|_| !destination.has_host);
            return self.redirect_to_store(destination, access_key);
        }
        let Redirected {
            head,
            head_bytes,
            meaning,
            fields,
        } = self.upstreams.redirect_to(destination)?;
        Ok(Redirected {
            head,
            head_bytes,
            meaning: Meaning::Upstream(meaning),
            fields,
        })
    }

    fn nodes(&self) -> &Servers {
        &self.upstreams
    }

    async fn extra_fields(&self, head: &RequestHead) -> Option<Headers> {
        match self.is_for_store(head) {
            Ok(true) => self.objects.extra_fields(head).await,
            _ => None,
        }
    }

    fn error_for(&self, fault: Fault, meaning: Option<&Meaning>) -> Error {
        match meaning {
            Some(Meaning::Objects(meaning)) => self.objects.error_for(fault, Some(meaning)).into(),
            Some(Meaning::Upstream(meaning)) => {
                self.upstreams.error_for(fault, Some(meaning)).into()
            }
            None => self.upstreams.error_for(fault, None).into(),
        }
    }

    fn status_of(&self, error: &Error) -> (u16, bool) {
        match error {
            Error::Upstream(error) => self.upstreams.status_of(error),
            Error::Objects(error) => self.objects.status_of(error),
        }
    }

    async fn send_error(
        &self,
        exchange: &mut impl Exchange,
        error: &Error,
        path: &str,
    ) -> io::Result<()> {
        match error {
            Error::Upstream(error) => self.upstreams.send_error(exchange, error, path).await,
            Error::Objects(error) => self.objects.send_error(exchange, error, path).await,
        }
    }
}

fn set_host(head: &mut RequestHead, host: &str) -> Result<(), Error> {
    let set = head.headers_mut().set("Host", host);
    set.map_err(|_| S3Error::from(HeadError::HeadTooLong).into())
}

/// The same outcome with this service's error.
fn mapped<E: Into<Error>>(served: Served<E>) -> Served<Error> {
    match served {
        Served::Answered => Served::Answered,
        Served::Elsewhere(error) => Served::Elsewhere(error.into()),
        Served::Redirected(answer) => Served::Redirected(answer),
    }
}
