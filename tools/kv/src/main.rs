//! A node of the key-value server: `prism-kv CONFIG`. It ends with its standard input.

use std::io::Read;

use anyhow::{Context, Result};
use prism_kv::config::Config;
use tokio::task::LocalSet;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: prism-kv CONFIG")?;
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let config: Config = toml::from_str(&text).context(path)?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, prism_kv::node::serve(config))
}
