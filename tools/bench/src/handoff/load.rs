//! The client: one connection, and two objects of different backends alternately.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::bed::{Bed, System};
use crate::objects::{Object, Objects};
use crate::{client, http};

/// Requests that are ready to be sent.
pub(super) struct Load<'l> {
    bed: &'l Bed<'l>,
    service: SocketAddr,
    gets: Vec<Get<'l>>,
}

struct Get<'l> {
    head: Vec<u8>,
    object: Object<'l>,
}

impl<'l> Load<'l> {
    /// Stores `objects`, and signs a request for each.
    pub(super) fn prepare(bed: &'l Bed<'l>, objects: &'l Objects) -> Result<Self> {
        bed.store(objects)?;
        let service = bed.address(System::Prism, 0)?;
        let gets = objects.all().map(|object| {
            let target = object.target();
            let head = bed.signed(service, "GET", &target, b"")?;
            Ok(Get { head, object })
        });
        Ok(Self {
            bed,
            service,
            gets: gets.collect::<Result<_>>()?,
        })
    }

    /// Fetches `count` times over one connection, from one backend and the other alternately.
    /// Gives the time of each request, in µs.
    pub(super) fn alternate(&self, count: usize) -> Result<Vec<f64>> {
        let trust = self.bed.trust();
        self.bed.clients(System::Prism)?.run(|| {
            let mut stream = client::connect(self.service, trust)?;
            let mut took_us = Vec::with_capacity(count);
            for get in self.gets.iter().cycle().take(count) {
                let start = Instant::now();
                stream.write_all(&get.head)?;
                let answer = http::answer(&mut *stream)?;
                took_us.push(start.elapsed().as_secs_f64() * 1e6);
                ensure!(answer == get.object.body, "the answer is not the object");
            }
            Ok(took_us)
        })?
    }
}
