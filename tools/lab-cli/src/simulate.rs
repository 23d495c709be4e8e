//! `prism-lab simulate`.

/// Simulate clusters from measured unit costs.
///
/// Prints what was measured beside its simulation, and the first limit of clusters that
/// nobody has built. Builds no lab and measures nothing: every run prints the same. The
/// assumptions are in `docs/design/scale.md`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run() -> anyhow::Result<()> {
    print!("{}", prism_scale::report());
    Ok(())
}
