//! The commands that the documents name, for a test that each exists.

use std::path::{Path, PathBuf};

/// Texts that look like a command: the key of the digest in docs/protocol.md.
const NO_COMMANDS: [&str; 1] = ["prism placement1"];

/// Checks the subcommands and flags of every command of `program` in the documents.
/// Returns the number of commands.
///
/// # Errors
/// Names the first word that `program` does not take, or a document that cannot be read.
pub fn check_documents(program: &clap::Command) -> Result<usize, String> {
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        for line in commands(&text, program.get_name()) {
            count += 1;
            if let Some(word) = unknown_word(program, &line) {
                let path = path.display();
                return Err(format!("{path}: `{line}` has the unknown word `{word}`"));
            }
        }
    }
    Ok(count)
}

/// The first word of a command line that `program` does not take.
#[must_use]
pub fn unknown_word(program: &clap::Command, line: &str) -> Option<String> {
    let mut command = program.clone();
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

/// The Markdown files in the root, `docs` and `docs/design`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.clone(), root.join("docs"), root.join("docs/design")];
    let files = folders.iter().filter_map(|folder| folder.read_dir().ok());
    let files = files.flatten().flatten().map(|file| file.path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The commands of a document: code spans, and lines of code blocks, that begin with the
/// program's `name`.
fn commands(text: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for paragraph in text.split("```") {
        if is_code {
            found.extend(paragraph.lines().map(str::to_owned))
        } else {
            let text = paragraph.replace('\n', " ");
            found.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
        }
        is_code = !is_code;
    }
    let plain = |line: &String| {
        let line = line.trim().trim_start_matches("sudo ");
        let line = line.trim_start_matches("target/release/");
        let line = line.split(['#', '|']).next().unwrap_or_default().trim();
        let rest = line.strip_prefix(name)?.strip_prefix(' ')?;
        let is_command = rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
        (is_command && !NO_COMMANDS.contains(&line)).then(|| line.to_owned())
    };
    found.iter().filter_map(plain).collect()
}
