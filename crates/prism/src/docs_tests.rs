//! Every command of `prism` in the documents is one that the program takes.

#![allow(clippy::unwrap_used, reason = "test code")]

use clap::CommandFactory;
use prism_lab::testing::{check_documents, unknown_word};

use crate::Cli;

#[test]
fn every_command_in_the_documents_exists() {
    let count = check_documents(&Cli::command()).unwrap();
    assert!(count > 30, "{count} commands were found");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let unknown = |line| unknown_word(&Cli::command(), line);
    assert_eq!(unknown("prism nodes"), Some("nodes".into()));
    assert_eq!(unknown("prism ctl floes"), Some("floes".into()));
    assert_eq!(
        unknown("prism check FILE --nodes be0"),
        Some("--nodes".into())
    );
    assert_eq!(unknown("prism check FILE --node be0"), None);
}
