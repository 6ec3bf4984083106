//! The tools that are compared: how each is started on a lock, and how one sees that it waits for it.
//!
//! Made by `beside`; what is not installed is left out, and said. Measures nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::etcd::{self, Etcd};
use crate::handover::is_waited_for;
use crate::instance::{self, Lock, await_for};
use crate::wire::Wire;
use crate::{programs, python};

/// Where the locks of one run are.
pub(crate) struct World<'a> {
    /// A directory of one's own.
    pub(crate) scene: &'a Path,
    /// The command.
    pub(crate) probe: &'a Path,
    /// A connection string for blobs.
    pub(crate) connection: Option<&'a str>,
}

/// One of them.
pub(crate) struct Tool {
    /// As `rows::TOOLS` has it.
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) version: String,
    kind: Kind,
}

enum Kind {
    Flock,
    Etcd(Etcd),
    Python { python: PathBuf, connection: String },
    File,
    Blob { connection: String, doorbell: bool },
}

/// All that are to be had here, in the order of the columns, and why others are not.
pub(crate) fn all(world: &World<'_>) -> (Vec<Tool>, Vec<String>) {
    let mut missing = Vec::new();
    let mut found = Vec::new();
    let mut add = |name, made: Result<(String, Kind), String>| match made {
        Ok((version, kind)) => found.push(Tool {
            name,
            version,
            kind,
        }),
        Err(why) => missing.push(format!("{name}: left out: {why}")),
    };
    let ours = format!("trafficcop {}", env!("CARGO_PKG_VERSION"));
    let emulator = || world.connection.ok_or_else(|| "no Azurite".to_owned());
    let flock = programs::version("flock");
    add(
        "flock",
        flock
            .map(|version| (version, Kind::Flock))
            .ok_or_else(|| "util-linux is not installed".to_owned()),
    );
    add(
        "etcdctl lock",
        etcd::start().map(|(version, etcd)| (version, Kind::Etcd(etcd))),
    );
    add(
        "Python script",
        emulator().and_then(|connection| {
            let (version, python) = python::environment()?;
            let connection = connection.to_owned();
            Ok((version, Kind::Python { python, connection }))
        }),
    );
    add("trafficcop --file", Ok((ours.clone(), Kind::File)));
    for (name, doorbell) in [("trafficcop --blob", false), ("the same, --doorbell", true)] {
        let blob = |connection: &str| {
            let connection = connection.to_owned();
            let kind = Kind::Blob {
                connection,
                doorbell,
            };
            (ours.clone(), kind)
        };
        add(name, emulator().map(blob));
    }
    (found, missing)
}

impl Tool {
    /// The tool with this lock and command. `lease` is the shortest there is, where it has one to
    /// choose; `by` leads to its store.
    pub(crate) fn command(
        &self,
        world: &World<'_>,
        lock: &str,
        lease: bool,
        by: Option<&Wire>,
        words: &[&OsStr],
    ) -> Command {
        let path = world.scene.join(lock);
        let short: &[&str] = if lease { &["--lease", "15s"] } else { &[] };
        match &self.kind {
            Kind::Flock => {
                let mut command = Command::new("flock");
                command.arg(path).args(words);
                command
            }
            Kind::Etcd(etcd) => {
                let mut command = etcd.client(by.map(|wire| wire.port));
                command.args(["lock", lock, "--"]).args(words);
                command
            }
            Kind::Python { python, connection } => {
                let mut command = Command::new(python);
                command
                    .arg(python::SCRIPT)
                    .arg(format!("python/{lock}"))
                    .args(words)
                    .env("AZURE_STORAGE_CONNECTION_STRING", via(connection, by));
                command
            }
            Kind::File => {
                let mut command = instance::trafficcop(Lock::File(&path));
                command.arg("--").args(words);
                command
            }
            Kind::Blob {
                connection,
                doorbell,
            } => {
                let connection = via(connection, by);
                let lock = format!("beside-{doorbell}/{lock}");
                let mut command = instance::trafficcop(Lock::Blob(&lock, &connection));
                // -v says when a standby hears it.
                let bell: &[&str] = if *doorbell {
                    &["--doorbell", "-v"]
                } else {
                    &[]
                };
                command.args(short).args(bell).arg("--").args(words);
                command
            }
        }
    }

    /// The port of its store, if it has one.
    pub(crate) fn store(&self) -> Option<u16> {
        match &self.kind {
            Kind::Flock | Kind::File => None,
            Kind::Etcd(etcd) => Some(etcd.port),
            Kind::Python { connection, .. } | Kind::Blob { connection, .. } => port_of(connection),
        }
    }

    /// Whether its store is asked in HTTP/1.1, so that requests can be counted on the way.
    pub(crate) fn speaks_http(&self) -> bool {
        matches!(self.kind, Kind::Python { .. } | Kind::Blob { .. })
    }

    /// How many requests etcd has had so far, from anybody.
    pub(crate) fn etcd_requests(&self) -> Option<f64> {
        match &self.kind {
            Kind::Etcd(etcd) => etcd.requests(),
            _ => None,
        }
    }

    /// How long at most a standby waits between two looks.
    pub(crate) fn poll(&self) -> Duration {
        match self.kind {
            Kind::Flock | Kind::Etcd(_) | Kind::File => Duration::ZERO,
            Kind::Python { .. } => Duration::from_secs(5),
            Kind::Blob { .. } => Duration::from_millis(2400),
        }
    }

    /// Waits until an instance with this log waits for the lock.
    ///
    /// # Errors
    /// If it does not within a minute.
    pub(crate) fn await_standby(
        &self,
        world: &World<'_>,
        lock: &str,
        log: &Path,
    ) -> Result<(), String> {
        let says = |word: &str| {
            await_for("a standby", || {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                said.contains(word).then_some(())
            })
        };
        match self.kind {
            Kind::Flock | Kind::File => {
                let path = world.scene.join(lock);
                await_for("a waiter", || is_waited_for(&path).then_some(()))
            }
            Kind::Python { .. } => says("waiting"),
            Kind::Blob {
                doorbell: false, ..
            } => says("standing by"),
            Kind::Blob { doorbell: true, .. } => says("hears the holder's doorbell"),
            // It says nothing: twice what it needs on a slow machine.
            Kind::Etcd(_) => {
                std::thread::sleep(Duration::from_secs(1));
                Ok(())
            }
        }
    }
}

/// The same account by another way.
fn via(connection: &str, by: Option<&Wire>) -> String {
    match (by, port_of(connection)) {
        (Some(wire), Some(port)) => connection.replace(
            &format!("127.0.0.1:{port}/"),
            &format!("127.0.0.1:{}/", wire.port),
        ),
        _ => connection.to_owned(),
    }
}

fn port_of(connection: &str) -> Option<u16> {
    let (_, rest) = connection.split_once("127.0.0.1:")?;
    rest.split('/').next()?.parse().ok()
}
