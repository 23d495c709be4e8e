//! The page: one file of HTML that needs nothing else, neither scripts nor a network.
//!
//! All text of rows and files is escaped.

use std::fmt::Write as _;

use crate::rows::Row;
use crate::stats::ascending;
use crate::summary::Table;

use super::chart;
use super::headlines::{HEADLINES, Headline};
use super::human;
use super::input::{Input, Origin};
use super::papers;
use super::sections::{SECTIONS, Section};
use super::views::{self, Figure};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(input: &Input) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Prism: measurements</title><style>{STYLE}</style></head><body>\n\
         <h1>Prism: measurements</h1>\n\
         <p>Prism hands live connections to the backend that has the object. The cards show \
         eight ratios beside those of the papers. Only ratios compare: the papers had six logical \
         servers and links of 10 Gbit/s.</p>\n"
    );
    add_headlines(&mut html, input);
    html.push_str(
        "<p>Every figure is a median over rounds, in which all systems alternate. A ratio divides \
         two turns of one round. A thin vertical line in a plot goes from the least to the greatest \
         round. All panels of a figure have the same axes. The papers' values are from their text \
         and tables; none is read off a plot.</p>\n<ul class=\"contents\">\n",
    );
    let sections = SECTIONS.iter();
    let sections = sections.map(|section| (section, input.of(section.summary.result)));
    let sections: Vec<(&Section, Vec<Row>)> = sections.collect();
    for (section, rows) in &sections {
        let state = match rows.len() {
            0 => "<span class=\"missing\">missing</span>".to_owned(),
            rows => format!("{rows} rows"),
        };
        let (id, heading) = (section.summary.result, escape(section.heading));
        let _ = writeln!(html, "<li><a href=\"#{id}\">{heading}</a>: {state}</li>");
    }
    html.push_str("</ul>\n");
    for (section, rows) in &sections {
        add_section(&mut html, section, rows, input);
    }
    let is_known = |result: &str| {
        let mut sections = SECTIONS.iter();
        sections.any(|section| section.summary.result == result)
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

fn add_headlines(html: &mut String, input: &Input) {
    html.push_str("<div class=\"cards\">\n");
    for headline in &HEADLINES {
        let title = escape(headline.title);
        let _ = writeln!(html, "<div class=\"card\"><h3>{title}</h3>");
        add_pair(html, headline, input);
        html.push_str("</div>\n");
    }
    html.push_str("</div>\n");
}

/// Two bars, ours and the paper's, and where both come from.
fn add_pair(html: &mut String, headline: &Headline, input: &Input) {
    let measured = headline.measured(input);
    let ours = measured.as_ref().map(|measured| measured.value);
    let longest = ours.unwrap_or(0.0).max(headline.paper.unwrap_or(0.0));
    html.push_str("<div class=\"pair\">");
    let both = [("Prism", ours, "ours"), ("paper", headline.paper, "theirs")];
    for (name, value, class) in both {
        let width = value.map_or(0.0, |value| value / longest * 100.0);
        let told = value.map_or("–".to_owned(), |value| headline.text(value));
        let tag = if class == "ours" { "b" } else { "span" };
        let _ = write!(
            html,
            "<span>{name}</span><div class=\"bar {class}\" style=\"width:{width:.0}%\"></div>\
             <{tag}>{told}</{tag}>"
        );
    }
    let case = match measured {
        Some(measured) => escape(&measured.case),
        None => "<span class=\"missing\">missing</span>".to_owned(),
    };
    let paper = escape(headline.paper_text);
    let _ = writeln!(html, "</div><p>Prism: {case}</p><p>Paper: {paper}</p>");
}

fn add_section(html: &mut String, section: &Section, rows: &[Row], input: &Input) {
    let result = section.summary.result;
    let (heading, text) = (escape(section.heading), escape(section.text));
    let _ = writeln!(html, "<h2 id=\"{result}\">{heading}</h2>");
    if rows.is_empty() {
        let command = escape(section.command);
        let _ = writeln!(
            html,
            "<p class=\"missing\">This result is missing. It is made by <code>{command}</code></p>"
        );
        add_papers(html, result);
        return;
    }
    let _ = writeln!(html, "<div class=\"two\"><div><p>{text}</p>");
    let figures: Vec<Figure> = section
        .views
        .iter()
        .filter_map(|view| views::figure(view, rows))
        .collect();
    if let Some(digest) = digest(section, rows) {
        let _ = writeln!(html, "<p>{}</p>", escape(&digest));
    }
    html.push_str("</div><div>");
    add_papers(html, result);
    html.push_str("</div>\n");
    let class = if figures.len() == 1 { "alone" } else { "" };
    for figure in &figures {
        add_figure(html, figure, class);
    }
    html.push_str("</div>\n");
    let points = figures.into_iter().filter_map(|figure| figure.points);
    let points = points.reduce(|mut all, next| {
        all.cells.extend(next.cells.into_iter().skip(1));
        all
    });
    if let Some(points) = points {
        add_table(html, &points, "");
    }
    html.push_str("<details><summary>All medians and ratios</summary>\n");
    for table in section.summary.tables(rows) {
        add_table(html, &human::words(table), "");
    }
    html.push_str("</details>\n");
    let origins = input.origins.get(result);
    add_origins(html, section.command, origins.map_or(&[], Vec::as_slice));
}

/// The range of a section's first ratio for each system, as in *Prism's over theirs,
/// throughput: nginx 0.96 to 5.76*.
fn digest(section: &Section, rows: &[Row]) -> Option<String> {
    let comparison = section.summary.comparisons.first()?;
    let (heading, _) = comparison.values.first()?;
    let mut ranges: Vec<(String, Vec<f64>)> = Vec::new();
    for (row, ratios) in comparison.medians(rows) {
        let ratio = *ratios.first()?;
        let side = human::value(comparison.dimension, &comparison.side(row));
        match ranges.iter_mut().find(|(known, _)| *known == side) {
            Some((_, ratios)) => ratios.push(ratio),
            None => ranges.push((side, vec![ratio])),
        }
    }
    let ranges = ranges.into_iter().filter_map(|(side, ratios)| {
        let ratios = ascending(ratios.into_iter());
        let (least, most) = (ratios.first()?, ratios.last()?);
        Some(format!("{side} {least:.2} to {most:.2}"))
    });
    let ranges: Vec<String> = ranges.collect();
    let title = comparison.title;
    (!ranges.is_empty()).then(|| format!("{title}, {heading}: {}.", ranges.join("; ")))
}

fn add_figure(html: &mut String, figure: &Figure, class: &str) {
    let Some(axes) = &figure.axes else {
        return;
    };
    let title = escape(figure.title);
    let _ = writeln!(
        html,
        "<figure class=\"{class}\"><figcaption>{title}</figcaption><div class=\"panels\">"
    );
    for panel in &figure.panels {
        let title = escape(&panel.title);
        let svg = match figure.is_bars {
            true => chart::bars(panel, axes),
            false => chart::lines(panel, axes),
        };
        let _ = writeln!(html, "<div><h4>{title}</h4>{svg}</div>");
    }
    html.push_str("</div></figure>\n");
}

fn add_papers(html: &mut String, result: &str) {
    let head = ["In the papers", "value", "place"];
    let rows = [head].into_iter().chain(papers::values(result));
    let cells: Vec<Vec<String>> = rows.map(|row| row.map(str::to_owned).into()).collect();
    if cells.len() == 1 {
        html.push_str("<p>The papers have no such result.</p>\n");
        return;
    }
    let table = Table {
        title: String::new(),
        cells,
        words: 3,
    };
    add_table(html, &table, " class=\"prose\"");
}

fn add_table(html: &mut String, table: &Table, class: &str) {
    let title = escape(&table.title);
    let _ = writeln!(html, "<div class=\"wide\"><table{class}>");
    if !title.is_empty() {
        let _ = writeln!(html, "<caption>{title}</caption>");
    }
    for (n, row) in table.cells.iter().enumerate() {
        let kind = if n == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let words = if column < table.words {
                " class=\"w\""
            } else {
                ""
            };
            let _ = write!(html, "<{kind}{words}>{}</{kind}>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
}

fn add_origins(html: &mut String, command: &str, origins: &[Origin]) {
    let command = escape(command);
    let _ = write!(
        html,
        "<details><summary>Files and conditions</summary><p>Command: <code>{command}</code></p>"
    );
    for origin in origins {
        let conditions = origin.conditions.iter();
        let conditions = conditions
            .map(|(name, value)| format!("{} <code>{}</code>", escape(name), escape(value)));
        let conditions: Vec<String> = conditions.collect();
        let told = match conditions.is_empty() {
            true => "raw rows, which have no conditions".to_owned(),
            false => conditions.join(", "),
        };
        let _ = writeln!(html, "<p><code>{}</code>: {told}</p>", escape(&origin.file));
    }
    html.push_str("</details>\n");
}

/// `text` as part of a page.
pub(super) fn escape(text: &str) -> String {
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
#[path = "page_tests.rs"]
mod tests;
