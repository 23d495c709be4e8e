//! `prism ctl credentials`: the users of a cluster whose state is in etcd. Every node
//! learns of a change at once.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;
use prism_config::{Config, Credential};
use prism_etcd::{Change, Condition};

use super::run_async;
use prism_membership::etcd::{Key, Keys, client};

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
    List(Common),
    /// Add a user. Prints both keys.
    Add {
        /// The access key. Default: a new one is made.
        access_key: Option<String>,
        /// Read the secret key from the first line of standard input. Default: a
        /// new one is made.
        #[arg(long)]
        secret_stdin: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Remove a user.
    Remove {
        /// The access key.
        access_key: String,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct Common {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/prism/prism.toml")]
    config: PathBuf,
}

pub(super) fn run(args: &CredentialsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::List(common) => list(common, out),
        Command::Add {
            access_key,
            secret_stdin,
            common,
        } => add(common, access_key.clone(), *secret_stdin, out),
        Command::Remove { access_key, common } => remove(common, access_key),
    }
}

fn list(common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let config = Config::load(&common.config)?;
    run_async(async {
        let (client, keys) = (client(&config)?, Keys::of(&config)?);
        let found = client.read(&keys.path(&Key::User(""))).await?;
        for entry in &found.entries {
            if let Some(Key::User(name)) = keys.parse(&entry.key) {
                writeln!(out, "{name}")?;
            }
        }
        Ok(())
    })
}

fn add(
    common: &Common,
    access_key: Option<String>,
    secret_stdin: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let config = Config::load(&common.config)?;
    let user = Credential {
        access_key: match access_key {
            Some(key) => key,
            None => format!(
                "PRISM{}",
                random_hex(ACCESS_KEY_BYTES)?.to_ascii_uppercase()
            ),
        },
        secret_key: match secret_stdin {
            true => first_line()?,
            false => random_hex(SECRET_KEY_BYTES)?,
        },
    };
    if !user.is_usable() {
        bail!("a key has to be 1 to 128 printable ASCII characters without spaces");
    }
    run_async(async {
        let (client, keys) = (client(&config)?, Keys::of(&config)?);
        let is_new = Condition::Absent(keys.path(&Key::User(&user.access_key)));
        let added = client.change(&[is_new], &[keys.put_user(&user)?]).await?;
        if !added.done {
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

fn remove(common: &Common, access_key: &str) -> anyhow::Result<()> {
    let config = Config::load(&common.config)?;
    run_async(async {
        let (client, keys) = (client(&config)?, Keys::of(&config)?);
        let path = keys.path(&Key::User(access_key));
        let found = client.read(&path).await?;
        let entry = found.entries.iter().find(|entry| entry.key == path);
        let entry = entry.with_context(|| format!("there is no user {access_key}"))?;
        let unchanged = Condition::At(path.clone(), entry.mod_revision);
        match client
            .change(&[unchanged], &[Change::Delete(path)])
            .await?
            .done
        {
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

fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut random = vec![0; bytes];
    // getrandom(2) never returns fewer than the bytes asked for, up to 256.
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
