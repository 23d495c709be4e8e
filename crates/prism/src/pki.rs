//! `prism pki`: the cluster's private certificate authority.

use std::path::PathBuf;

/// Make the certificates by which nodes recognize each other.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a new authority and a certificate for each node.
    ///
    /// Writes ca.crt and, for each node, NAME.crt and NAME.key. Give each node
    /// ca.crt and its own two files. The authority's key is not stored. To add a
    /// node or to renew (after 825 days), make all files again in another directory.
    Init {
        /// Directory for the files.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Names of the nodes, as in the configuration.
        #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
        nodes: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Init { dir, nodes } => {
            prism_handoff::pki::init(dir, nodes)?;
            println!(
                "{}: ca.crt and the files of {}",
                dir.display(),
                nodes.join(", ")
            );
            Ok(())
        }
    }
}
