//! `prism pki`: the cluster's private certificate authorities.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::value_parser;
use prism_pki::{self as pki, Certificate, Founding, Issuing, date};
use serde_json::json;

/// Make, renew and show the certificates by which nodes recognize each other.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make the first authority, and a certificate for each node.
    ///
    /// Writes ca.crt and, for each node, NAME.crt and NAME.key. Give each node
    /// ca.crt and its own two files. Overwrites nothing.
    Init {
        /// Directory for the files.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Names of the nodes, as in the configuration.
        #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
        nodes: Vec<String>,
        /// Keep the authority's key in this new file (mode 600), for `issue`. Keep
        /// the file off the nodes.
        #[arg(long, value_name = "FILE")]
        keep_key: Option<PathBuf>,
        /// Validity of the nodes' certificates, in days.
        #[arg(long, value_name = "DAYS", default_value_t = Founding::default().node_days,
              value_parser = value_parser!(u32).range(1..=7300))]
        days: u32,
        /// Validity of the authority, in days.
        #[arg(long, value_name = "DAYS", default_value_t = Founding::default().authority_days,
              value_parser = value_parser!(u32).range(1..=7300))]
        authority_days: u32,
    },
    /// Make certificates for single nodes: added ones, or ones to renew.
    ///
    /// Writes NAME.crt and NAME.key for each node, signed by an authority in ca.crt.
    /// A node reads the files again while it runs.
    Issue {
        /// Directory with ca.crt, and for the files.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The authority's key.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Validity in days; the authority's end is the latest end.
        #[arg(long, value_name = "DAYS", default_value_t = Founding::default().node_days,
              value_parser = value_parser!(u32).range(1..=7300))]
        days: u32,
        /// Replace certificates and keys that exist.
        #[arg(long)]
        replace: bool,
        /// Names of the nodes, as in the configuration.
        #[arg(value_name = "NAME", required = true)]
        nodes: Vec<String>,
    },
    /// Make another authority, which is valid beside the present ones.
    ///
    /// Adds its certificate to ca.crt. Then give ca.crt to all nodes, renew their
    /// certificates one by one (`issue --replace`), and run `drop-authority` for the
    /// old one.
    NewAuthority {
        /// Directory with ca.crt.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Keep the authority's key in this new file (mode 600), for `issue`.
        #[arg(long, value_name = "FILE")]
        keep_key: PathBuf,
        /// Validity in days.
        #[arg(long, value_name = "DAYS", default_value_t = Founding::default().authority_days,
              value_parser = value_parser!(u32).range(1..=7300))]
        days: u32,
    },
    /// Remove an authority from ca.crt.
    ///
    /// Refuses while a certificate in the directory is signed by it. Then give ca.crt
    /// to all nodes: they refuse new connections of nodes with its certificates.
    DropAuthority {
        /// Directory with ca.crt and the nodes' certificates.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The authority's serial number as `show` prints it, or its first digits.
        serial: String,
    },
    /// Show the subject, issuer, serial number and dates of certificates.
    Show {
        /// Files, or directories: all of their files NAME.crt.
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the subcommand, and prints its result.
///
/// # Errors
/// A file cannot be used or made.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Init {
            dir,
            nodes,
            keep_key,
            days,
            authority_days,
        } => {
            let how = Founding {
                key_file: keep_key,
                authority_days,
                node_days: days,
            };
            init(&dir, &nodes, &how)
        }
        Command::Issue {
            dir,
            key: key_file,
            days,
            replace,
            nodes,
        } => {
            let how = Issuing {
                key_file,
                days,
                replace,
            };
            issue(&dir, &nodes, &how)
        }
        Command::NewAuthority {
            dir,
            keep_key,
            days,
        } => {
            let made = pki::new_authority(&dir, &keep_key, days)?;
            let ca = dir.join("ca.crt");
            let key = keep_key.display();
            println!(
                "{}: also {}, until {}; its key is in {key}\n\
                 next: give ca.crt to all nodes, renew their certificates one by one \
                 (`prism pki issue --replace`), then `prism pki drop-authority`",
                ca.display(),
                made.subject,
                date(made.end_s)
            );
            Ok(())
        }
        Command::DropAuthority { dir, serial } => {
            let dropped = pki::drop_authority(&dir, &serial)?;
            println!(
                "{}: without {}; give it to all nodes",
                dir.join("ca.crt").display(),
                dropped.subject
            );
            Ok(())
        }
        Command::Show { paths, json } => show(&paths, json),
    }
}

fn init(dir: &Path, nodes: &[String], how: &Founding) -> anyhow::Result<()> {
    pki::found(dir, nodes, how)?;
    let dir = dir.display();
    let nodes = nodes.join(", ");
    println!("{dir}: ca.crt and the files of {nodes}");
    match &how.key_file {
        Some(key) => println!("the authority's key is in {}", key.display()),
        None => println!(
            "the authority's key was not kept; before you add or renew a node, make another \
             authority with `prism pki new-authority`"
        ),
    }
    Ok(())
}

fn issue(dir: &Path, nodes: &[String], how: &Issuing) -> anyhow::Result<()> {
    let made = pki::issue(dir, nodes, how)?;
    for (node, certificate) in nodes.iter().zip(made) {
        let dir = dir.display();
        let end = date(certificate.end_s);
        println!(
            "{dir}/{node}.crt and {node}.key: signed by {}, until {end}",
            certificate.issuer
        );
    }
    Ok(())
}

fn show(paths: &[PathBuf], as_json: bool) -> anyhow::Result<()> {
    let mut shown = Vec::new();
    for path in files(paths)? {
        for certificate in Certificate::read_all(&path)? {
            shown.push((path.clone(), certificate));
        }
    }
    if as_json {
        let all = shown.iter().map(|(path, found)| as_value(path, found));
        let all: Vec<_> = all.collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    for (path, found) in &shown {
        let kind = if found.is_authority {
            "authority".to_owned()
        } else {
            format!("for {}", found.names.join(", "))
        };
        println!("{}  {} ({kind})", path.display(), found.subject);
        println!("  issuer  {}", found.issuer);
        println!("  serial  {}", found.serial);
        println!("  valid   {} to {}", date(found.begin_s), date(found.end_s));
    }
    Ok(())
}

fn as_value(path: &Path, found: &Certificate) -> serde_json::Value {
    json!({
        "file": path,
        "subject": found.subject,
        "issuer": found.issuer,
        "serial": found.serial,
        "begin_s": found.begin_s,
        "end_s": found.end_s,
        "names": found.names,
        "is_authority": found.is_authority,
    })
}

/// The files that `paths` stand for, those of a directory by their names.
fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let cannot = || format!("cannot read the directory {}", path.display());
        let entries = std::fs::read_dir(path).with_context(cannot)?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut inside: Vec<_> = entries.collect::<Result<_, _>>().with_context(cannot)?;
        inside.retain(|file| file.extension().is_some_and(|found| found == "crt"));
        anyhow::ensure!(
            !inside.is_empty(),
            "{} has no file NAME.crt; name the directory of `prism pki init`",
            path.display()
        );
        inside.sort_unstable();
        files.append(&mut inside);
    }
    Ok(files)
}
