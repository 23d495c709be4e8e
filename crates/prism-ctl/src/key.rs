//! `prism ctl key`: the keys of a cluster whose state is in etcd. Every node learns of a change
//! at once.

use std::io::{BufRead, Write};

use anyhow::bail;
use clap::{ArgAction, Subcommand};
use prism_common::random;
use prism_config::Credential;
use prism_s3::access::KeyRights;
use serde_json::{Value, json};

use crate::keys::{self, change_key, find, find_all};
use crate::reach::{Common, print_json};
use crate::table::{Paint, table, text};

/// Random bytes in an access key and in a secret key.
const ACCESS_KEY_BYTES: usize = 10;
const SECRET_KEY_BYTES: usize = 30;

/// Make, list, change and delete the keys of a cluster whose state is in etcd.
///
/// A key has no rights at first: `prism ctl bucket allow` gives it rights on a bucket.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Make a key. Prints the access key and, this once, the secret key.
    New {
        /// The access key. Default: a random one.
        access_key: Option<String>,
        /// Read the secret key from the first line of standard input. Default: a
        /// random one.
        #[arg(long)]
        secret_stdin: bool,
        /// Give the key every right on every bucket.
        #[arg(long)]
        admin: bool,
    },
    /// List the keys and the number of buckets on which each has rights.
    List,
    /// Show the rights of a key.
    Info {
        /// The access key.
        access_key: String,
    },
    /// Set whether a key has every right on every bucket.
    Set {
        /// The access key.
        access_key: String,
        /// With `false` the key has the rights that `prism ctl bucket allow` gave it.
        #[arg(long, action = ArgAction::Set, value_name = "BOOL")]
        admin: bool,
    },
    /// Replace the secret key. Prints the new one, this once. The old one is no longer valid.
    Rotate {
        /// The access key.
        access_key: String,
        /// Read the secret key from the first line of standard input. Default: a
        /// random one.
        #[arg(long)]
        secret_stdin: bool,
    },
    /// Delete a key.
    Delete {
        /// The access key.
        access_key: String,
    },
}

pub(crate) fn run(args: &KeyArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::New {
            access_key,
            secret_stdin,
            admin,
        } => {
            let made =
                || random::hex(ACCESS_KEY_BYTES).map(|hex| format!("PRISM{}", hex.to_uppercase()));
            let key = Credential {
                access_key: access_key.clone().map_or_else(made, Ok)?,
                secret_key: new_secret(*secret_stdin)?,
                admin: Some(*admin),
                buckets: None,
            };
            new(common, &key, *secret_stdin, out)
        }
        Command::List => list(common, out),
        Command::Info { access_key } => info(common, access_key, out),
        Command::Set { access_key, admin } => {
            let set = |key: &mut Credential| {
                key.admin = Some(*admin);
                Ok(())
            };
            let key = change_key(common, ("key set", access_key), set)?;
            show(common, &key, out)
        }
        Command::Rotate {
            access_key,
            secret_stdin,
        } => {
            let secret = new_secret(*secret_stdin)?;
            let rotate = |key: &mut Credential| {
                key.secret_key.clone_from(&secret);
                check(key)
            };
            let key = change_key(common, ("key rotate", access_key), rotate)?;
            show_secret(common, &key, *secret_stdin, out)
        }
        Command::Delete { access_key } => delete(common, access_key, out),
    }
}

/// The first line of standard input, or a random secret.
fn new_secret(from_stdin: bool) -> anyhow::Result<String> {
    if !from_stdin {
        return Ok(random::hex(SECRET_KEY_BYTES)?);
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn check(key: &Credential) -> anyhow::Result<()> {
    if key.is_usable() {
        Ok(())
    } else {
        bail!("a key has to be 1 to 128 printable ASCII characters without spaces")
    }
}

fn new(
    common: &Common,
    key: &Credential,
    is_given: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    check(key)?;
    common.in_etcd(&key.access_key, async |etcd| {
        let made = keys::add(etcd, "key new", key).await?;
        if !made {
            bail!(
                "the key {0} exists, and was not changed; to change its secret key, run \
                 `prism ctl key rotate {0}`",
                key.access_key
            );
        }
        Ok(())
    })?;
    show_secret(common, key, is_given, out)
}

fn list(common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let keys = common.in_etcd("KEY", find_all)?;
    if common.json {
        let keys: Vec<_> = keys.iter().map(described).collect();
        return print_json(out, &keys);
    }
    let rows = keys.iter().map(|key| {
        let rights = match key.rights() {
            _ if key.is_unlimited_by_omission() => {
                "every right, because its record says nothing".to_owned()
            }
            KeyRights::Admin => "admin".to_owned(),
            KeyRights::Buckets(buckets) => format!("buckets {}", buckets.len()),
        };
        [text(&key.access_key), text(rights)]
    });
    let rows: Vec<_> = rows.collect();
    write!(
        out,
        "{}",
        table(Paint::of_stdout(), ["ACCESS KEY", "RIGHTS"], &rows)
    )?;
    Ok(())
}

fn info(common: &Common, access_key: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let (key, _) = common.in_etcd(access_key, async |etcd| find(etcd, access_key).await)?;
    show(common, &key, out)
}

fn delete(common: &Common, access_key: &str, out: &mut impl Write) -> anyhow::Result<()> {
    common.in_etcd(access_key, async |etcd| {
        if keys::delete(etcd, "key delete", access_key).await? {
            Ok(())
        } else {
            bail!("another command has just changed {access_key}; try again")
        }
    })?;
    if common.json {
        return print_json(out, &json!({ "deleted": access_key }));
    }
    Ok(())
}

/// The facts of a key without its secret.
fn described(key: &Credential) -> Value {
    json!({
        "access_key": key.access_key,
        "admin": key.admin,
        "buckets": key.buckets.clone().unwrap_or_default(),
    })
}

/// Prints the rights of a key.
pub(crate) fn show(common: &Common, key: &Credential, out: &mut impl Write) -> anyhow::Result<()> {
    if common.json {
        return print_json(out, &described(key));
    }
    writeln!(out, "access key  {}", key.access_key)?;
    match key.admin {
        Some(true) => writeln!(out, "admin       yes: every right on every bucket")?,
        None if key.is_unlimited_by_omission() => writeln!(
            out,
            "admin       not set: every right on every bucket, until `prism ctl key set` says it"
        )?,
        _ => writeln!(out, "admin       no")?,
    }
    for (bucket, rights) in key.buckets.iter().flatten() {
        writeln!(out, "bucket      {bucket}  {rights}")?;
    }
    Ok(())
}

/// Prints a key with its secret, unless the caller has given it.
fn show_secret(
    common: &Common,
    key: &Credential,
    is_given: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if common.json {
        let mut document = described(key);
        if !is_given && let Some(fields) = document.as_object_mut() {
            fields.insert("secret_key".to_owned(), key.secret_key.clone().into());
        }
        return print_json(out, &document);
    }
    writeln!(out, "access key  {}", key.access_key)?;
    if !is_given {
        writeln!(out, "secret key  {}", key.secret_key)?;
    }
    Ok(())
}
