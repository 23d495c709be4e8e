//! The speed of OpenSSL on this machine, by `openssl speed`.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Bytes a second that one core encrypts or hashes, 16 KiB at a time. Takes `seconds`.
pub(crate) fn bytes_per_s(algorithm: &str, seconds: u64) -> Result<f64> {
    let output = Command::new("openssl")
        .args(["speed", "-elapsed", "-mr"])
        .args(["-seconds", &seconds.to_string()])
        .args(["-bytes", "16384", "-evp", algorithm])
        .output()
        .context("running `openssl speed` (Debian's package openssl has it)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = text.lines().rev().find(|line| line.starts_with("+F:"));
    let bytes_per_s = figure.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    match bytes_per_s {
        Some(rate) if rate > 0.0 => Ok(rate),
        _ => bail!("`openssl speed -evp {algorithm}` said nothing of its speed: {text}"),
    }
}
