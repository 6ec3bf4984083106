//! How we prove who we are to an Azure service, and how we follow what Azure announces for this
//! machine. Must never read the environment: the account does that.

use std::ffi::OsString;

use super::run::refuse_first;
use super::{Host, UsageError};
use crate::args;
use crate::azure::scheduled_events::{Config, Endpoint};
use crate::azure::{Auth, AuthOptions, withheld as credentials};

/// What was typed about the account.
#[must_use]
pub(crate) fn options(emulator: bool, typed: &args::Access) -> AuthOptions {
    AuthOptions {
        emulator,
        auth: typed.auth,
        ca_file: typed.ca_file.clone(),
    }
}

/// What of it has no meaning for a lock that is no blob; `by_https`: another server is asked by that.
#[must_use]
pub(crate) fn of_blobs_alone(typed: &args::Access, by_https: bool) -> [(&'static str, bool); 2] {
    [
        ("--auth", typed.auth != Auth::Auto),
        ("--ca-file", typed.ca_file.is_some() && !by_https),
    ]
}

/// The variables that name what we compete for, or work on: its URL may have a SAS in it.
const TARGETS: [&str; 2] = ["TRAFFICCOP_BLOB", "TRAFFICCOP_QUEUE"];

/// The variables that are kept from what we run: those that can hold what we prove ourselves by, the
/// one that was `named` to hold it, and those of the lock or the queue, where `target` has a SAS.
pub(super) fn withheld(target: &str, named: Option<&str>) -> Vec<OsString> {
    // All that any of our credentials is read from, and not only what was used: a command that
    // finds another key can use that.
    let known = credentials().map(OsString::from);
    let targets = TARGETS.into_iter().filter(|_| target.contains('?'));
    known
        .chain(named.into_iter().chain(targets).map(OsString::from))
        .collect()
}

pub(super) fn scheduled_events(
    typed: &args::ScheduledEvents,
    host: &Host,
) -> Result<Option<Config>, UsageError> {
    // A flag that does nothing is a misunderstanding, and the machine would be frozen unannounced.
    if !typed.scheduled_events {
        let details = [
            ("--ack-events", typed.ack_events),
            ("--vm-name", typed.vm_name.is_some()),
        ];
        refuse_first(details, |flag| {
            format!(
                "{flag} has no meaning without --scheduled-events: add that, or leave it out (or unset its variable)"
            )
        })?;
        return Ok(None);
    }
    let endpoint = typed.scheduled_events_endpoint.clone();
    Ok(Some(Config {
        endpoint: endpoint.unwrap_or_else(|| Ok(Endpoint::default()))?,
        vm_name: typed.vm_name.clone().transpose()?,
        host: host.host.clone(),
        ack: typed.ack_events,
    }))
}
