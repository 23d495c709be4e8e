//! Every command of `prism` in the documents is one that the program takes.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::Cli;

/// Texts that look like a command: the key of the digest in docs/protocol.md.
const NO_COMMANDS: [&str; 1] = ["prism placement1"];

/// The Markdown files in the root, `docs` and `docs/design`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.clone(), root.join("docs"), root.join("docs/design")];
    let files = folders.iter().flat_map(|folder| folder.read_dir().unwrap());
    let files = files.map(|file| file.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The commands of a document: code spans, and lines of code blocks, that begin with `prism`.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for paragraph in text.split("```") {
        match is_code {
            true => found.extend(paragraph.lines().map(str::to_owned)),
            false => {
                let text = paragraph.replace('\n', " ");
                found.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
            }
        }
        is_code = !is_code;
    }
    let plain = |line: &String| {
        let line = line.trim().trim_start_matches("sudo ");
        let line = line.trim_start_matches("target/release/");
        let line = line.split(['#', '|']).next().unwrap_or_default().trim();
        let rest = line.strip_prefix("prism ")?;
        let is_command = rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
        (is_command && !NO_COMMANDS.contains(&line)).then(|| line.to_owned())
    };
    found.iter().filter_map(plain).collect()
}

/// The first word of a command that the program does not take.
fn unknown(line: &str) -> Option<String> {
    let mut command = Cli::command();
    command.build();
    let mut is_subcommand = true;
    let words = line.split_ascii_whitespace().skip(1);
    let mut words = words.map(|word| word.trim_matches(['[', ']', '.', ',']));
    while let Some(word) = words.next().filter(|word| *word != "--") {
        if let Some(flag) = word.strip_prefix("--") {
            let mut arguments = command.get_arguments();
            let argument = arguments.find(|argument| argument.get_long() == Some(flag));
            let Some(argument) = argument else {
                return Some(word.to_owned());
            };
            if argument.get_action().takes_values() {
                words.next();
            }
            continue;
        }
        let subcommand = command.find_subcommand(word).filter(|_| is_subcommand);
        match subcommand.cloned() {
            Some(found) => command = found,
            None if command.get_positionals().next().is_none() => return Some(word.to_owned()),
            None => is_subcommand = false,
        }
    }
    None
}

#[test]
fn every_command_in_the_documents_exists() {
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in commands(&text) {
            count += 1;
            let unknown = unknown(&line);
            assert_eq!(unknown, None, "in `{line}` of {}", path.display());
        }
    }
    assert!(count > 30, "{count} commands were found");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    assert_eq!(unknown("prism nodes"), Some("nodes".into()));
    assert_eq!(unknown("prism ctl floes"), Some("floes".into()));
    assert_eq!(
        unknown("prism check FILE --nodes be0"),
        Some("--nodes".into())
    );
    assert_eq!(unknown("prism check FILE --node be0"), None);
}
