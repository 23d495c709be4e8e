//! `prism ctl credentials`: the users of a cluster whose state is in etcd. Every node
//! learns of a change at once.

use std::io::{BufRead, Write};

use anyhow::{Context, bail};
use clap::Subcommand;
use prism_config::Credential;
use prism_etcd::{Change, Condition};
use prism_membership::etcd::Key;

use super::reach::ConfigFile;
use crate::random;

/// Random bytes in an access key and in a secret key.
const ACCESS_KEY_BYTES: usize = 10;
const SECRET_KEY_BYTES: usize = 30;

/// List, add and remove the users of a cluster whose state is in etcd.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct CredentialsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// List the access keys.
    List(ConfigFile),
    /// Add a user. Prints both keys.
    Add {
        /// The access key. Default: a new one is made.
        access_key: Option<String>,
        /// Read the secret key from the first line of standard input. Default: a
        /// new one is made.
        #[arg(long)]
        secret_stdin: bool,
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Remove a user.
    Remove {
        /// The access key.
        access_key: String,
        #[command(flatten)]
        config: ConfigFile,
    },
}

pub(super) fn run(args: &CredentialsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::List(config) => list(config, out),
        Command::Add {
            access_key,
            secret_stdin,
            config,
        } => add(config, access_key.clone(), *secret_stdin, out),
        Command::Remove { access_key, config } => remove(config, access_key),
    }
}

fn list(config: &ConfigFile, out: &mut impl Write) -> anyhow::Result<()> {
    config.in_etcd(async |etcd| {
        let found = etcd.client.read(&etcd.keys.path(&Key::User(""))).await?;
        for entry in &found.entries {
            if let Some(Key::User(name)) = etcd.keys.parse(&entry.key) {
                writeln!(out, "{name}")?;
            }
        }
        Ok(())
    })
}

fn add(
    config: &ConfigFile,
    access_key: Option<String>,
    secret_stdin: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let made = || random::hex(ACCESS_KEY_BYTES).map(|hex| format!("PRISM{}", hex.to_uppercase()));
    let user = Credential {
        access_key: access_key.map_or_else(made, Ok)?,
        secret_key: match secret_stdin {
            true => first_line()?,
            false => random::hex(SECRET_KEY_BYTES)?,
        },
    };
    if !user.is_usable() {
        bail!("a key has to be 1 to 128 printable ASCII characters without spaces");
    }
    config.in_etcd(async |etcd| {
        let is_new = Condition::Absent(etcd.keys.path(&Key::User(&user.access_key)));
        let put = etcd.keys.put_user(&user)?;
        let (action, key) = ("credentials add", &user.access_key);
        let added = etcd.change(action, key, &[is_new], &[put]).await?;
        if !added {
            bail!(
                "the user {0} exists, and its secret key was not changed; to change it, run \
                 `prism ctl credentials remove {0}` and add the user again",
                user.access_key
            );
        }
        Ok(())
    })?;
    writeln!(out, "access key  {}", user.access_key)?;
    if !secret_stdin {
        writeln!(out, "secret key  {}", user.secret_key)?;
    }
    Ok(())
}

fn remove(config: &ConfigFile, access_key: &str) -> anyhow::Result<()> {
    config.in_etcd(async |etcd| {
        let path = etcd.keys.path(&Key::User(access_key));
        let found = etcd.client.read(&path).await?;
        let entry = found.entries.iter().find(|entry| entry.key == path);
        let entry = entry.with_context(|| format!("there is no user {access_key}"))?;
        let unchanged = Condition::At(path.clone(), entry.mod_revision);
        let delete = Change::Delete(path);
        let action = "credentials remove";
        let removed = etcd
            .change(action, access_key, &[unchanged], &[delete])
            .await?;
        match removed {
            true => Ok(()),
            false => bail!("another command has just changed {access_key}; try again"),
        }
    })
}

fn first_line() -> anyhow::Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
