//! The path of the program `prism`, which a lab's hosts run.

use std::path::{Path, PathBuf};

use crate::error::LabError;

/// The absolute path of the program `prism`: `named`, or else the file of that name in
/// the directory of the calling program.
///
/// # Errors
/// When there is no such file, or it cannot be executed.
pub fn prism_program(named: Option<&Path>) -> Result<PathBuf, LabError> {
    let path = match named {
        Some(named) => std::path::absolute(named),
        None => std::env::current_exe().map(|own| own.with_file_name("prism")),
    };
    let path = path.map_err(LabError::io("finding the program prism"))?;
    let is_program =
        path.is_file() && rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok();
    is_program
        .then_some(path.clone())
        .ok_or(LabError::NoPrism { path })
}

#[cfg(test)]
#[path = "prism_program_tests.rs"]
mod tests;
