//! A service that is not HTTP: the client sends names, one a line, and each is
//! greeted by the node that the name's first letter belongs to. One connection is
//! served by all nodes in turn.
//!
//! `greeter NODE SERVICE SWITCH KEY_HEX PKI_DIR frontend=IP NODE=IP...`
//! runs one node; the node called `frontend` accepts the clients.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use prism_handoff::pki::Identity;
use prism_handoff::{
    Connection, Endpoint, EndpointConfig, Exported, Handle, Incoming, Peer, Process, SwitchAddress,
};
use prism_proto::control::ControlKey;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, service, switch, key, pki, nodes @ ..] = args.as_slice() else {
        anyhow::bail!("usage: greeter NODE SERVICE SWITCH KEY_HEX PKI_DIR NODE=IP...");
    };
    let nodes: Vec<Peer> = nodes.iter().filter_map(|n| peer(n)).collect();
    let address = nodes
        .iter()
        .find(|n| n.name == *name)
        .context("NODE is not listed")?
        .address;
    let file = |suffix: &str| Path::new(pki).join(format!("{name}.{suffix}"));
    let config = EndpointConfig {
        name: name.clone(),
        address,
        service: service.parse::<SocketAddr>()?,
        listen: name == "frontend",
        peer_port: 7400,
        peers: nodes.iter().filter(|n| n.name != *name).cloned().collect(),
        identity: Identity::load(&Path::new(pki).join("ca.crt"), &file("crt"), &file("key"))?,
        switch: Some(SwitchAddress {
            control: switch.parse()?,
            key_id: 1,
            key: ControlKey::new(u128::from_str_radix(key, 16)?.to_be_bytes()),
        }),
        max_connections: 1000,
        transit: None,
    };
    let greeters: Vec<String> = nodes
        .into_iter()
        .map(|n| n.name)
        .filter(|n| n != "frontend")
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut endpoint = Endpoint::bind(config, Arc::new(Process::default())).await?;
        while let Some(incoming) = endpoint.next().await {
            if let Incoming::Client(client) = incoming {
                let task = greet(client, endpoint.handle(), greeters.clone());
                tokio::task::spawn_local(async move { drop(task.await) });
            }
        }
        Ok(())
    })
}

async fn greet(mut client: Connection, node: Handle, greeters: Vec<String>) -> anyhow::Result<()> {
    loop {
        while !client.buffered().contains(&b'\n') {
            if client.fill().await? == 0 {
                client.close().await;
                return Ok(());
            }
        }
        let line = client
            .buffered()
            .split(|b| *b == b'\n')
            .next()
            .unwrap_or_default()
            .to_vec();
        let first = usize::from(line.first().copied().unwrap_or_default());
        let owner = greeters
            .get(first % greeters.len().max(1))
            .context("no greeters")?;
        if owner != node.name() {
            match node.export(client, owner, &[]).await {
                Exported::Kept { connection, .. } => client = connection,
                Exported::Moved | Exported::Lost => return Ok(()),
            }
        }
        client.consume(line.len() + 1);
        let name = String::from_utf8_lossy(&line);
        client
            .write_all(format!("hello {name}, this is {}\n", node.name()).as_bytes())
            .await?;
    }
}

fn peer(argument: &str) -> Option<Peer> {
    let (name, address) = argument.split_once('=')?;
    Some(Peer {
        name: name.into(),
        address: address.parse::<IpAddr>().ok()?,
    })
}
