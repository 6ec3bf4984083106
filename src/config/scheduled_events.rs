//! What was typed of what the platform announces for this machine, made sense of. Called by the
//! plan.

use super::{Host, UsageError};
use crate::args;
use crate::azure::scheduled_events::{Config, Endpoint};

pub(super) fn scheduled_events(
    typed: &args::ScheduledEvents,
    place: &Host,
) -> Result<Option<Config>, UsageError> {
    if !typed.scheduled_events {
        for (flag, is_there) in [
            ("--ack-events", typed.ack_events),
            ("--vm-name", typed.vm_name.is_some()),
        ] {
            if is_there {
                return Err(UsageError::new(format!(
                    "{flag} has no meaning without --scheduled-events: add that, or leave it out (or unset its variable)"
                )));
            }
        }
        return Ok(None);
    }
    let endpoint = typed.scheduled_events_endpoint.as_deref();
    let endpoint = endpoint.map_or(Ok(Endpoint::default()), |text| {
        Endpoint::parse(text)
            .map_err(|why| UsageError::new(format!("--scheduled-events-endpoint: {why}")))
    })?;
    if let Some(name) = &typed.vm_name
        && (name.trim().is_empty() || name.chars().any(char::is_control))
    {
        return Err(UsageError::new(
            "--vm-name is no name of a machine: take what Azure calls it, or leave it out",
        ));
    }
    Ok(Some(Config {
        endpoint,
        vm_name: typed.vm_name.clone(),
        host: place.host.clone(),
        ack: typed.ack_events,
    }))
}
