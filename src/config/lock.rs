//! Every kind of lock, and the way to its store. A new store has a variant here; the compiler names the rest.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::UsageError;
use super::azure::{options, withheld};
use super::look::in_time;
use super::outputs::is_one_of;
use super::policy::longest_poll;
use crate::args;
use crate::azure::{Account, AuthOptions};
use crate::host;
use crate::lease::blob::{BlobLock, Target, TargetError};
use crate::lease::helper::HelperLock;
use crate::lease::slots::path_of;
use crate::lease::{self, NamedLock};

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
    /// Returns the lock to compete for.
    pub(super) fn new(typed: &args::Common) -> Result<Lock, UsageError> {
        let options = options(typed.emulator, &typed.access);
        let mut named = Lock::named(&typed.blob, &typed.file, &typed.store, options)?;
        match &mut named {
            Lock::Blob {
                create, page_blob, ..
            } => {
                *create = !typed.no_create;
                *page_blob = typed.page_blob.clone().transpose()?;
            }
            Lock::File {
                shared,
                mkdir_is_exclusive,
                ..
            } => (*shared, *mkdir_is_exclusive) = (typed.shared, typed.mkdir_is_exclusive),
            Lock::Store { .. } => {}
        }
        Ok(named)
    }

    /// Returns the lock that one flag must name, to look at it. Its files tell whether it is a shared drive's.
    pub(crate) fn named(
        blob: &Option<String>,
        file: &Option<PathBuf>,
        store: &Option<String>,
        options: AuthOptions,
    ) -> Result<Lock, UsageError> {
        match (blob, file, store) {
            (Some(blob), ..) if blob.is_empty() => {
                refuse!("--blob is empty: name a CONTAINER/NAME or a URL")
            }
            (_, Some(file), _) if file.as_os_str().is_empty() => {
                refuse!("--file is empty: name a path")
            }
            (Some(blob), ..) => Ok(Lock::Blob {
                target: blob.clone(),
                options,
                create: false,
                page_blob: None,
            }),
            (_, Some(file), _) => Ok(Lock::File {
                path: file.clone(),
                shared: false,
                mkdir_is_exclusive: false,
            }),
            (.., Some(store)) => match store.split_once(':') {
                Some((helper, name)) if !helper.is_empty() && !name.is_empty() => Ok(Lock::Store {
                    helper: helper.to_owned(),
                    name: name.to_owned(),
                }),
                _ => refuse!(
                    "--store {store}: name a helper and its entry (for list, a prefix), as in --store etcd:locks/x"
                ),
            },
            _ => refuse!(
                "no lock: name one with --blob CONTAINER/NAME, --file PATH or --store HELPER:NAME"
            ),
        }
    }

    /// Finds the lock, without a request to its store; `prepare` gets a blob's account first.
    pub(crate) fn find(
        &self,
        slots: u32,
        parse: fn(&str) -> Result<Target, TargetError>,
        prepare: impl FnOnce(Account) -> Account,
    ) -> Result<Arc<dyn NamedLock>, UsageError> {
        Ok(match self {
            Lock::Blob {
                target,
                options,
                create,
                page_blob,
            } => {
                let target = parse(target).map_err(|why| UsageError::new(why.to_string()))?;
                let account = Account::find(&host::variable, options, target.url())
                    .map_err(|why| UsageError::new(why.to_string()))?;
                Arc::new(BlobLock {
                    target,
                    account: prepare(account),
                    create: *create,
                    page_blob: *page_blob,
                })
            }
            Lock::File { path, shared, .. } => {
                lease::at_path(path, *shared, slots).map_err(not_found)?
            }
            Lock::Store { helper, name } => {
                let found = HelperLock::new(helper, name, host::path().as_deref());
                Arc::new(found.map_err(not_found)?)
            }
        })
    }

    pub(crate) fn mkdir_is_exclusive(&self) -> bool {
        matches!(
            self,
            Lock::File {
                mkdir_is_exclusive: true,
                ..
            }
        )
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

fn not_found(why: impl Display) -> UsageError {
    UsageError::of_the_machine(why.to_string())
}
