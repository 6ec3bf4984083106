//! Microsoft's client for Python in an environment of one's own. Used by `tools`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The client that is compared.
const PACKAGE: &str = "azure-storage-blob==12.31.1";

/// The script that is written round it.
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/figures/az_lease.py");

/// Its version and its interpreter; made on first use, and kept with the build.
///
/// # Errors
/// What is missing.
pub(crate) fn environment() -> Result<(String, PathBuf), String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures-python");
    let python = directory.join("bin/python");
    let version = || {
        let output = Command::new(&python)
            .args([
                "-c",
                "import sys, azure.storage.blob as b; print('azure-storage-blob', b.__version__, \
                 'on Python', sys.version.split()[0])",
            ])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    if version().is_none() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
    }
    let version = version().ok_or("azure-storage-blob cannot be imported")?;
    Ok((version, python))
}

fn run(command: &mut Command) -> Result<(), String> {
    let what = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().last().unwrap_or_default();
    Err(format!("{what} failed: {last}"))
}
