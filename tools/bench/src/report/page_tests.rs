#![allow(clippy::unwrap_used)]
use std::path::Path;

use super::*;

fn page_of(text: &str) -> String {
    let mut input = Input::default();
    input.add("<i>file</i>", text).unwrap();
    page(&input)
}

#[test]
fn what_is_there_is_drawn_and_what_is_missing_is_named_with_its_command() {
    let row = |flows: u32| {
        format!(
            r#"{{"result":"flows","case":{{"flows":{flows}}},"system":"switch","round":0,"values":{{"packet_ns":90.5}}}}"#
        )
    };
    let html = page_of(&[row(1), row(1000)].join("\n"));
    assert!(html.contains("<svg"));
    assert!(html.contains("The switch as its table grows</a>: 2 rows"));
    let missing = html.matches("This result is missing").count();
    assert_eq!(missing, SECTIONS.len() - 1);
    for section in SECTIONS {
        assert!(html.contains(&escape(section.heading)));
        let is_named = html.contains(&escape(section.command));
        assert!(is_named, "{}", section.command);
    }
    assert!(
        html.contains("232 µs"),
        "the papers' figures are shown all the same"
    );
    for remote in ["src=", "href=\"http", "url(", "@import", "<script"] {
        assert!(!html.contains(remote), "{remote}");
    }
}

#[test]
fn text_of_rows_and_files_is_escaped_wherever_it_is_shown() {
    let evil = "<script>alert('x')</script>";
    let row = |result: &str, bytes: u32, system: &str, scheme: &str| {
        format!(
            r#"{{"result":"{result}","case":{{"bytes":{bytes},"scheme":"{scheme}"}},"system":"{system}","round":0,"values":{{"mb_s":1.5}}}}"#
        )
    };
    let rows = [
        row("sweep", 64, evil, "http"),
        row("sweep", 65, evil, "http"),
        row("sweep", 64, "prism", evil),
        row(evil, 64, "a", "b"),
    ];
    let html = page_of(&rows.join("\n"));
    assert!(!html.contains("<script"));
    assert!(!html.contains("<i>"));
    assert!(html.matches("&lt;script&gt;").count() >= 3);
    assert!(html.contains("&lt;i&gt;file"));
}

/// Rows of earlier versions are still read and drawn.
#[test]
fn the_results_of_the_repository_fill_every_section_and_headline() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let mut input = Input::default();
    let files = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files {
        input.read(&file).unwrap();
    }
    for headline in &HEADLINES {
        let measured = headline.measured(&input);
        assert!(measured.is_some(), "{}", headline.title);
    }
    let html = page(&input);
    let fault = "missing\">";
    assert!(!html.contains(fault), "a section or a headline is missing");
    assert!(!html.contains("NaN"));
}
