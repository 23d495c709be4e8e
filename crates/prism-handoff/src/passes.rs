//! The passes of flows that have come here lately. If the switch loses its table before a source
//! has heard the verdict, both nodes announce the flow, and the target's announcement needs the
//! pass.

use std::collections::{HashMap, VecDeque};

use prism_proto::control::{FlowKey, Pass};
use prism_proto::export::{ASK_DEADLINE_NS, BLOCKED_NS};
use prism_proto::term::YOUNG_NS;

/// The time in which a source settles a hand-off, a young term included.
const KEPT_NS: u64 = BLOCKED_NS + ASK_DEADLINE_NS + YOUNG_NS;
/// The largest number of passes, at some 120 bytes each. Hand-offs beyond it are not protected.
const MAX_PASSES: usize = 65_536;

/// The passes of one worker.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    kept: HashMap<FlowKey, (u64, Pass)>,
    /// In the order of their times.
    since: VecDeque<(u64, FlowKey, u64)>,
}

impl Passes {
    /// Keeps the pass by which this worker owns the flow at `epoch`.
    pub(crate) fn keep(&mut self, flow: FlowKey, epoch: u64, pass: Pass, now_ns: u64) {
        let old_ns = now_ns.saturating_sub(KEPT_NS);
        while let Some((_, flow, epoch)) = self.since.pop_front_if(|(since, ..)| *since <= old_ns) {
            if self.of(&flow, epoch).is_some() {
                self.kept.remove(&flow);
            }
        }
        if self.since.len() < MAX_PASSES {
            self.since.push_back((now_ns, flow, epoch));
            self.kept.insert(flow, (epoch, pass));
        }
    }

    /// The pass for the command of `epoch`.
    pub(crate) fn of(&self, flow: &FlowKey, epoch: u64) -> Option<Pass> {
        let kept = self.kept.get(flow);
        kept.filter(|(of, _)| *of == epoch).map(|(_, pass)| *pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prism_proto::control::{ControlKey, Passage};

    #[test]
    fn a_pass_is_kept_for_a_while() {
        let client = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
        let flow = FlowKey {
            client,
            vip: client,
        };
        let via = client.ip();
        let to = |epoch| Passage { flow, epoch, via };
        let pass = |epoch| Pass::new(&ControlKey::new([1; 16]), &to(epoch));
        let mut passes = Passes::default();
        passes.keep(flow, 5, pass(5), 1);
        assert_eq!(passes.of(&flow, 5), Some(pass(5)));
        assert_eq!(passes.of(&flow, 6), None);
        passes.keep(flow, 7, pass(7), KEPT_NS);
        // The end of the first is not that of the second.
        let other = FlowKey {
            client: ([192, 0, 2, 1], 8).into(),
            ..flow
        };
        passes.keep(other, 1, pass(1), KEPT_NS + 1);
        assert_eq!(passes.of(&flow, 7), Some(pass(7)));
        passes.keep(other, 2, pass(2), 2 * KEPT_NS);
        assert_eq!((passes.of(&flow, 7), passes.kept.len()), (None, 1));
    }
}
