//! The flows that the workers of a process hold. A hand-off that names one of them is false, or its
//! connection comes back, or its client has begun another one on the same ports. The switch knows
//! which.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use prism_proto::control::FlowKey;

/// The number of workers that hold each flow, by a hash of the flow under a random key. Two flows
/// with one hash cost a question to the switch.
#[derive(Debug, Default)]
pub(crate) struct HeldFlows {
    hasher: RandomState,
    workers: Mutex<HashMap<u64, u32>>,
}

impl HeldFlows {
    /// One more worker holds the flow.
    pub(crate) fn add(&self, flow: &FlowKey) {
        let mut workers = self.workers.lock();
        *workers.entry(self.hasher.hash_one(flow)).or_default() += 1;
    }

    /// One worker less holds the flow.
    pub(crate) fn remove(&self, flow: &FlowKey) {
        let mut workers = self.workers.lock();
        let hash = self.hasher.hash_one(flow);
        if let Some(count) = workers.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                workers.remove(&hash);
            }
        }
    }

    pub(crate) fn contains(&self, flow: &FlowKey) -> bool {
        self.workers
            .lock()
            .contains_key(&self.hasher.hash_one(flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_held_until_no_worker_has_it() {
        let vip = ([198, 51, 100, 1], 80).into();
        let flow = |port| FlowKey {
            client: ([192, 0, 2, 1], port).into(),
            vip,
        };
        let held = HeldFlows::default();
        held.add(&flow(1));
        held.add(&flow(1));
        held.remove(&flow(2));
        held.remove(&flow(1));
        assert!(held.contains(&flow(1)) && !held.contains(&flow(2)));
        held.remove(&flow(1));
        held.remove(&flow(1));
        assert!(!held.contains(&flow(1)) && held.workers.lock().is_empty());
    }
}
