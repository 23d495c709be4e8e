//! `prism-lab bench report`: all results as one page, with plots, tables, conditions and the
//! papers' values.

mod chart;
mod headlines;
mod human;
mod input;
mod page;
mod papers;
mod sections;
mod views;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::summary::Summary;

use input::Input;

/// Draw all results into one HTML file, beside the figures of the papers.
///
/// Reads any number of files: rows of `--rows`, and the output of `--json`. The page needs
/// neither a network nor scripts. It names missing results and the commands that measure
/// them. If several files have the same turn, the first counts.
///
///   prism-lab bench flows --rows rows.jsonl
///   prism-lab bench handoff --json > handoff.json
///   prism-lab bench report rows.jsonl handoff.json --output report.html
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Rows, or the output of a command with `--json`.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page; an existing file is replaced.
    #[arg(long, short, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
}

/// Prints a document of a command that has no rows of its own: as it is, or as a table.
///
/// # Errors
/// When the document is none of those that the report knows.
pub(crate) fn tell(summary: &Summary, document: &impl Serialize, as_json: bool) -> Result<()> {
    match as_json {
        true => println!("{}", serde_json::to_string_pretty(document)?),
        false => {
            let document = serde_json::to_value(document)?;
            for (name, value) in input::conditions(&document) {
                println!("{name}: {value}");
            }
            summary.tell(&input::of_document(&document)?, false)?;
        }
    }
    Ok(())
}

/// Writes the page.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut input = Input::default();
    for file in &args.files {
        let left_out = input.read(file)?;
        eprintln!("{} read", file.display());
        if left_out > 0 {
            eprintln!("  {left_out} rows left out: earlier files have the same turns");
        }
    }
    let page = page::page(&input);
    let output = &args.output;
    std::fs::write(output, &page).with_context(|| format!("writing {}", output.display()))?;
    let results = input.origins.len();
    eprintln!(
        "{}: {} rows of {results} results",
        output.display(),
        input.rows.len()
    );
    Ok(())
}
