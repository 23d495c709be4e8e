//! `prism-lab bench report`: all results as one page, each with its plots and tables, how
//! it was measured, and what the papers say of it.

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

use input::Input;

/// Draw all results into one HTML file, beside the figures of the papers.
///
/// Reads any number of files: rows, as `--rows` of other commands keeps them, and
/// what they print with `--json`. The page needs neither a network nor scripts. A result of
/// which there is nothing is named as missing, with the command that makes it. Of turns that
/// several files have, those of the first count.
///
///   prism-lab bench flows --rows rows.jsonl
///   prism-lab bench handoff --json > handoff.json
///   prism-lab bench report rows.jsonl handoff.json --output report.html
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Rows, or what a command printed with `--json`.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the page is written to; what is there is replaced.
    #[arg(long, short, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
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
