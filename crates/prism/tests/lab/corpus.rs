//! A recorded corpus of requests and answers: a change of the code between connections and
//! services gives the same bytes as before.
//!
//! The files beside `corpus/script.rs`, which describes their form, have requests that people
//! write, and below each what clients and servers got. A case whose bytes differ fails. With
//! `PRISM_CORPUS=write` the tests rewrite the records instead. `PRISM_CORPUS_CASE` limits them to
//! the cases whose names contain it.

mod bytes;
mod runner;
mod script;
mod server;
mod transcript;
mod values;
mod wire;

use prism_config::{Anonymous, ConfigFile, RelayUpTo};
use prism_lab::{Families, Lab, LabName, LabSpec};
use prism_netns::NetNs;

use crate::support::{Cluster, turn};
use crate::upstreams::behind::configure;
use runner::Runner;
use server::{ADDRESS, Server};

/// A lab in which connections over IPv4 move to backends, and those over IPv6 cannot.
fn up(backends: usize, change: impl FnOnce(&mut ConfigFile) + Send + 'static) -> Lab {
    let name: LabName = format!("c{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    spec.family = Families::Dual;
    spec.tls = true;
    spec.backends = backends;
    // Connections move whatever the length of an answer.
    spec.relay_up_to = RelayUpTo::Bytes(0);
    spec.configure = Some(Box::new(move |config| {
        change(config);
        let backends = config.nodes.iter_mut();
        for node in backends.filter(|node| node.name.starts_with("be")) {
            node.address.v6 = None;
            node.gateway.as_mut().unwrap().v6 = None;
        }
    }));
    Lab::up(spec).unwrap()
}

#[test]
fn the_object_store_answers_as_it_did() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::of(up(2, |config| {
        config.limits.head_timeout_s = 1;
        config.s3.anonymous = Anonymous::Read;
    }));
    let mut runner = Runner::new(&cluster, None);
    runner.check("heads.txt");
    runner.check("objects.txt");
    runner.check("bodies.txt");
    runner.check("buckets.txt");
    runner.finish();
}

#[test]
fn a_service_with_servers_answers_as_it_did() {
    let Some(_turn) = turn() else { return };
    let upstream = format!(
        "[[upstream]]\naddress = \"{ADDRESS}\"\npaths = [\"/rules/\"]\ncookie = \"SRV\"\n\
         max_body_bytes = 1000\nanswer_timeout_s = 1\n\
         request_headers = [\"X-Env: test\", \"X-Real: {{client}}\"]\n\
         answer_headers = [\"X-Answer: of Prism\", \"Server: Prism\"]\n\
         [[upstream]]\naddress = \"{ADDRESS}\"\npaths = [\"/\"]\nhosts = [\"h\", \"h.test\"]\n"
    );
    let lab = up(1, move |config| {
        config.limits.head_timeout_s = 1;
        configure(config, &upstream);
    });
    let netns = NetNs::named(&format!("prism-{}-be0", lab.name())).unwrap();
    let server = Server::start(netns);
    let cluster = Cluster::around(lab);
    cluster.await_servers();
    let mut runner = Runner::new(&cluster, Some(&server));
    runner.warm_up();
    runner.check("upstream.txt");
    runner.check("forwarded.txt");
    runner.check("faults.txt");
    runner.check("manners.txt");
    let redirects = cluster.lab.reload(|config| {
        let tls = config.service.first_mut().tls.as_mut();
        tls.unwrap().redirect_http = true;
    });
    redirects.unwrap();
    runner.check("redirect.txt");
    runner.finish();
}
