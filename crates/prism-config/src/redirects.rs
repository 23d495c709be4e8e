//! `[service.upstream.redirects]`: answers of a server that name the resource to answer with. And
//! `[service.objects]`: the object store beside upstreams.

use std::collections::BTreeMap;

use prism_rules::Conditions;
use serde::{Deserialize, Serialize};

/// The name of the object store as the target of a redirect.
pub const STORE: &str = "store";

/// Most prefixes of `locations`.
pub(crate) const MAX_LOCATIONS: usize = 64;

section! {
    /// The object store of a service that has upstreams too. With conditions it is tried before
    /// the upstreams. Without any it gets the requests that no upstream gets.
    pub struct ObjectRoutes;
    /// Default: all. The hosts of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Default: all. The paths of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Default: all. The methods of requests for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Default: all. Header fields that requests for it have, such as `Authorization`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Default: none. The store sees this in the place of the beginning that `paths` names: with
    /// `/media/` and `paths = ["/protected/"]` the bucket `media` has the objects. A signature is
    /// that of the new path.
    pub replace_prefix: Option<String>,
    /// Default false. Only internal redirects reach it, no request of a client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
}

impl ObjectRoutes {
    /// The conditions for requests that it gets.
    pub fn conditions(&self) -> Conditions<'_> {
        Conditions {
            hosts: &self.hosts,
            paths: &self.paths,
            methods: &self.methods,
            headers: &self.headers,
        }
    }
}

section! {
    /// Which answers of an upstream's servers are internal redirects: the client gets the resource
    /// that they name, from the node that has it, and does not see the redirect.
    pub struct Redirects;
    /// Default true. `X-Accel-Redirect` names a path of this service, or `@`, the name of an
    /// upstream or `store`, and a path there.
    pub accel: bool = true,
    /// Default: none. What an answer 302, 303, 307 or 308 has in `Location` to be one: the
    /// beginning of the URL, and the name of the upstream that has the resource, or `store`, as in
    /// `"http://store.internal:9000/" = "store"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub locations: BTreeMap<String, String>,
    /// Default: nobody. The access key with whose rights the store answers `X-Accel-Redirect`. A
    /// `Location` has a signature of its own, or nobody's rights.
    pub access_key: Option<String>,
    /// Default: `Cache-Control`, `Content-Disposition`, `Content-Language`, `Content-Type`,
    /// `Expires`, `Set-Cookie`. The header fields of the server's answer that the client gets, in
    /// the place of the resource's own. `Content-Language` and `Content-Type` beside a `Location`
    /// describe another text, and do not count.
    pub fields: Vec<String> = FIELDS.map(str::to_owned).to_vec(),
}

/// The default of `fields`.
const FIELDS: [&str; 6] = [
    "Cache-Control",
    "Content-Disposition",
    "Content-Language",
    "Content-Type",
    "Expires",
    "Set-Cookie",
];
