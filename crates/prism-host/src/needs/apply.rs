//! Makes the changes of a host, makes them again at each boot, and undoes them.
//!
//! The record is written before each change, so an end in the middle loses nothing.

use std::path::Path;

use anyhow::{Result, bail};

use super::change::{self, HostChange};
use super::files::{self, Root, read_bounded};
use super::record::{AppliedChanges, Done, Undo};
use super::{live, netfilter, networkd};

/// The directory of systemd-networkd's files.
const NETWORKD: &str = "/etc/systemd/network";

/// Makes this host as `wanted` says, and undoes former changes that are not among them. Returns
/// what the operator should know.
///
/// # Errors
/// A file that somebody else has written is in the way; then nothing is changed. Or a change
/// fails; then the record has all that were made.
pub(crate) fn apply(root: &Root, host: &str, wanted: &[HostChange]) -> Result<Vec<String>> {
    let lock = root.lock()?;
    let record = AppliedChanges::load(root)?;
    let mut record = record.unwrap_or_else(|| AppliedChanges::new(host));
    host.clone_into(&mut record.host);
    for change in wanted {
        refuse_foreign_file(root, &record, change)?;
    }
    let is_stale = |change: &HostChange| !wanted.iter().any(|other| other.is_about_that_of(change));
    let is_lost = |done: &Done| is_of_networkd(&done.change) && is_stale(&done.change);
    let mut is_networkd_changed = record.done.iter().any(is_lost);
    let mut said = undo_where(root, &mut record, is_stale)?;
    for change in wanted {
        let is_changed = apply_one(root, &mut record, change)?;
        is_networkd_changed |= is_changed && is_of_networkd(change);
        if is_changed {
            said.push(format!("done: {}", describe(change)));
        }
    }
    record.save(root)?;
    // The unit prism-host takes the lock when systemd-networkd is restarted.
    drop(lock);
    if is_networkd_changed && root.is_host() {
        networkd::reload()?;
    }
    Ok(said)
}

/// Makes the recorded changes of the running kernel again, as after a boot. It goes on after a
/// failure.
pub(crate) fn restore(root: &Root) -> Result<Vec<String>> {
    let _lock = root.lock()?;
    let Some(mut record) = AppliedChanges::load(root)? else {
        return Ok(vec!["nothing was applied on this host".into()]);
    };
    let changes: Vec<HostChange> = record.done.iter().map(|done| done.change.clone()).collect();
    let changes = changes
        .iter()
        .filter(|change| !matches!(change, HostChange::File { .. }));
    let mut said = Vec::new();
    let mut failed = Vec::new();
    for change in changes {
        match apply_one(root, &mut record, change) {
            Ok(true) => said.push(format!("done: {}", describe(change))),
            Ok(false) => {}
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if failed.is_empty() {
        Ok(said)
    } else {
        bail!("not all could be done again: {}", failed.join("; "))
    }
}

/// Undoes all that was applied.
pub(crate) fn remove(root: &Root) -> Result<Vec<String>> {
    let lock = root.lock()?;
    let Some(mut record) = AppliedChanges::load(root)? else {
        return Ok(vec!["nothing was applied on this host".into()]);
    };
    let mut changes = record.done.iter().map(|done| &done.change);
    let has_networkd = changes.any(is_of_networkd);
    let said = undo_where(root, &mut record, |_| true)?;
    AppliedChanges::remove(root)?;
    drop(lock);
    if has_networkd && root.is_host() {
        networkd::reload()?;
    }
    Ok(said)
}

fn is_of_networkd(change: &HostChange) -> bool {
    matches!(change, HostChange::File { path, .. } if path.starts_with(NETWORKD))
}

fn describe(change: &HostChange) -> String {
    match change {
        HostChange::File { path, .. } => format!("write {}", path.display()),
        _ => super::render::command(change).unwrap_or_default(),
    }
}

/// A file is ours as long as it has the text that was written.
fn refuse_foreign_file(root: &Root, record: &AppliedChanges, change: &HostChange) -> Result<()> {
    let HostChange::File { path, text } = change else {
        return Ok(());
    };
    let Some(found) = read_bounded(&root.path(path))? else {
        return Ok(());
    };
    let is_as_wanted = found == *text;
    let found = HostChange::File {
        path: path.clone(),
        text: found,
    };
    let mut done = record.done.iter();
    if is_as_wanted || done.any(|done| done.change == found && done.undo != Undo::Nothing) {
        return Ok(());
    }
    let path = path.display();
    bail!("{path} exists, and `prism setup` did not write what it has; move it away")
}

/// Returns whether anything had to be done.
fn apply_one(root: &Root, record: &mut AppliedChanges, change: &HostChange) -> Result<bool> {
    let is_done = is_in_effect(root, change)?;
    match record.find(change) {
        // It was lost by a boot, or is another value now.
        Some(done) => {
            if !is_done && done.undo == Undo::Nothing {
                done.undo = undo_of(root, change)?;
            }
            done.change = change.clone();
        }
        None => record.done.push(Done {
            change: change.clone(),
            undo: if is_done {
                Undo::Nothing
            } else {
                undo_of(root, change)?
            },
        }),
    }
    record.save(root)?;
    if is_done {
        return Ok(false);
    }
    match change {
        HostChange::File { path, text } => files::write_whole(&root.path(path), text)?,
        _ => live::make(change)?,
    }
    Ok(true)
}

fn is_in_effect(root: &Root, change: &HostChange) -> Result<bool> {
    match change {
        HostChange::File { path, text } => {
            let found = read_bounded(&root.path(path))?;
            Ok(found.as_ref() == Some(text))
        }
        _ => live::is_live(change),
    }
}

/// The way back from a change that is about to be made.
fn undo_of(root: &Root, change: &HostChange) -> Result<Undo> {
    Ok(match change {
        HostChange::File { path, .. } => {
            let path = root.path(path);
            let missing = path.ancestors().skip(1).take_while(|above| !above.exists());
            let made = missing.last().map(Path::to_owned);
            made.map_or(Undo::Remove, Undo::RemoveWith)
        }
        HostChange::Sysctl { name, .. } => {
            let mut before = vec![(name.clone(), live::sysctl(name)?)];
            if change::has_side_effects(name) {
                before.extend(live::side_effects(name)?);
            }
            Undo::Restore(before)
        }
        _ => Undo::Remove,
    })
}

/// Undoes the recorded changes for which `is_stale`, the last one first.
fn undo_where(
    root: &Root,
    record: &mut AppliedChanges,
    is_stale: impl Fn(&HostChange) -> bool,
) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for index in (0..record.done.len()).rev() {
        let done = record.done.get(index);
        let Some(done) = done.filter(|done| is_stale(&done.change)) else {
            continue;
        };
        said.extend(undo(root, done)?);
        record.done.remove(index);
        record.save(root)?;
    }
    Ok(said)
}

/// Changes that others have changed since stay as they are.
fn undo(root: &Root, done: &Done) -> Result<Option<String>> {
    let change = &done.change;
    if done.undo == Undo::Nothing {
        return Ok(None);
    }
    let is_there = match change {
        // No other program has a table of this name.
        HostChange::Notrack { .. } => netfilter::has_table()?,
        _ => is_in_effect(root, change)?,
    };
    if !is_there {
        let subject = match change {
            HostChange::File { path, .. } if root.path(path).exists() => path.display().to_string(),
            HostChange::Sysctl { name, .. } => super::render::sysctl_name(name),
            _ => return Ok(None),
        };
        return Ok(Some(format!("kept: {subject} was changed since")));
    }
    match (&done.undo, change) {
        (Undo::Restore(before), _) => {
            for (name, value) in before {
                if live::sysctl(name)? != *value {
                    live::set_sysctl(name, value)?;
                }
            }
        }
        (Undo::RemoveWith(made), HostChange::File { path, .. }) => {
            files::remove(&root.path(path), Some(made))?;
        }
        (_, HostChange::File { path, .. }) => files::remove(&root.path(path), None)?,
        _ => live::unmake(change)?,
    }
    Ok(Some(format!("undone: {}", describe(change))))
}
