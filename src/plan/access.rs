//! How we prove who we are to an Azure service, made sense of.
//!
//! Called by the plan and by the verbs. Must never read the environment: the account does that.

use std::ffi::OsString;

use crate::azure::{Auth, AuthOptions, CREDENTIALS};
use crate::cli;

/// What was typed about the account.
#[must_use]
pub fn options(emulator: bool, typed: &cli::Access) -> AuthOptions {
    AuthOptions {
        emulator,
        auth: match typed.auth {
            cli::Auth::Auto => Auth::Auto,
            cli::Auth::Key => Auth::Key,
            cli::Auth::Sas => Auth::Sas,
            cli::Auth::Entra => Auth::Entra,
            cli::Auth::Workload => Auth::Workload,
            cli::Auth::Managed => Auth::Managed,
            cli::Auth::Cli => Auth::Cli,
        },
        ca_file: typed.ca_file.clone(),
    }
}

/// The variables that are kept from what we run, if that was asked for: those that can hold what we
/// prove ourselves by, and the one that was named to hold it.
#[must_use]
pub(super) fn withheld(no_credentials: bool, named: Option<&str>) -> Vec<OsString> {
    if !no_credentials {
        return Vec::new();
    }
    let known = CREDENTIALS.iter().copied();
    known.chain(named).map(OsString::from).collect()
}

/// What of it has no meaning for a lock that is no blob.
#[must_use]
pub fn of_blobs_alone(typed: &cli::Access) -> [(&'static str, bool); 2] {
    [
        ("--auth", typed.auth != cli::Auth::Auto),
        ("--ca-file", typed.ca_file.is_some()),
    ]
}
