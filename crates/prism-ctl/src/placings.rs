//! The placings that operators ask for: how `drain` and `rebalance` derive them from what etcd
//! has, and how two of them differ.

use anyhow::bail;
use prism_cluster::{NodeName, Placing, State};
use prism_membership::ClusterRecords;

/// The placing that the cluster has reached, or that it is to reach.
pub(crate) fn target<'a>(known: &'a ClusterRecords, state: &'a State) -> &'a Placing {
    known.wish.as_ref().unwrap_or(&state.placing)
}

/// The target without a backend.
pub(crate) fn without(
    name: &NodeName,
    known: &ClusterRecords,
    state: &State,
) -> anyhow::Result<Placing> {
    let mut wish = target(known, state).clone();
    if !wish.members.remove(name) && !state.placing.members.contains(name) {
        let members = names(state.placing.members.iter());
        bail!("{name} holds no keys; the backends with keys are {members}");
    }
    Ok(Placing::new(wish.members, wish.replicas)?)
}

/// The target and all backends that run. A member that does not run may be restarting, so it
/// stays a member.
pub(crate) fn with_all(
    replicas: Option<u16>,
    known: &ClusterRecords,
    state: &State,
) -> anyhow::Result<Placing> {
    let target = target(known, state);
    let running = known.living.iter();
    let running = running.filter(|(_, living)| !living.report.leaving);
    let members = target.members.iter().chain(running.map(|(name, _)| name));
    let replicas = replicas.unwrap_or(target.replicas);
    Ok(Placing::new(members.cloned(), replicas)?)
}

/// The members that do not run.
pub(crate) fn away<'a>(placing: &'a Placing, known: &ClusterRecords) -> Vec<&'a NodeName> {
    let members = placing.members.iter();
    let away = members.filter(|name| !known.living.contains_key(*name));
    away.collect()
}

/// The change from one placing to another, for people.
pub(crate) fn difference(from: &Placing, to: &Placing) -> String {
    let mut changes = Vec::new();
    let drained: Vec<_> = from.members.difference(&to.members).collect();
    if !drained.is_empty() {
        changes.push(format!("it drains {}", names(drained)));
    }
    let added: Vec<_> = to.members.difference(&from.members).collect();
    if !added.is_empty() {
        changes.push(format!("it gives keys to {}", names(added)));
    }
    if from.replicas != to.replicas {
        changes.push(format!("it changes the replicas to {}", to.replicas));
    }
    changes.join(", ")
}

/// Names for people.
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> String {
    let names: Vec<&str> = names.into_iter().map(NodeName::as_str).collect();
    match names.as_slice() {
        [] => "none".into(),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_cluster::Report;
    use prism_membership::etcd::Living;

    use super::*;

    fn placing(members: &[&str], replicas: u16) -> Placing {
        let members = members.iter().map(|name| name.parse().unwrap());
        Placing::new(members, replicas).unwrap()
    }

    fn living(names: &[&str]) -> ClusterRecords {
        let mut known = ClusterRecords::default();
        let report = Report::default();
        for name in names {
            let living = Living { run: 1, report };
            known.living.insert(name.parse().unwrap(), living);
        }
        known
    }

    #[test]
    fn a_member_that_does_not_run_stays_one_and_backends_that_run_become_members() {
        let state = State::new(placing(&["a", "b", "c"], 2));
        let mut known = living(&["a", "c", "d", "e"]);
        let leaving = known.living.get_mut("e").unwrap();
        leaving.report.leaving = true;
        let wish = with_all(None, &known, &state).unwrap();
        assert_eq!(wish, placing(&["a", "b", "c", "d"], 2));
        assert_eq!(names(away(&wish, &known)), "b");
        let wish = with_all(Some(3), &living(&[]), &state).unwrap();
        assert_eq!(wish, placing(&["a", "b", "c"], 3));
    }

    #[test]
    fn a_change_adds_to_the_one_before() {
        let state = State::new(placing(&["a", "b", "c"], 1));
        let mut known = living(&["b", "c"]);
        known.wish = Some(placing(&["b", "c"], 2));
        let wish = with_all(None, &known, &state).unwrap();
        assert_eq!(
            wish,
            placing(&["b", "c"], 2),
            "a is drained and does not run"
        );
        let wish = without(&"a".parse().unwrap(), &known, &state).unwrap();
        assert_eq!(wish, placing(&["b", "c"], 2), "the same again");
        known.wish = Some(placing(&["b", "c"], 1));
        let wish = without(&"b".parse().unwrap(), &known, &state).unwrap();
        assert_eq!(wish, placing(&["c"], 1));
        let unknown = without(&"d".parse().unwrap(), &known, &state);
        let error = unknown.unwrap_err().to_string();
        assert_eq!(error, "d holds no keys; the backends with keys are a, b, c");
        known.wish = Some(placing(&["c"], 1));
        assert!(without(&"c".parse().unwrap(), &known, &state).is_err());
    }

    #[test]
    fn a_difference_names_all_that_changes() {
        let from = placing(&["a", "b", "c"], 2);
        assert_eq!(difference(&from, &placing(&["b", "c"], 2)), "it drains a");
        assert_eq!(
            difference(&from, &placing(&["a", "d", "e"], 3)),
            "it drains b, c, it gives keys to d, e, it changes the replicas to 3"
        );
    }
}
