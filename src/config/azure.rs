//! Options for Azure's credentials and notices. It must never read a credential: the account does that.

use std::ffi::OsString;

use super::{Host, UsageError};
use crate::args;
use crate::azure::scheduled_events::{Config, Endpoint};
use crate::azure::{AuthOptions, withheld as credentials};
use crate::host::variable;

#[must_use]
pub(crate) fn options(emulator: bool, typed: &args::Access) -> AuthOptions {
    AuthOptions {
        emulator,
        auth: typed.auth,
        ca_file: typed.ca_file.clone(),
    }
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
    if !typed.scheduled_events {
        return Ok(None);
    }
    let endpoint = variable(args::EVENTS_ENDPOINT).map(|url| {
        Endpoint::parse(&url)
            .map_err(|why| UsageError::new(format!("{}: {why}", args::EVENTS_ENDPOINT)))
    });
    Ok(Some(Config {
        endpoint: endpoint.transpose()?.unwrap_or_default(),
        vm_name: typed.vm_name.clone().transpose()?,
        host: host.host.clone(),
        ack: typed.ack_events,
    }))
}
