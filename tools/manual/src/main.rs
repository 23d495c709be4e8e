//! The program `prism-manual`: writes the man pages of `prism`, one for each command, and its
//! completions for bash, zsh and fish. Packages contain them.
//!
//! It is no command of `prism`, because servers have no use for it.

use std::fs::create_dir_all;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use clap_complete::Shell;

/// Write the man pages and completions of `prism`.
#[derive(Debug, Parser)]
#[command(name = "prism-manual", version)]
struct Args {
    /// Gets the directories `man` and `completions`.
    dir: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let dir = Args::parse().dir;
    let man = dir.join("man");
    let completions = dir.join("completions");
    for dir in [&man, &completions] {
        create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    clap_mangen::generate_to(prism::command(), &man).context("cannot write the man pages")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut prism::command(), "prism", &completions)
            .with_context(|| format!("cannot write the completions for {shell}"))?;
    }
    Ok(())
}
