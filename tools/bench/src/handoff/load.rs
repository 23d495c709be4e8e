//! The client: one connection, and two objects of different backends alternately.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, System};
use crate::objects::{Object, Objects};
use crate::{client, http};

/// Requests that are ready to be sent.
pub(super) struct Load<'l> {
    cluster: &'l Cluster,
    service: SocketAddr,
    gets: Vec<Get<'l>>,
}

struct Get<'l> {
    head: Vec<u8>,
    object: Object<'l>,
}

impl<'l> Load<'l> {
    /// Stores `objects`, and signs a request for each.
    pub(super) fn prepare(cluster: &'l Cluster, objects: &'l Objects) -> Result<Self> {
        cluster.store(objects)?;
        cluster.check(objects)?;
        let service = cluster.address(System::Prism, 0)?;
        let gets = objects.all().map(|object| {
            let target = object.target();
            let head = cluster.signed(service, "GET", &target, b"")?;
            Ok(Get { head, object })
        });
        Ok(Self {
            cluster,
            service,
            gets: gets.collect::<Result<_>>()?,
        })
    }

    /// Fetches `count` times over one connection, from one backend and the other alternately.
    /// Gives the time of each request, in µs.
    pub(super) fn alternate(&self, count: usize) -> Result<Vec<f64>> {
        let trust = self.cluster.trust();
        self.cluster.clients(System::Prism)?.run(|| {
            let mut stream = client::connect(self.service, trust)?.stream;
            let mut took_us = Vec::with_capacity(count);
            for get in self.gets.iter().cycle().take(count) {
                let start = Instant::now();
                stream.write_all(&get.head)?;
                let answer = http::answer(&mut *stream)?;
                took_us.push(start.elapsed().as_secs_f64() * 1e6);
                ensure!(
                    answer.body == get.object.body,
                    "the answer is not the object"
                );
            }
            Ok(took_us)
        })?
    }
}
