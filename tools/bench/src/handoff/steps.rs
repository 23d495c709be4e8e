//! From the nodes' records to steps.

use std::collections::HashMap;

use crate::trace::{NodePart, StepRecord};

/// One hand-off, by the records of all its nodes.
#[derive(Debug)]
pub(super) struct Cycle {
    start_ns: u64,
    end_ns: u64,
    /// Name and duration in µs.
    pub(super) steps: Vec<(String, f64)>,
}

/// Joins the records of each hand-off with a transit, or of each without. The result is in
/// the order of their beginnings.
pub(super) fn cycles(records: Vec<StepRecord>, with_transit: bool) -> Vec<Cycle> {
    let mut by_id: HashMap<u64, HashMap<NodePart, [u64; 7]>> = HashMap::new();
    for record in records {
        by_id
            .entry(record.id)
            .or_default()
            .insert(record.part, record.at_ns);
    }
    let mut cycles: Vec<Cycle> = by_id
        .values()
        .filter_map(|parts| {
            let transit = parts.get(&NodePart::Transit);
            if transit.is_some() != with_transit {
                return None;
            }
            Cycle::of(
                parts.get(&NodePart::Source)?,
                transit,
                parts.get(&NodePart::Target)?,
            )
        })
        .collect();
    cycles.sort_by_key(|cycle| cycle.start_ns);
    cycles
}

impl Cycle {
    fn of(source: &[u64; 7], transit: Option<&[u64; 7]>, target: &[u64; 7]) -> Option<Self> {
        let [start, blocked, saved, encoded, sent, closed, _verdict] = *source;
        let [received, restored, owned, live, ..] = *target;
        let mut steps = vec![
            ("block", start, blocked),
            ("save tcp", blocked, saved),
            ("encode", saved, encoded),
        ];
        match transit {
            Some([at_frontend, decided, ..]) => steps.extend([
                ("hand-off to frontend", encoded, *at_frontend),
                ("frontend decides", *at_frontend, *decided),
                ("hand-off to backend", *decided, received),
            ]),
            None => steps.push(("hand-off to backend", encoded, received)),
        }
        steps.extend([
            ("restore tcp", received, restored),
            ("modify rule", restored, owned),
            ("go live", owned, live),
            ("close (off the path)", sent, closed),
        ]);
        // A hand-off without all times was not finished.
        let finished = steps.iter().all(|(_, from, to)| *from != 0 && *to != 0);
        finished.then(|| Self {
            start_ns: start,
            end_ns: live,
            steps: steps
                .iter()
                .map(|(name, from, to)| ((*name).to_owned(), us(*from, *to)))
                .collect(),
        })
    }

    pub(super) fn total_us(&self) -> f64 {
        us(self.start_ns, self.end_ns)
    }
}

fn us(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1000.0
}
