//! Every kind of lock: other settings depend on it. A new store has a variant here, and nowhere else above its
//! own folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use super::UsageError;
use super::azure::{options, withheld};
use super::look::in_time;
use super::outputs::is_one_of;
use super::policy::longest_poll;
use crate::args;
use crate::azure::AuthOptions;
use crate::host;
use crate::lease::NamedLock as _;
use crate::lease::helper::HelperLock;
use crate::lease::slots::path_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    Blob(&'a str),
    File(&'a Path),
    /// Helper, and the name of its entry.
    Store(&'a str, &'a str),
}

impl<'a> Named<'a> {
    /// Returns the lock, which one flag must name.
    pub(crate) fn new(
        blob: Option<&'a str>,
        file: Option<&'a Path>,
        store: Option<&'a str>,
    ) -> Result<Named<'a>, UsageError> {
        match (blob, file, store) {
            (Some(""), ..) => refuse!("--blob is empty: name a CONTAINER/NAME or a URL"),
            (_, Some(file), _) if file.as_os_str().is_empty() => {
                refuse!("--file is empty: name a path")
            }
            (Some(blob), ..) => Ok(Named::Blob(blob)),
            (_, Some(file), _) => Ok(Named::File(file)),
            (.., Some(store)) => match store.split_once(':') {
                Some((helper, name)) if !helper.is_empty() && !name.is_empty() => {
                    Ok(Named::Store(helper, name))
                }
                _ => refuse!(
                    "--store {store}: name a helper and its entry (for list, a prefix), as in --store etcd:locks/x"
                ),
            },
            _ => refuse!(
                "no lock: name one with --blob CONTAINER/NAME, --file PATH or --store HELPER:NAME"
            ),
        }
    }
}

/// Lock, checked as far as that needs no store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Blob {
        /// `CONTAINER/NAME` or a URL, whose rules the store checks.
        target: String,
        options: AuthOptions,
        create: bool,
        /// Size of a page blob to create.
        page_blob: Option<u64>,
    },
    File {
        path: PathBuf,
        shared: bool,
        /// The operator promises that exactly one of two machines creates a directory there.
        mkdir_is_exclusive: bool,
    },
    Store {
        helper: String,
        name: String,
    },
}

impl Lock {
    pub(super) fn new(typed: &args::Common) -> Result<Lock, UsageError> {
        let named = Named::new(
            typed.blob.as_deref(),
            typed.file.as_deref(),
            typed.store.as_deref(),
        )?;
        Ok(match named {
            Named::Blob(target) => Lock::Blob {
                target: target.to_owned(),
                options: options(typed.emulator, &typed.access),
                create: !typed.no_create,
                page_blob: typed.page_blob.clone().transpose()?,
            },
            Named::File(path) => Lock::File {
                path: path.to_owned(),
                shared: typed.shared,
                mkdir_is_exclusive: typed.mkdir_is_exclusive,
            },
            Named::Store(helper, name) => Lock::Store {
                helper: helper.to_owned(),
                name: name.to_owned(),
            },
        })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Lock::File { path, .. } => Some(path),
            Lock::Blob { .. } | Lock::Store { .. } => None,
        }
    }

    pub(super) fn files(&self, slots: u32) -> Vec<PathBuf> {
        let of_path = |path: &Path| match slots {
            // One slot is the same lock as without the flag.
            1 => vec![path.to_owned()],
            _ => (0..slots).map(|slot| path_of(path, slot)).collect(),
        };
        self.path().map_or(Vec::new(), of_path)
    }

    /// Returns the longest time until another instance looks.
    pub(super) fn shortest_cooldown(&self, slots: u32, poll: Duration) -> Duration {
        match self {
            // A busy machine may take a moment to schedule the waiter that the kernel wakes.
            Lock::File { shared: false, .. } if slots == 1 => Duration::from_millis(100),
            _ => longest_poll(poll),
        }
    }

    pub(super) fn withheld(&self) -> Vec<OsString> {
        match self {
            Lock::Blob { target, .. } => withheld(target, None),
            // A file needs no credential: those in the environment are the command's.
            Lock::File { .. } => Vec::new(),
            Lock::Store { helper, name } => HelperLock::new(helper, name, host::path().as_deref())
                .map_or(Vec::new(), |lock| lock.hides()),
        }
    }

    pub(super) fn is_one_of(
        &self,
        outer: &[String],
        patience: Duration,
    ) -> Result<bool, UsageError> {
        // An address has one spelling, a path many.
        let Some(path) = self.path() else {
            return Ok(false);
        };
        let outer: Vec<PathBuf> = outer.iter().map(PathBuf::from).collect();
        let path = path.to_owned();
        let paths = [&outer[..], slice::from_ref(&path)].concat();
        let all: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
        in_time("--file", &all, patience, move || {
            is_one_of("--file", &path, &outer)
        })
    }
}
