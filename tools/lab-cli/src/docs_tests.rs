//! Every command of `prism-lab` in the documents is one that the program takes.

#![allow(clippy::unwrap_used, reason = "test code")]

use clap::CommandFactory;

use crate::Cli;

#[test]
fn every_command_in_the_documents_exists() {
    let count = prism_lab::testing::check_documents(&Cli::command()).unwrap();
    assert!(count > 20, "{count} commands were found");
}
