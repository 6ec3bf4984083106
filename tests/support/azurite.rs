//! Azurite: one blob service and one queue service for each test process, started on first use. A
//! small shell waits on a pipe whose other end only the test process has, so that even a SIGKILL of
//! the tests leaves no server behind.

use std::ffi::OsStr;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::{await_for, programs};

pub(crate) const ACCOUNT: &str = "devstoreaccount1";
pub(crate) const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

pub(crate) struct Azurite {
    pub(crate) port: u16,
    /// Shell whose pipe the kernel closes when this process ends.
    _life: Child,
    _directory: tempfile::TempDir,
}

pub(crate) fn azurite() -> &'static Azurite {
    static RUNNING: OnceLock<Azurite> = OnceLock::new();
    RUNNING.get_or_init(|| start_with("blob", &[]))
}

pub(crate) fn queues() -> &'static Azurite {
    static RUNNING: OnceLock<Azurite> = OnceLock::new();
    RUNNING.get_or_init(|| start_with("queue", &[]))
}

/// Makes a connection string for the well-known account's queues on this port, with this key.
#[must_use]
pub(crate) fn queue_string(port: u16, key: &str) -> String {
    format!(
        "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};\
         QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    )
}

/// Makes a connection string for the well-known account on this port (of Azurite, or of a proxy).
#[must_use]
pub(crate) fn connection_string(port: u16) -> String {
    connection_string_with_key(port, KEY)
}

#[must_use]
pub(crate) fn connection_string_with_key(port: u16, key: &str) -> String {
    format!(
        "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};\
         BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    )
}

pub(crate) fn start_with(service: &str, options: &[&OsStr]) -> Azurite {
    let directory = tempfile::tempdir().expect("a directory for Azurite");
    let log = directory.path().join("log");
    let output = File::create(&log).expect("a log for Azurite");
    let watcher = Command::new("sh")
        .args([
            "-c",
            "exec 3<&0; node \"$@\" </dev/null 3<&- & cat <&3; kill -9 $!",
            "azurite",
        ])
        .arg(programs::azurite(service))
        .args([
            "--silent",
            "--disableTelemetry",
            "--inMemoryPersistence",
            &format!("--{service}Port"),
            "0",
        ])
        .args(options)
        .current_dir(directory.path())
        .stdin(Stdio::piped())
        .stdout(output.try_clone().expect("a descriptor"))
        .stderr(output)
        .spawn()
        .expect("a shell");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let port = await_for(
        "Azurite to listen",
        || {
            let text = read();
            assert!(
                !text.contains("not found") && !text.contains("Error"),
                "the {service} tests cannot run: Azurite (Node.js) does not start\n{text}"
            );
            let (_, rest) = text.split_once("listens on http")?;
            let (_, rest) = rest.split_once("://127.0.0.1:")?;
            rest.lines().next()?.trim().parse().ok()
        },
        read,
    );
    Azurite {
        port,
        _life: watcher,
        _directory: directory,
    }
}
