//! `[cluster.etcd]` as structs, and its checks.

use std::path::PathBuf;

use prism_etcd::Endpoint;
use serde::{Deserialize, Serialize};

use crate::problem::Problems;

/// Most members; no etcd has more.
const MAX_ENDPOINTS: usize = 16;
/// The shortest lease that etcd grants with its usual election timeout, and a longest one.
const LEASE_TTL_S: std::ops::RangeInclusive<u64> = 2..=300;
/// Longest prefix of keys, in bytes.
const MAX_PREFIX_BYTES: usize = 128;

section! {
    /// `[cluster.etcd]`
    pub struct Etcd;
    /// Required. The members of etcd, as in `http://10.0.0.5:2379` or
    /// `https://etcd-0.example:2379`; all `http` or all `https`.
    pub endpoints: Vec<Endpoint>,
    /// Required with `https`. Certificates (PEM) of the authorities that sign
    /// for etcd.
    pub ca_file: Option<PathBuf>,
    /// Default none. The certificate (PEM) by which etcd knows this host.
    pub cert_file: Option<PathBuf>,
    /// Default none. Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Default 5 s. The time for which a backend may be cut off from etcd before the others go on
    /// without it. The backend itself stops serving a tenth earlier, and a node refuses
    /// requests with keys then, because a key may have been deleted meanwhile. A shorter time
    /// makes outages shorter, and makes a slow etcd an outage.
    pub lease_ttl_s: u16 = 5,
    /// Default `/prism`. The beginning of all keys in etcd; the cluster's name follows.
    pub prefix: String = "/prism".into(),
}

impl Etcd {
    pub(crate) fn check(&self, found: &mut Problems) {
        let field = "cluster.etcd.endpoints";
        if self.endpoints.is_empty() {
            let what = "the members of etcd, as in [\"http://10.0.0.5:2379\"]";
            found.missing(field, what);
        }
        let count = self.endpoints.len();
        let fault = format!("there are more than {MAX_ENDPOINTS}");
        found.check(count <= MAX_ENDPOINTS, field, fault, "name some of them");
        let secure = self.endpoints.iter().filter(|e| e.is_secure()).count();
        let is_uniform = secure == 0 || secure == count;
        let fix = "use one of the two for all";
        found.check(is_uniform, field, "some are http, some https", fix);
        if secure > 0 && self.ca_file.is_none() {
            let what = "the authority's certificate, since endpoints are https";
            found.missing("cluster.etcd.ca_file", what);
        }
        let has_file =
            self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        let is_used = secure > 0 || count == 0 || !has_file;
        let fix = "use https, or remove ca_file, cert_file and key_file";
        found.check(is_used, field, "are http, which uses no certificates", fix);
        let is_pair = self.cert_file.is_some() == self.key_file.is_some();
        let fault = "only one of cert_file and key_file is set";
        let fix = "set both or neither";
        found.check(is_pair, "cluster.etcd.cert_file", fault, fix);
        found.range("cluster.etcd.lease_ttl_s", self.lease_ttl_s, LEASE_TTL_S);
        let prefix = &self.prefix;
        let is_prefix = prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.len() <= MAX_PREFIX_BYTES
            && prefix.bytes().all(|b| b.is_ascii_graphic());
        let fault = format!("{prefix:?} is no prefix of keys");
        let fix = "use one like \"/prism\": a '/' in front and none at the end";
        found.check(is_prefix, "cluster.etcd.prefix", fault, fix);
    }
}
