//! `prism ctl backup`: the keys of a cluster with their secrets, which only etcd has, as a
//! credentials file.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use prism_config::{Credential, CredentialFile};
use serde_json::json;

use crate::keys::find_all;
use crate::reach::{Common, print_json};

/// Save the keys of the cluster with their secrets, which only etcd has.
///
/// `prism ctl cluster recover --users FILE` takes them back. Prism rebuilds everything else in etcd
/// from the stores. The file has the form of `s3.credentials_file`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// The new file. Only its owner can read it.
    file: PathBuf,
}

pub(crate) fn run(args: &BackupArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let credential: Vec<Credential> = common.in_etcd("KEY", find_all)?;
    let keys = credential.len();
    let text = CredentialFile::text(credential)?;
    let path = args.file.display();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.file);
    let mut file = file.with_context(|| format!("cannot make {path}"))?;
    let written = file.write_all(text.as_bytes());
    let written = written.and_then(|()| file.sync_all());
    written.with_context(|| format!("cannot write {path}"))?;
    if common.json {
        print_json(out, &json!({ "file": args.file, "keys": keys }))
    } else {
        Ok(writeln!(out, "{path} has {keys} keys with their secrets")?)
    }
}
