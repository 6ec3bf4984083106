//! The programs of the figures: the binary under measure, the probe, the peer; and what is missing.
//!
//! Used by every section. What cannot be had is told in words, so that the table can say so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The binary under measure: what a release build makes, or the one that `FIGURES_OF` names (an
/// installed one, say).
pub(crate) fn trafficcop() -> PathBuf {
    let other = std::env::var_os("FIGURES_OF").filter(|path| !path.is_empty());
    other.map_or_else(|| env!("CARGO_BIN_EXE_trafficcop").into(), PathBuf::from)
}

/// The probe, compiled from `probe.rs` on first use and when that has changed.
///
/// # Panics
/// Where rustc cannot compile it: without a probe nothing can be measured.
pub(crate) fn probe() -> PathBuf {
    let source = include_str!("probe.rs");
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("probe-{:016x}", hasher.finish()));
    if !program.exists() {
        let fresh = directory.join(format!("probe-{}", std::process::id()));
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(rustc)
            .args(["--edition", "2024", "--crate-name", "probe", "-O"])
            .args(["-C", "panic=abort", "-C", "strip=symbols"])
            .args(["-C", "target-feature=+crt-static", "-o"])
            .arg(&fresh)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/benches/figures/probe.rs"
            ))
            .stdin(Stdio::null())
            .status()
            .expect("rustc can be run");
        assert!(status.success(), "rustc could not compile the probe");
        std::fs::rename(&fresh, &program).expect("a file of our own can be renamed");
    }
    program
}

/// What `program --version` says in its first line; `None` where there is no such program.
pub(crate) fn version(program: &str) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}
