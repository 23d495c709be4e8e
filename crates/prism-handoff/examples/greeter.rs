//! A service that is not HTTP: the client sends names, one a line, and each is
//! greeted by the node that the name's first letter belongs to.
//!
//! `greeter NODE SERVICE SWITCH KEY_HEX PKI_DIR NODE=IP...` runs one node; those
//! whose names begin with "fe" accept clients.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use prism_handoff::pki::Identity;
use prism_handoff::{
    Connection, Endpoint, EndpointConfig, Exported, Handle, Incoming, Peer, Process, SwitchAddress,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, service, switch, key, pki, nodes @ ..] = args.as_slice() else {
        anyhow::bail!("usage: greeter NODE SERVICE SWITCH KEY_HEX PKI_DIR NODE=IP...");
    };
    let nodes: Result<Vec<Peer>, _> = nodes.iter().map(|n| n.parse()).collect();
    let nodes = nodes.map_err(anyhow::Error::msg)?;
    let identity = Identity::of_node(Path::new(pki), name)?;
    let config = EndpointConfig::new(name, &nodes, service.parse()?, identity);
    let mut config = config.context("NODE is not among the nodes")?;
    config.listen = name.starts_with("fe");
    let key = u128::from_str_radix(key, 16)?.to_be_bytes();
    config.switch = Some(SwitchAddress::new(switch.parse()?, 1, key));
    let greeters = nodes.into_iter().map(|n| n.name);
    let greeters: Vec<String> = greeters.filter(|n| !n.starts_with("fe")).collect();
    let serving = async {
        let mut endpoint = Endpoint::bind(config, Arc::new(Process::default())).await?;
        while let Some(incoming) = endpoint.next().await {
            if let Incoming::Client(client) = incoming {
                let task = greet(client, endpoint.handle(), greeters.clone());
                tokio::task::spawn_local(async move { drop(task.await) });
            }
        }
        Ok(())
    };
    tokio::task::LocalSet::new().run_until(serving).await
}

async fn greet(mut client: Connection, node: Handle, greeters: Vec<String>) -> anyhow::Result<()> {
    loop {
        while !client.buffered().contains(&b'\n') {
            if client.fill().await? == 0 {
                client.close().await;
                return Ok(());
            }
        }
        let lines = String::from_utf8_lossy(client.buffered());
        let line = lines.lines().next().unwrap_or_default().to_owned();
        let first = line.chars().next().map_or(0, |c| c as usize);
        let owner = greeters.get(first % greeters.len().max(1));
        let owner = owner.context("no greeters")?;
        if owner != node.name() {
            match node.export(client, owner, &[]).await {
                Exported::Kept { connection, .. } => client = connection,
                Exported::Moved | Exported::Lost | Exported::Unknown => return Ok(()),
            }
        }
        client.consume(line.len() + 1);
        let greeting = format!("hello {line}, this is {}\n", node.name());
        client.write_all(greeting.as_bytes()).await?;
    }
}
