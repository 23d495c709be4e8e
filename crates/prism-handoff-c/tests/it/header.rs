//! The header is what cbindgen makes of the sources.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = crate_dir.join("include/prism_handoff.h");
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(crate_dir.join("src/status.rs"))
        .with_src(crate_dir.join("src/config.rs"))
        .with_src(crate_dir.join("src/endpoint.rs"))
        .with_src(crate_dir.join("src/ffi.rs"))
        .generate()
        .unwrap()
        .write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let made = made.replace(" * # Safety\n", " * The caller has to make sure:\n");
    if std::env::var_os("PRISM_WRITE_HEADER").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let found = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(
        found == made,
        "the header is old; its head says how to make it"
    );
}
