//! The administrator: changes users, the wish, and recovers the cluster. Mirrors
//! `crates/prism/src/ctl/{recover,recovered_users}.rs`.

use prism_cluster::{
    Choice, Lineage, LineageMark, NodeName, Placing, RecoverError, Recovery, recover,
};

use crate::Mutation;
use crate::etcd::{USERS, User, UserClaim};
use crate::world::{Found, World};

/// Most decisions in one recovery.
const TRIES: usize = 6;

impl World {
    /// Adds, deletes or limits a user, or replaces its secret. The command remembers nothing of
    /// etcd, so it changes an older copy too.
    pub(crate) fn change_user(&mut self) {
        let user = self.rng.usize(..USERS);
        let secret = self.number();
        let present = self.etcd.users.get(&user).map(|(user, _)| *user);
        let next = match (present, self.rng.u8(..3)) {
            (None, _) => Some(User {
                secret,
                is_admin: true,
            }),
            (Some(_), 0) => None,
            (Some(user), 1) => Some(User {
                is_admin: !user.is_admin,
                ..user
            }),
            (Some(user), _) => Some(User { secret, ..user }),
        };
        let revision = self.raise();
        self.etcd.put_user(user, next, revision);
        self.etcd.user_changes[user] = self.number();
        self.met.users += 1;
        if self.reverted_since.is_some() {
            self.fork.users.insert(user);
        }
    }

    /// Asks for other members or another number of replicas.
    pub(crate) fn wish(&mut self) {
        let mut members: Vec<NodeName> =
            self.backends().map(|(_, node)| node.name.clone()).collect();
        self.rng.shuffle(&mut members);
        members.truncate(self.rng.usize(2..=members.len()));
        let most = u16::try_from(members.len()).unwrap();
        let replicas = self.rng.u16(1..=most);
        self.raise();
        self.etcd.wish = Placing::new(members, replicas).ok();
        if self.reverted_since.is_some() {
            self.fork.has_steps = true;
        }
    }

    /// `prism ctl cluster recover`, with decisions only if it refuses and they are allowed.
    pub(crate) fn recover(&mut self, may_decide: bool) -> Found {
        // By the time of the command all nodes have heard each other's claims and marks.
        for at in (0..self.nodes.len()).chain(0..self.nodes.len()) {
            self.hear(at)?;
            self.say(at);
        }
        let mut choice = Choice {
            founding: self.number(),
            ..Choice::default()
        };
        for _ in 0..TRIES {
            let living = self.etcd.living.iter();
            let stores = living.map(|(name, living)| (name.clone(), living.report.store));
            match recover(&self.etcd.contents(), &stores.collect(), &choice) {
                Ok(recovery) => return self.put_recovery(&recovery, &choice),
                Err(error) if may_decide => {
                    if !self.decide(&error, &mut choice) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        self.met.refused_recoveries += 1;
        Ok(())
    }

    /// Decides about what the refusal names. False if there is nothing to decide.
    fn decide(&mut self, error: &RecoverError, choice: &mut Choice) -> bool {
        match error {
            RecoverError::Unproven(doubts) => {
                for name in doubts.keys() {
                    let decided = match self.rng.bool() {
                        true => &mut choice.accepted,
                        false => &mut choice.without,
                    };
                    decided.insert(name.clone());
                }
                true
            }
            RecoverError::NoneInSync => {
                choice.accepted.append(&mut choice.without);
                true
            }
            RecoverError::Foundings(names) => {
                choice.of = self.rng.choice(names).cloned();
                choice.of.is_some()
            }
            _ => false,
        }
    }

    fn put_recovery(&mut self, recovery: &Recovery, choice: &Choice) -> Found {
        let is_decided =
            choice.of.is_some() || !choice.without.is_empty() || !choice.accepted.is_empty();
        self.met.recoveries += 1;
        self.met.decisions += u64::from(is_decided);
        if !self.is(Mutation::RecoverKeepsUsers) {
            self.recover_users(choice.of.as_ref());
        }
        self.check_recovered_users(choice.of.as_ref())?;
        for user in 0..USERS {
            self.etcd.user_changes[user] = self.number();
        }
        let marks = self.etcd.claims.values().map(|claim| claim.mark);
        let lineage = Lineage::recovered(self.etcd.lineage.as_ref(), marks, choice.founding);
        if !self.is(Mutation::RecoverKeepsLineage) {
            self.etcd.lineage = Some(lineage);
        }
        let revision = self.etcd.next_revision();
        self.etcd.state = Some((recovery.state.clone(), revision));
        self.etcd.wish = None;
        self.last_adopted = Some(recovery.state.clone());
        self.etcd.recovered_at = self.number();
        self.etcd.history.push(choice.founding);
        self.end_fork(is_decided);
        // The store may have an earlier life of the bucket, whose objects it purges.
        if !choice.accepted.is_empty() {
            self.forgive_missing();
        }
        Ok(())
    }

    /// What `recover` does not promise to keep:
    ///
    /// - writes that only a backend has about which the administrator decides;
    /// - writes in the restored etcd, and all after steps there: states of one founding do not
    ///   always tell that they were made apart;
    /// - all, if a store has been reverted that is not known to be so, because no node could put
    ///   back its mark: its older testimony counts.
    fn end_fork(&mut self, is_decided: bool) {
        let fork = std::mem::take(&mut self.fork);
        self.reverted_since = None;
        let is_misled = self.outstanding.iter().any(|at| !self.is_told(*at));
        self.met.forked += u64::from(fork.has_steps || !fork.written.is_empty());
        if is_decided || is_misled || fork.has_steps {
            self.forgive_all();
        }
        for index in fork.written {
            self.forgive_objects(index);
        }
    }

    /// `RecoveredUsers::find` and `put`.
    fn recover_users(&mut self, of: Option<&NodeName>) {
        let Some(name) = self.latest_claim(of) else {
            return;
        };
        let claims = self.etcd.user_claims.get(&name).cloned();
        for (user, claim) in claims.unwrap_or_default() {
            let present = self.etcd.users.get(&user).map(|(user, _)| *user);
            let next = match claim {
                UserClaim::Deleted | UserClaim::OtherSecret | UserClaim::Missing => None,
                UserClaim::OtherRights(is_admin) => present.map(|user| User { is_admin, ..user }),
            };
            let revision = self.etcd.next_revision();
            self.etcd.put_user(user, next, revision);
        }
    }

    fn latest_claim(&self, of: Option<&NodeName>) -> Option<NodeName> {
        let claims = self.etcd.claims.iter();
        let claims = claims.filter(|(name, claim)| {
            let has_seen_more = !self.etcd.contents().descends_from(claim.mark);
            has_seen_more && of.is_none_or(|of| of == *name)
        });
        let latest = claims.max_by_key(|(_, claim)| (claim.mark.count, claim.store != 0));
        latest.map(|(name, _)| name.clone())
    }

    /// No user that a claiming node knows to be deleted, limited or renewed is open again.
    ///
    /// Not promised yet:
    /// - for users that the administrator has changed in the restored etcd: their revisions do not
    ///   tell any more whether their secrets are from before;
    /// - if the greatest count of changes is of a node that has noted only those of the restored
    ///   etcd, or of a frontend that has been restarted since.
    fn check_recovered_users(&mut self, of: Option<&NodeName>) -> Found {
        let Some(latest) = self.latest_claim(of) else {
            return Ok(());
        };
        let mark = self.etcd.claims[&latest].mark;
        let claims = self.etcd.claims.iter();
        let lost: Vec<NodeName> = claims
            .filter(|(_, claim)| !self.etcd.has(Some(claim.mark)))
            .map(|(name, _)| name.clone())
            .collect();
        if self.etcd.has(Some(mark)) || !self.remembers(&latest, mark) {
            self.met.misled += u64::from(!lost.is_empty());
            return Ok(());
        }
        let changed_apart = self.fork.users.clone();
        for name in lost {
            let (Some(at), true) = (self.index(&name), self.remembers(&name, mark)) else {
                continue;
            };
            let acted = *self.nodes[at].acted();
            for user in (0..USERS).filter(|user| !changed_apart.contains(user)) {
                let (_, known) = acted[user];
                let present = self.etcd.users.get(&user).map(|(user, _)| *user);
                if is_wider(present, known) {
                    return Err(format!(
                        "user {user} is {present:?} after the recovery, and {name} knows {known:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a node has noted this change last.
    fn remembers(&self, name: &NodeName, mark: LineageMark) -> bool {
        let node = self.index(name).map(|at| &self.nodes[at]);
        let process = node.and_then(|node| node.process.as_ref());
        process.is_some_and(|process| process.noted.mark == Some(mark))
    }
}

/// Whether a user is admitted by what was taken from it.
fn is_wider(present: Option<User>, known: Option<User>) -> bool {
    let Some(present) = present else { return false };
    known.is_none_or(|known| present.secret < known.secret || (present.is_admin && !known.is_admin))
}
