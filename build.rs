//! Links the program, but no user of the library, with its own copy of `libgcc`'s unwinder.
//!
//! The shared one asks the processor for its features at every start. In a virtual machine each question is a
//! trap.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let variable = |name| env::var(name).unwrap_or_default();
    let is_static = variable("CARGO_CFG_TARGET_FEATURE").contains("crt-static");
    let is_ours = variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_CFG_TARGET_ENV") == "gnu"
        && !is_static;
    if !is_ours || !has_static_copy() {
        return;
    }
    // The standard library asks for `gcc_s` by name. In a directory before the compiler's own, that name stands for
    // the archives.
    let directory = PathBuf::from(variable("OUT_DIR"));
    let script = "INPUT(-l:libgcc_eh.a -l:libgcc.a)\n";
    if fs::write(directory.join("libgcc_s.so"), script).is_ok() {
        println!("cargo:rustc-link-arg-bins=-L{}", directory.display());
    }
}

/// Returns whether the linker has it; in doubt, the shared one is as good.
fn has_static_copy() -> bool {
    let linker = match env::var_os("RUSTC_LINKER") {
        Some(linker) => linker,
        None if env::var("HOST") == env::var("TARGET") => "cc".into(),
        None => return false,
    };
    let found = Command::new(linker)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    // The linker prints a directory only for what it finds.
    found.is_ok_and(|found| {
        let path = String::from_utf8_lossy(&found.stdout);
        Path::new(path.trim()).is_absolute()
    })
}
