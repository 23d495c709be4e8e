//! Findings from packet captures alone.
//!
//! One capture runs at the client, and one at each port of the switch with a server. A port's
//! capture holds the server's packets before the switch rewrites them. The switch changes
//! addresses but no sequence number. Each byte that the client received can therefore be traced
//! to the port where it first came in. Over HTTPS only curl sees where an answer ends, but the
//! captures show when curl asks for the next.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prism_lab::{Capture, CaptureOptions, Lab};

use super::client::DemoAnswer;
use super::packets::{Segment, parse};
use super::{AccessWay, Scheme};

/// Kernel buffer of each capture, KiB: 60,000 headers.
const BUFFER_KIB: u32 = 8 << 10;
/// Largest capture that is read.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The most bytes of the frontend's session tickets, which may follow the first request.
const MAX_TICKETS_BYTES: u64 = 4_096;

/// Running captures.
pub(super) struct Recording {
    running: Vec<(String, PathBuf, Capture)>,
}

/// The segments seen at each place.
pub(super) struct Seen {
    places: Vec<(String, Vec<Segment>)>,
}

impl Recording {
    pub(super) fn start(lab: &Lab, directory: &Path) -> Result<Self> {
        let mut running = Vec::new();
        for host in lab.hosts().filter(|host| *host != "switch") {
            let (at, interface) = match host {
                "client" => ("client", "eth0"),
                // A port of the switch has the name of its host.
                server => ("switch", server),
            };
            let options = CaptureOptions {
                interface: Some(interface.into()),
                buffer_kib: BUFFER_KIB,
                ..CaptureOptions::default()
            };
            let file = directory.join(format!("{host}.pcap"));
            let capture = lab.capture_with(at, &file, "tcp", &options)?;
            running.push((host.to_owned(), file, capture));
        }
        Ok(Self { running })
    }

    pub(super) fn stop(self) -> Result<Seen> {
        let mut places = Vec::new();
        for (host, file, capture) in self.running {
            let stats = capture.stop()?;
            if stats.dropped > 0 {
                bail!("the capture at {host} lacks {} packets", stats.dropped);
            }
            if file.metadata()?.len() > MAX_FILE_BYTES {
                bail!("the capture at {host} is too large");
            }
            let segments = parse(&std::fs::read(&file)?)
                .with_context(|| format!("the capture at {host} cannot be read"))?;
            places.push((host, segments));
        }
        Ok(Seen { places })
    }
}

impl Seen {
    /// Resets that the client sent or received.
    pub(super) fn resets(&self) -> usize {
        let at_client = self.at("client").iter();
        at_client.filter(|segment| segment.is_reset).count()
    }

    /// Addresses other than its own and `service` in the client's packets.
    pub(super) fn strangers(&self, lab: &Lab, service: IpAddr) -> BTreeSet<IpAddr> {
        let known = [address_like(lab, "client", service), Some(service)];
        self.at("client")
            .iter()
            .flat_map(|segment| [segment.source.ip(), segment.target.ip()])
            .filter(|address| !known.contains(&Some(*address)))
            .collect()
    }

    /// The servers of each answer, by the switch's ports at which its bytes came in, and the
    /// number of bytes.
    pub(super) fn answered_by(
        &self,
        answers: &[DemoAnswer],
        way: AccessWay,
        lab: &Lab,
        service: IpAddr,
    ) -> Result<Vec<Vec<(String, u64)>>> {
        let port = answers.first().context("no answers")?.local_port;
        let client = address_like(lab, "client", service).context("no client")?;
        let client = SocketAddr::new(client, port);
        let first = self.first_byte(client).context("no handshake seen")?;
        let mut pieces = Vec::new();
        for (host, segments) in &self.places {
            let address = match host.as_str() {
                "client" => continue,
                "fe0" => Some(service),
                backend => address_like(lab, backend, service),
            };
            let sent = segments
                .iter()
                .filter(|segment| segment.target == client && Some(segment.source.ip()) == address);
            pieces.extend(sent.filter(|segment| segment.bytes > 0).map(|segment| {
                // The client fetches less than 4 GiB, so positions do not wrap.
                let start = u64::from(segment.sequence.wrapping_sub(first));
                (start, start + u64::from(segment.bytes), host.as_str())
            }));
        }
        if way.scheme == Scheme::Http {
            let lengths = answers.iter().map(|answer| answer.wire_bytes);
            return Ok(attribute(pieces, lengths));
        }
        let lengths = self.lengths_between_requests(client, first, answers.len());
        let lengths = lengths.context("requests are missing in the capture")?;
        let mut sources = attribute(pieces, lengths.into_iter());
        // The handshake is not an answer.
        sources.remove(0);
        if let Some(first) = sources.first_mut() {
            drop_tickets(first);
        }
        Ok(sources)
    }

    /// The bytes that the client had received when it sent each of its last `requests` requests
    /// and its goodbye: those before the first of them, then those of each answer.
    fn lengths_between_requests(
        &self,
        client: SocketAddr,
        first: u32,
        requests: usize,
    ) -> Option<Vec<u64>> {
        let mut received = 0;
        let mut sent = 0;
        let mut marks = Vec::new();
        let start = self
            .at("client")
            .iter()
            .find(|s| s.is_syn && s.source == client)?;
        for segment in self.at("client").iter().filter(|s| s.bytes > 0) {
            let end = |from: u32| {
                u64::from(segment.sequence.wrapping_sub(from)) + u64::from(segment.bytes)
            };
            if segment.target == client {
                received = received.max(end(first));
            } else if segment.source == client && end(start.sequence) > sent {
                sent = end(start.sequence);
                marks.push(received);
            }
        }
        let marks = marks.get(marks.len().checked_sub(requests + 1)?..)?;
        let before = std::iter::once(&0).chain(marks);
        Some(before.zip(marks).map(|(start, end)| end - start).collect())
    }

    fn at(&self, place: &str) -> &[Segment] {
        let found = self.places.iter().find(|(host, _)| host == place);
        found.map_or(&[], |(_, segments)| segments)
    }

    /// Sequence number of the first byte that the service sends to `client`.
    fn first_byte(&self, client: SocketAddr) -> Option<u32> {
        let mut sent = self.at("client").iter();
        let answer = sent.find(|segment| segment.is_syn && segment.target == client)?;
        Some(answer.sequence.wrapping_add(1))
    }
}

/// The address of `host` of the family of `service`.
fn address_like(lab: &Lab, host: &str, service: IpAddr) -> Option<IpAddr> {
    lab.addresses(host)?.of(service)
}

/// Removes the frontend's bytes before the first answer.
fn drop_tickets(sources: &mut Vec<(String, u64)>) {
    let is_ticket = |(host, bytes): &(String, u64)| host == "fe0" && *bytes < MAX_TICKETS_BYTES;
    if sources.len() > 1 && sources.first().is_some_and(is_ticket) {
        sources.remove(0);
    }
}

/// Splits the stream of `pieces` (start, end, origin) into answers of the given lengths. A byte
/// sent twice belongs to the piece that starts first.
fn attribute(
    mut pieces: Vec<(u64, u64, &str)>,
    lengths: impl Iterator<Item = u64>,
) -> Vec<Vec<(String, u64)>> {
    pieces.sort_by_key(|(start, _, _)| *start);
    let mut known_to = 0;
    for piece in &mut pieces {
        piece.0 = piece.0.max(known_to);
        known_to = known_to.max(piece.1);
    }
    let mut pieces = pieces
        .into_iter()
        .filter(|piece| piece.0 < piece.1)
        .peekable();
    let mut answer_start = 0;
    lengths
        .map(|length| {
            let answer_end = answer_start + length;
            let mut sources: Vec<(String, u64)> = Vec::new();
            while let Some(&(start, end, host)) = pieces.peek() {
                if start >= answer_end {
                    break;
                }
                let bytes = end.min(answer_end) - start.max(answer_start);
                match sources.iter_mut().find(|(known, _)| known == host) {
                    Some((_, sum)) => *sum += bytes,
                    None => sources.push((host.to_owned(), bytes)),
                }
                if end > answer_end {
                    break;
                }
                pieces.next();
            }
            answer_start = answer_end;
            sources
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use super::*;

    #[test]
    fn each_answer_is_traced_to_the_port_where_it_came_in() {
        let pieces = vec![
            (150, 300, "be1"),
            (0, 100, "be0"),
            (100, 150, "be0"),
            // The next owner sends it again; the first place counts.
            (120, 150, "be1"),
            (310, 330, "be2"),
        ];
        let answers = attribute(pieces, [150, 140, 40, 10].into_iter());
        let of = |host: &str, bytes| (host.to_owned(), bytes);
        assert_eq!(answers[0], [of("be0", 150)]);
        assert_eq!(answers[1], [of("be1", 140)]);
        // The captures lack ten bytes of it.
        assert_eq!(answers[2], [of("be1", 10), of("be2", 20)]);
        assert!(answers[3].is_empty());
    }

    #[test]
    fn over_tls_an_answer_ends_where_the_next_request_begins() {
        let client: SocketAddr = "10.0.0.2:9".parse().unwrap();
        let service: SocketAddr = "10.0.0.1:443".parse().unwrap();
        let segment = |source, target, sequence, bytes| Segment {
            source,
            target,
            sequence,
            bytes,
            is_syn: bytes == 0,
            is_reset: false,
        };
        let up = |sequence, bytes| segment(client, service, sequence, bytes);
        let down = |sequence, bytes| segment(service, client, sequence, bytes);
        // Sequence numbers pass zero. A hello each way, two requests of which
        // one is sent twice, their answers, a goodbye.
        let first = u32::MAX - 10;
        let segments = vec![
            up(70, 0),
            up(71, 200),
            down(first, 1_000),
            up(271, 50),
            down(first.wrapping_add(1_000), 300),
            up(271, 50),
            up(321, 50),
            down(first.wrapping_add(1_300), 400),
            up(371, 24),
        ];
        let seen = Seen {
            places: vec![("client".into(), segments)],
        };
        let lengths = |count| seen.lengths_between_requests(client, first, count);
        assert_eq!(lengths(2), Some(vec![1_000, 300, 400]));
        assert_eq!(lengths(4), None);
        let mut sources = vec![("fe0".to_owned(), 500), ("be1".to_owned(), 900)];
        drop_tickets(&mut sources);
        assert_eq!(sources, [("be1".to_owned(), 900)]);
        drop_tickets(&mut sources);
        assert_eq!(sources.len(), 1);
        let mut relayed = vec![("fe0".to_owned(), 500)];
        drop_tickets(&mut relayed);
        assert_eq!(relayed.len(), 1, "an answer of the frontend stays seen");
    }
}
