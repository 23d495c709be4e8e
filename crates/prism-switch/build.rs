//! Compiles `bpf/switch.bpf.c` and generates its Rust skeleton into `OUT_DIR`.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?;
    let bpf = Path::new(&manifest).join("../../bpf");
    println!("cargo::rerun-if-changed={}", bpf.display());
    SkeletonBuilder::new()
        .source(bpf.join("switch.bpf.c"))
        .clang_args(clang_args())
        .build_and_generate(out.join("switch.skel.rs"))?;
    Ok(())
}

/// Debian keeps `asm/types.h` in a directory of the host's architecture, which
/// clang does not search when it builds for BPF.
fn clang_args() -> Vec<String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut args: Vec<String> = [
        "-mcpu=v3",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-Wno-sign-compare",
    ]
    .map(String::from)
    .into();
    args.push(format!("-I/usr/include/{arch}-linux-gnu"));
    args
}
