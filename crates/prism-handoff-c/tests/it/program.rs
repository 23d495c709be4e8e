//! Programs in C that use the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// Compiles `source`, a path from this crate, with checks of its memory.
pub(crate) fn compile(dir: &TempDir, source: &str) -> Result<PathBuf> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Cargo puts the library beside the test program.
    let test = std::env::current_exe()?;
    let libraries = test.parent().context("no directory")?;
    let program = dir.path().join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-g"]);
    cc.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
    cc.arg("-I").arg(crate_dir.join("include"));
    cc.arg(crate_dir.join(source));
    cc.arg("-o").arg(&program);
    cc.arg("-L").arg(libraries).arg("-lprism_handoff_c");
    cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    let output = cc.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(program)
}
