//! The page: one file of HTML that needs nothing else, neither scripts nor a network.
//!
//! All text of rows and files is escaped; plots escape theirs.

use std::fmt::Write as _;

use crate::rows::Row;
use crate::summary::Table;

use super::input::{Input, Origin};
use super::papers::Figure;
use super::sections::{SECTIONS, Section};
use super::views;

const STYLE: &str = "
body{font:15px/1.45 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222}
h2{margin-top:2.2em;border-top:1px solid #ccc;padding-top:.8em}
table{border-collapse:collapse;margin:.6em 0;font-size:13px}
caption{text-align:left;font-weight:600;padding:.3em 0}
th,td{border:1px solid #ddd;padding:.15em .5em;text-align:right}
th.w,td.w{text-align:left} tbody tr:nth-child(even){background:#f7f7f7}
code{background:#f2f2f2;padding:.1em .3em}
.both{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:1.5em;align-items:start}
.plots svg{max-width:100%;height:auto} .wide{overflow-x:auto} .missing{color:#a00}
figure{margin:0 0 1em} figcaption{font-weight:600}
@media(max-width:800px){.both{grid-template-columns:1fr}}";

/// The whole page.
pub(super) fn page(input: &Input) -> String {
    let sections = SECTIONS.iter();
    let sections = sections.map(|section| (section, input.of(section.summary.result)));
    let sections: Vec<(&Section, Vec<Row>)> = sections.collect();
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Prism: what was measured</title><style>{STYLE}</style></head><body>\n\
         <h1>Prism: what was measured</h1>\n\
         <p>Each result with what the papers say of it. Points and figures are medians of \
         rounds, lines up and down go to the least and the greatest. Ratios are of turns of \
         one round. Only ratios can be compared from one machine to another. Of the papers \
         there is what their text and tables say; nothing was read off a plot.</p>\n<ul>\n"
    );
    for (section, rows) in &sections {
        let state = match rows.len() {
            0 => "<span class=\"missing\">missing</span>".to_owned(),
            rows => format!("{rows} rows"),
        };
        let (id, heading) = (escape(section.summary.result), escape(section.heading));
        let _ = writeln!(html, "<li><a href=\"#{id}\">{heading}</a>: {state}</li>");
    }
    html.push_str("</ul>\n");
    for (section, rows) in &sections {
        add_section(&mut html, section, rows, input);
    }
    let is_known = |result: &str| {
        SECTIONS
            .iter()
            .any(|section| section.summary.result == result)
    };
    for result in input.origins.keys().filter(|result| !is_known(result)) {
        let result = escape(result);
        let _ = writeln!(
            html,
            "<p class=\"missing\">This version does not know the result <code>{result}</code>, \
             of which there are rows.</p>"
        );
    }
    html.push_str("</body></html>\n");
    html
}

fn add_section(html: &mut String, section: &Section, rows: &[Row], input: &Input) {
    let result = section.summary.result;
    let (id, heading) = (escape(result), escape(section.heading));
    let _ = writeln!(html, "<h2 id=\"{id}\">{heading}</h2>");
    if rows.is_empty() {
        let command = escape(section.command);
        let _ = writeln!(
            html,
            "<p class=\"missing\">This result is missing. It is made by <code>{command}</code></p>"
        );
        add_papers(html, section.papers);
        return;
    }
    html.push_str("<div class=\"both\"><div class=\"plots\">\n");
    for drawn in section
        .plots
        .iter()
        .flat_map(|view| views::plots(view, rows))
    {
        let title = escape(&drawn.title);
        let _ = writeln!(html, "<figure><figcaption>{title}</figcaption>");
        match drawn.plot.svg() {
            Ok(svg) => html.push_str(&svg),
            Err(error) => {
                let _ = write!(html, "<p>No plot: {}</p>", escape(&error.to_string()));
            }
        }
        html.push_str("</figure>\n");
    }
    html.push_str("</div><div>\n");
    add_papers(html, section.papers);
    html.push_str("</div></div>\n");
    for table in section.summary.tables(rows) {
        add_table(html, &table);
    }
    let origins = input.origins.get(result);
    add_origins(html, section.command, origins.map_or(&[], Vec::as_slice));
}

fn add_papers(html: &mut String, papers: &[Figure]) {
    if papers.is_empty() {
        html.push_str("<p>The papers have no such result.</p>\n");
        return;
    }
    let row = |figure: &Figure| [figure.place, figure.what, figure.value].map(str::to_owned);
    let heading = ["place", "what", "figure"].map(str::to_owned);
    let cells = std::iter::once(heading).chain(papers.iter().map(row));
    add_table(
        html,
        &Table {
            title: "In the papers".to_owned(),
            cells: cells.map(Vec::from).collect(),
            words: 3,
        },
    );
}

fn add_table(html: &mut String, table: &Table) {
    let title = escape(&table.title);
    let _ = writeln!(
        html,
        "<div class=\"wide\"><table><caption>{title}</caption>"
    );
    for (n, row) in table.cells.iter().enumerate() {
        let kind = if n == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = if column < table.words {
                " class=\"w\""
            } else {
                ""
            };
            let _ = write!(html, "<{kind}{class}>{}</{kind}>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
}

fn add_origins(html: &mut String, command: &str, origins: &[Origin]) {
    for origin in origins {
        let _ = write!(html, "<p>From <code>{}</code>: ", escape(&origin.file));
        if origin.conditions.is_empty() {
            let command = escape(command);
            let _ = write!(
                html,
                "raw rows, which do not say where and when they were measured (what the command prints \
                 with <code>--json</code> does). They are made by <code>{command}</code>"
            );
        }
        let conditions = origin.conditions.iter();
        let conditions = conditions
            .map(|(name, value)| format!("{} <code>{}</code>", escape(name), escape(value)));
        html.push_str(&conditions.collect::<Vec<_>>().join(", "));
        html.push_str("</p>\n");
    }
}

/// `text` as part of a page.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn page_of(text: &str) -> String {
        let mut input = Input::default();
        input.add("<i>file</i>", text).unwrap();
        page(&input)
    }

    #[test]
    fn what_is_there_is_drawn_and_what_is_missing_is_named_with_its_command() {
        let row = r#"{"result":"flows","case":{"flows":1000},"system":"switch","round":0,"values":{"packet_ns":90.5}}"#;
        let html = page_of(row);
        assert!(html.contains("<svg"));
        assert!(html.contains("The switch by number of flows</a>: 1 rows"));
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
        let row = |result: &str, system: &str, scheme: &str| {
            format!(
                r#"{{"result":"{result}","case":{{"bytes":64,"scheme":"{scheme}"}},"system":"{system}","round":0,"values":{{"mb_s":1.5}}}}"#
            )
        };
        let rows = [
            row("sweep", evil, "http"),
            row("sweep", "prism", evil),
            row(evil, "a", "b"),
        ];
        let html = page_of(&rows.join("\n"));
        assert!(!html.contains("<script"));
        assert!(!html.contains("<i>"));
        assert!(html.matches("&lt;script&gt;").count() >= 3);
        assert!(html.contains("&lt;i&gt;file"));
    }
}
