//! How we prove who we are to an Azure service, made sense of.
//!
//! Called by the plan and by the verbs. Must never read the environment: the account does that.

use std::ffi::OsString;

use crate::args;
use crate::azure::{Auth, AuthOptions, CREDENTIALS};

/// What was typed about the account.
#[must_use]
pub fn options(emulator: bool, typed: &args::Access) -> AuthOptions {
    AuthOptions {
        emulator,
        auth: typed.auth,
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
pub fn of_blobs_alone(typed: &args::Access) -> [(&'static str, bool); 2] {
    [
        ("--auth", typed.auth != Auth::Auto),
        ("--ca-file", typed.ca_file.is_some()),
    ]
}
