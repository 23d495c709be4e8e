//! Compiles `bpf/switch.bpf.c` and generates its Rust skeleton into `OUT_DIR`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

/// The types of map keys and values, and what they consist of.
const TYPES: [&str; 17] = [
    "bpf_spin_lock",
    "ended_run",
    "flow",
    "flow_key",
    "frontends",
    "ip_addr",
    "node",
    "node_id",
    "node_keys",
    "order",
    "run_key",
    "sender",
    "service",
    "service_key",
    "tenant",
    "term",
    "term_state",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?;
    let bpf = Path::new(&manifest).join("../../bpf");
    println!("cargo::rerun-if-changed={}", bpf.display());
    let skeleton = out.join("switch.skel.rs");
    SkeletonBuilder::new()
        .source(bpf.join("switch.bpf.c"))
        .clang_args(clang_args())
        .build_and_generate(&skeleton)?;
    let code = with_bytes(fs::read_to_string(&skeleton)?)?;
    fs::write(&skeleton, code)?;
    Ok(())
}

/// Has the compiler derive what reads and writes the types as bytes. It refuses a type with
/// padding.
fn with_bytes(mut code: String) -> Result<String, String> {
    const DERIVED: &str =
        "#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]";
    for name in TYPES {
        let head = format!("pub struct {name} {{");
        if code.matches(&head).count() != 1 {
            return Err(format!("the skeleton has no type {name}, or several"));
        }
        code = code.replace(&head, &format!("{DERIVED}\n{head}"));
    }
    Ok(code)
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
