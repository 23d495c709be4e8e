//! Reads XML of clients, strictly: UTF-8, one root, known references only, bounded depth, and no
//! document types, so that nothing expands. The reader of the connection limits the length.

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

use crate::{Code, S3Error};

/// Greatest nesting of elements, with some reserve above S3's documents.
const MAX_DEPTH: usize = 8;

/// Calls `ended` at the end of each element below the root. It gets the names from below the root
/// to the element, and the text directly inside it with its white space. Another root is an error.
pub(crate) fn elements(
    body: &[u8],
    root: &str,
    mut ended: impl FnMut(&[&str], String) -> Result<(), S3Error>,
) -> Result<(), S3Error> {
    let body = std::str::from_utf8(body).map_err(|_| malformed())?;
    let mut reader = Reader::from_str(body);
    // The open elements from the root on: names, and texts so far.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut is_over = false;
    loop {
        match reader.read_event().map_err(|_| malformed())? {
            Event::Start(start) => {
                begin(&mut open, start.local_name().as_ref(), root, is_over)?;
            }
            Event::Empty(empty) => {
                begin(&mut open, empty.local_name().as_ref(), root, is_over)?;
                is_over = end(&mut open, &mut ended)?;
            }
            Event::End(_) => is_over = end(&mut open, &mut ended)?,
            Event::Text(text) => {
                append(&mut open, &text.decode().map_err(|_| malformed())?)?;
            }
            Event::CData(text) => {
                append(&mut open, &text.decode().map_err(|_| malformed())?)?;
            }
            Event::GeneralRef(reference) => {
                let c = reference.resolve_char_ref().map_err(|_| malformed())?;
                let name = reference.decode().map_err(|_| malformed())?;
                match (c, resolve_predefined_entity(&name)) {
                    (Some(c), _) => append(&mut open, c.encode_utf8(&mut [0; 4]))?,
                    (None, Some(text)) => append(&mut open, text)?,
                    (None, None) => return Err(malformed()),
                }
            }
            Event::DocType(_) => return Err(malformed()),
            Event::Eof if is_over => return Ok(()),
            Event::Eof => return Err(malformed()),
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
        }
    }
}

fn begin(
    open: &mut Vec<(String, String)>,
    name: &[u8],
    root: &str,
    is_over: bool,
) -> Result<(), S3Error> {
    let name = std::str::from_utf8(name).map_err(|_| malformed())?;
    if is_over || open.len() >= MAX_DEPTH || (open.is_empty() && name != root) {
        return Err(malformed());
    }
    open.push((name.to_owned(), String::new()));
    Ok(())
}

/// Ends an element. Returns whether it was the root.
fn end(
    open: &mut Vec<(String, String)>,
    ended: &mut impl FnMut(&[&str], String) -> Result<(), S3Error>,
) -> Result<bool, S3Error> {
    let names: Vec<String> = open.iter().skip(1).map(|(name, _)| name.clone()).collect();
    let (_, text) = open.pop().ok_or_else(malformed)?;
    if open.is_empty() {
        return Ok(true);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    ended(&names, text)?;
    Ok(false)
}

/// Appends text to the innermost element. Text outside of the root may be white space only.
fn append(open: &mut [(String, String)], text: &str) -> Result<(), S3Error> {
    match open.last_mut() {
        Some((_, inside)) => inside.push_str(text),
        None if text.trim().is_empty() => {}
        None => return Err(malformed()),
    }
    Ok(())
}

pub(crate) fn malformed() -> S3Error {
    Code::MalformedXML.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(body: &str) -> Result<Vec<String>, S3Error> {
        let mut seen = Vec::new();
        elements(body.as_bytes(), "R", |path, text| {
            seen.push(format!("{}={text}", path.join("/")));
            Ok(())
        })?;
        Ok(seen)
    }

    #[test]
    fn elements_come_with_their_text_and_references_resolved() {
        let body = "<?xml version=\"1.0\"?>\n<x:R xmlns:x=\"n\" a=\"b\"><A><B> 1&amp;&#x32;&quot;</B>\
                    <!-- c --><C/></A><D><![CDATA[<&>]]></D></x:R>\n";
        let seen = read(body).unwrap();
        assert_eq!(seen, ["A/B= 1&2\"", "A/C=", "A=", "D=<&>"]);
        assert!(read("<R/>").unwrap().is_empty());
    }

    #[test]
    fn what_could_be_taken_in_two_ways_is_refused() {
        let deep = format!("<R>{}</R>", "<a>".repeat(20));
        for bad in [
            "",
            "R",
            "<S></S>",
            "<R>",
            "<R></S>",
            "<R></R><R></R>",
            "<R/>x",
            "x<R/>",
            "<R>&unknown;</R>",
            "<R>&#xd800;</R>",
            "<!DOCTYPE R [<!ENTITY a \"b\">]><R>&a;</R>",
            deep.as_str(),
        ] {
            assert_eq!(
                read(bad).map_err(|e| e.code()),
                Err(Code::MalformedXML),
                "{bad}"
            );
        }
        assert!(elements(b"<R>\xff</R>", "R", |_, _| Ok(())).is_err());
    }
}
