//! The times of hand-offs: the source's record joined with the target's. All hosts of a lab are
//! one machine with one clock.

use std::collections::HashMap;

use serde_json::Value;

/// Positions in `at_ns` of the first step (source) and the last (target).
const START: usize = 0;
const LIVE: usize = 3;

/// Microseconds of each hand-off that both ends recorded, sorted: from the decision until the
/// socket is live at the target.
pub(super) fn latencies(answers: &[Value]) -> Vec<f64> {
    let mut starts = HashMap::new();
    let mut ends = HashMap::new();
    let records = answers
        .iter()
        .filter_map(|answer| answer.get("records")?.as_array())
        .flatten();
    for record in records {
        let at = |step: usize| {
            record
                .get("at_ns")?
                .get(step)?
                .as_u64()
                .filter(|ns| *ns > 0)
        };
        let Some(id) = record.get("id").and_then(Value::as_u64) else {
            continue;
        };
        match record.get("part").and_then(Value::as_str) {
            Some("source") => starts.extend(at(START).map(|ns| (id, ns))),
            Some("target") => ends.extend(at(LIVE).map(|ns| (id, ns))),
            // A frontend's record for a connection that it passed on without having it.
            _ => {}
        }
    }
    let mut latencies: Vec<f64> = ends
        .iter()
        .filter_map(|(id, end)| Some(end.checked_sub(*starts.get(id)?)? as f64 / 1e3))
        .collect();
    latencies.sort_by(f64::total_cmp);
    latencies
}

/// The value at `part` (0 to 1) of `sorted`.
pub(super) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * part).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_latency_spans_both_ends() {
        let answers = [
            json!({ "records": [{ "id": 7, "part": "source", "at_ns": [1_000, 2_000] },
                                { "id": 8, "part": "source", "at_ns": [5_000] }] }),
            json!({ "records": [{ "id": 7, "part": "target", "at_ns": [3_000, 4_000, 5_000, 61_000] },
                                { "id": 7, "part": "transit", "at_ns": [1_500, 1_600] },
                                { "id": 8, "part": "target", "at_ns": [6_000, 0, 0, 0] }] }),
        ];
        assert_eq!(latencies(&answers), [60.0]);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
