//! The course of one connection of a case, as the lines of a record.

use std::time::Duration;

use super::script::Step;
use super::values::Values;
use super::wire::{End, Message, Wire};

/// A request that asks whether a connection still takes some, without a name in the corpus.
const PROBE: &[u8] = b"GET /corpus-probe HTTP/1.1\r\nHost: h\r\n\r\n";

/// The connection after the last step of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is to take another request.
    Lives,
    /// The other side is to close it.
    Ends,
    /// It is a tunnel, which the client closes.
    Tunnel,
    /// The client has reset it.
    Gone,
}

/// The course of one connection, as the lines of a record.
pub struct Transcript<'v, 'c> {
    pub values: &'v mut Values<'c>,
    pub lines: Vec<String>,
}

impl Transcript<'_, '_> {
    pub fn fact(&mut self, fact: &str) {
        self.lines.push(format!("= {fact}"));
    }

    pub fn bytes(&mut self, sign: &str, bytes: &[u8]) {
        let text = self.values.record(bytes);
        let mut lines = text.split("\r\n").peekable();
        while let Some(line) = lines.next() {
            if lines.peek().is_some() {
                let space = if line.is_empty() { "" } else { " " };
                self.lines.push(format!("{sign}{space}{line}"));
            } else if !line.is_empty() {
                self.lines.push(format!("{sign}. {line}"));
            }
        }
    }

    /// Does the client's steps.
    pub fn steps(&mut self, steps: &[Step], wire: &mut Wire) -> After {
        let mut after = After::Lives;
        for step in steps {
            match step {
                Step::Send(requests) => {
                    let all = requests.iter().map(|lines| self.values.request(lines));
                    let bytes: Vec<u8> = all.collect::<Vec<_>>().concat();
                    wire.send(&bytes);
                }
                Step::Answers(methods) => {
                    for method in methods {
                        if self.answer(method, wire) {
                            return After::Ends;
                        }
                    }
                }
                Step::Interim => {
                    if self.message("GET", wire).is_last {
                        return After::Ends;
                    }
                }
                Step::Quiet => {
                    let bytes = wire.little();
                    self.bytes("<", &bytes);
                    self.fact("it is quiet");
                }
                Step::End => return After::Ends,
                Step::Bytes(len) => {
                    let bytes = wire.bytes(*len);
                    self.bytes("<", &bytes);
                    after = After::Tunnel;
                }
                Step::Shut => {
                    wire.client.half_close();
                    after = After::Ends;
                }
                Step::Reset => return After::Gone,
                Step::Pause(time) => std::thread::sleep(*time),
            }
        }
        after
    }

    fn message(&mut self, method: &str, wire: &mut Wire) -> Message {
        let message = wire.message(method);
        self.bytes("<", &message.bytes);
        message
    }

    /// The final answer, and interim ones before it.
    fn answer(&mut self, method: &str, wire: &mut Wire) -> bool {
        loop {
            let message = self.message(method, wire);
            let is_interim = message.bytes.starts_with(b"HTTP/1.1 1");
            if !is_interim || message.bytes.starts_with(b"HTTP/1.1 101") || message.is_last {
                return message.is_last;
            }
        }
    }

    /// How the connection ends, or that it lives.
    pub fn ending(&mut self, after: After, mut wire: Wire) {
        match after {
            After::Gone => {
                let socket = socket2::SockRef::from(&wire.client.stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
            After::Tunnel => self.fact("it is a tunnel"),
            After::Ends => {
                let (rest, end) = wire.rest();
                self.bytes("<", &rest);
                self.fact(end.fact());
            }
            After::Lives => self.probe(wire),
        }
    }

    fn probe(&mut self, mut wire: Wire) {
        wire.send(PROBE);
        let answer = wire.message("GET");
        match answer.bytes.get(..12) {
            Some(b"HTTP/1.1 204" | b"HTTP/1.1 404" | b"HTTP/1.1 403") => self.fact("lives"),
            _ => {
                self.fact("does not live");
                self.bytes("<", &answer.bytes);
                self.fact(wire.end().map_or("says more", End::fact));
            }
        }
    }
}
