//! Programs that tests run. Each is made once, under a lock between processes, because several test
//! binaries may run at the same time.

use std::fs::{File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use nix::fcntl::{Flock, FlockArg};

#[must_use]
pub(crate) fn trafficcop() -> &'static str {
    env!("CARGO_BIN_EXE_trafficcop")
}

fn exclusively<T>(path: &Path, make: impl FnOnce() -> T) -> T {
    let file = File::open(path).expect("a directory of the build can be opened");
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno);
    make()
}

/// The test binary, for every user to run.
pub(crate) struct Ourselves {
    pub(crate) path: PathBuf,
    _place: tempfile::TempDir,
}

/// Returns a copy that exists as long as it is used.
pub(crate) fn ourselves() -> Arc<Ourselves> {
    static MADE: Mutex<Weak<Ourselves>> = Mutex::new(Weak::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = made.upgrade() {
        return there;
    }
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("tests");
    // In another process: a concurrent test's fork would inherit a descriptor open for writing, and
    // a program open for writing cannot be run.
    let copied = Command::new("cp")
        .arg(std::env::current_exe().expect("our own path"))
        .arg(&path)
        .status();
    assert!(copied.is_ok_and(|status| status.success()), "no copy of us");
    // Whatever the umask is.
    for ours in [place.path(), &path] {
        std::fs::set_permissions(ours, Permissions::from_mode(0o755)).expect("it is ours");
    }
    let fresh = Arc::new(Ourselves {
        path,
        _place: place,
    });
    *made = Arc::downgrade(&fresh);
    fresh
}

/// Plays this test in a separate process. Returns whether it did; in that process it returns false,
/// and the caller plays the test.
pub(crate) fn was_played_alone(test: &str) -> bool {
    const ALONE: &str = "PROCESS_OF_ITS_OWN";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args([test, "--exact", "--nocapture"]);
    let output = command.env(ALONE, "1").output().expect("a process");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    true
}

/// Returns the journalist, compiled from `journalist.rs` on first use and after changes.
pub(crate) fn journalist() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compiled("journalist", include_str!("journalist.rs"), &[]))
}

pub(crate) fn wrong_clock() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = include_str!("wrong_clock.rs");
        compiled("wrong_clock", source, &["--crate-type", "cdylib"])
    })
}

pub(crate) fn refusing() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = include_str!("refusing.rs");
        compiled("refusing", source, &["--crate-type", "cdylib"])
    })
}

/// Compiles `NAME.rs`, whose text is `source`.
fn compiled(name: &str, source: &str, options: &[&str]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("{name}-{:016x}", hasher.finish()));
    exclusively(directory, || {
        if program.exists() {
            return;
        }
        let fresh = program.with_extension("fresh");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(rustc)
            .args(["--edition", "2024", "-O"])
            .args(options)
            .arg("-o")
            .arg(&fresh)
            .arg(format!(
                "{}/tests/support/{name}.rs",
                env!("CARGO_MANIFEST_DIR")
            ))
            .stdin(Stdio::null())
            .status()
            .expect("rustc can be run");
        assert!(status.success(), "rustc could not compile {name}.rs");
        std::fs::rename(&fresh, &program).expect("a file of our own can be renamed");
    });
    program
}

/// Returns a service of Azurite (`blob` or `queue`), installed by npm on first use and after
/// changes of its lock file.
///
/// # Panics
///
/// Without Node.js, npm or a package registry: the blob tests are not skipped.
pub(crate) fn azurite(service: &str) -> PathBuf {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    let modules = INSTALLED.get_or_init(|| {
        let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/azurite"));
        let wanted = include_str!("../azurite/package-lock.json");
        let modules = directory.join("node_modules");
        let installed = modules.join(".installed-from");
        exclusively(directory, || {
            if std::fs::read_to_string(&installed).is_ok_and(|lock| lock == wanted) {
                return;
            }
            eprintln!("installing Azurite into {} (npm ci) ...", modules.display());
            let output = Command::new("npm")
                .args([
                    "ci",
                    "--omit=dev",
                    "--ignore-scripts",
                    "--no-audit",
                    "--no-fund",
                ])
                .current_dir(directory)
                .stdin(Stdio::null())
                .output()
                .unwrap_or_else(|error| {
                    panic!(
                        "the blob tests cannot run: they need Node.js and npm, to install the \
                         emulator Azurite ({error} when starting npm)"
                    )
                });
            assert!(
                output.status.success(),
                "the blob tests cannot run: npm ci in tests/azurite failed\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
            std::fs::write(&installed, wanted).expect("the installation can be marked");
        });
        modules
    });
    modules.join(format!("azurite/dist/src/{service}/main.js"))
}
