//! `prism ctl certificate`: the certificates of HTTPS, and the renewal of the one that comes by
//! ACME.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use prism_acme::{OrderFailure, RENEW, SOURCE, due_s, failure, issued, orderer};
use prism_config::{Acme, Config};
use prism_membership::AcmeRecords;
use prism_membership::etcd::Key;
use prism_pki::now_s;
use prism_pki::{Certificate, date};
use serde::Serialize;
use serde_json::json;

use crate::reach::{Common, Etcd, print_json, with_etcd_of};

/// Show the certificates of HTTPS, and renew the one that comes by ACME.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CertificateArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// List the certificates: names, issuer, end, and the file or ACME as source.
    ///
    /// Files are read on this host, which has to be a frontend. The certificate by ACME is read
    /// in etcd.
    List,
    /// Have a frontend order another certificate by ACME now, also after failures.
    ///
    /// The present one stays in use until the authority has issued the other one.
    Renew,
}

/// One certificate, or a source of one that cannot be read.
#[derive(Debug, Default, Serialize)]
struct Listed {
    /// The path of its file, or the name of the section.
    source: PathBuf,
    names: Vec<String>,
    issuer: Option<String>,
    serial: Option<String>,
    begin_s: Option<u64>,
    end_s: Option<u64>,
    /// The reason why it cannot be read.
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acme: Option<Orders>,
}

/// The orders of the certificate by ACME.
#[derive(Debug, Serialize)]
struct Orders {
    /// The URL of the authority's directory.
    directory: String,
    /// When the next order is due, in seconds since 1970; 0 for at once.
    due_s: u64,
    /// The node that orders at this moment.
    ordered_by: Option<String>,
    /// Why the last order has failed.
    failure: Option<OrderFailure>,
}

pub(crate) fn run(
    args: &CertificateArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match &args.command {
        Command::List => list(common, out),
        Command::Renew => renew(common, out),
    }
}

fn list(common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let config = common.load()?;
    let mut all = of_files(&config);
    if let Some(acme) = &config.service.acme {
        let records = with_etcd_of(config.clone(), async |etcd| records(etcd).await)?;
        all.push(by_acme(acme, &records));
    }
    if common.json {
        return print_json(out, &all);
    }
    for listed in &all {
        show(listed, now_s(), out)?;
    }
    Ok(())
}

fn of_files(config: &Config) -> Vec<Listed> {
    let files = config.service.tls.iter().flat_map(|tls| &tls.certificates);
    let listed = files.map(|files| match Certificate::read_all(&files.file) {
        Ok(found) => Listed::of(&files.file, found.into_iter().next()),
        Err(error) => Listed {
            source: files.file.clone(),
            error: Some(error.to_string()),
            ..Listed::default()
        },
    });
    listed.collect()
}

async fn records(etcd: &Etcd) -> anyhow::Result<AcmeRecords> {
    Ok(etcd.known().await?.acme.as_ref().clone())
}

fn by_acme(acme: &Acme, records: &AcmeRecords) -> Listed {
    let read = issued(records)
        .map(|issued| issued.certificate())
        .transpose();
    let source = Path::new(SOURCE);
    let listed = match read {
        Ok(found) => Listed::of(source, found),
        Err(error) => Listed {
            source: source.into(),
            error: Some(format!("{error:#}")),
            ..Listed::default()
        },
    };
    Listed {
        acme: Some(Orders {
            directory: acme.directory.clone(),
            due_s: due_s(records, acme),
            ordered_by: orderer(records),
            failure: failure(records),
        }),
        ..listed
    }
}

impl Listed {
    fn of(source: &Path, certificate: Option<Certificate>) -> Self {
        let listed = certificate.map(|found| Self {
            names: found.names,
            issuer: Some(found.issuer),
            serial: Some(found.serial),
            begin_s: Some(found.begin_s),
            end_s: Some(found.end_s),
            ..Self::default()
        });
        Self {
            source: source.into(),
            ..listed.unwrap_or_default()
        }
    }
}

fn show(listed: &Listed, now_s: u64, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "source  {}", listed.source.display())?;
    if let Some(error) = &listed.error {
        writeln!(out, "error   {error}")?;
    }
    match (&listed.issuer, listed.end_s) {
        (Some(issuer), Some(end_s)) => {
            writeln!(out, "names   {}", listed.names.join(", "))?;
            writeln!(out, "issuer  {issuer}")?;
            let end = date(end_s);
            match end_s.checked_sub(now_s) {
                Some(left_s) => writeln!(out, "end     {end}, in {} days", left_s / 86_400)?,
                None => writeln!(out, "end     {end}, which is over")?,
            }
        }
        _ if listed.error.is_none() => writeln!(out, "names   none yet")?,
        _ => {}
    }
    if let Some(orders) = &listed.acme {
        show_orders(orders, now_s, out)?;
    }
    writeln!(out)?;
    Ok(())
}

fn show_orders(orders: &Orders, now_s: u64, out: &mut impl Write) -> anyhow::Result<()> {
    let next = match (&orders.ordered_by, orders.due_s) {
        (Some(node), _) => format!("{node} orders now"),
        (None, due_s) if due_s <= now_s => "due now".into(),
        (None, due_s) => format!("on {}", date(due_s)),
    };
    writeln!(out, "order   {next}, at {}", orders.directory)?;
    if let Some(failure) = &orders.failure {
        let OrderFailure { count, error, .. } = failure;
        writeln!(
            out,
            "failed  {count} times in a row; the last time: {error}"
        )?;
    }
    Ok(())
}

fn renew(common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    if common.load()?.service.acme.is_none() {
        bail!(
            "no certificate comes by ACME, because the configuration has no [service.acme]; \
             renew the files at their authority"
        );
    }
    with_etcd_of(common.load()?, async |etcd| {
        let put = etcd.ledger.keys.put(&Key::Acme(RENEW), &json!({}))?;
        let asked = etcd.change("certificate renew", SOURCE, &[], &[put]).await;
        asked.context("cannot ask for a renewal")
    })?;
    if common.json {
        return print_json(out, &json!({ "renewal": "asked" }));
    }
    let next = "a frontend orders a certificate now; see `prism ctl certificate list`";
    writeln!(out, "{next}")?;
    Ok(())
}
