//! Options for Azure's credentials and notices. It must never read the environment: the account does that.

use std::ffi::OsString;

use super::run::refuse_first;
use super::{Host, UsageError};
use crate::args;
use crate::azure::scheduled_events::{Config, Endpoint};
use crate::azure::{Auth, AuthOptions, withheld as credentials};

#[must_use]
pub(crate) fn options(emulator: bool, typed: &args::Access) -> AuthOptions {
    AuthOptions {
        emulator,
        auth: typed.auth,
        ca_file: typed.ca_file.clone(),
    }
}

/// Returns the flags that only a blob uses. `by_https`: another server is asked by https.
#[must_use]
pub(crate) fn of_blobs_alone(typed: &args::Access, by_https: bool) -> [(&'static str, bool); 2] {
    [
        ("--auth", typed.auth != Auth::Auto),
        ("--ca-file", typed.ca_file.is_some() && !by_https),
    ]
}

const TARGETS: [&str; 2] = ["TRAFFICCOP_BLOB", "TRAFFICCOP_QUEUE"];

/// Returns the variables to hide from child processes: all that can hold a credential, also the one `named` for a
/// connection string, and the target's if it has a SAS.
pub(super) fn withheld(target: &str, named: Option<&str>) -> Vec<OsString> {
    // All, not just the one in use: a command that finds another key can use it.
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
    // A user who sets these expects notices; without them the machine would be frozen unannounced.
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
