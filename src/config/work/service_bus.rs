//! The options of a queue on Service Bus and of its sessions.

use super::*;

const DEFAULT_SESSION_IDLE: Duration = Duration::from_secs(10);
// The default, too: `Sessions::GRACE_ON_LOSS` relies on it.
const SHORTEST_LOCK_DELAY: Duration = Duration::from_secs(2);
// Longer than any queue locks a session.
const LONGEST_LOCK_DELAY: Duration = Duration::from_secs(300);

pub(super) fn queue(entity: String, typed: &args::Work) -> Result<ServiceBus, UsageError> {
    const LOCK_TIME: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);
    let bus = &typed.bus;
    let string_in = bus.connection_string_env.clone().transpose()?;
    let lock_time = typed.lock_time.clone().transpose()?;
    if let Some(time) = lock_time.filter(|time| !LOCK_TIME.contains(time)) {
        refuse!(
            "--lock-time {}: a queue on Service Bus locks for 5s to 5m; take the queue's own lock time",
            show(time)
        );
    }
    Ok(ServiceBus {
        asked: ServiceBusOptions {
            entity,
            dead_letters: bus.dead_letter_queue,
            string_in,
        },
        // The connection string sets the emulator.
        options: options(false, &typed.access),
        lock_time,
        link_settle: bus.link_settle,
        sessions: sessions(typed)?,
    })
}

fn sessions(typed: &args::Work) -> Result<Option<Sessions>, UsageError> {
    let bus = &typed.bus;
    let idle = bus.session_idle.clone().transpose()?;
    let messages = bus.session_messages.clone().transpose()?;
    let lock_delay = bus.lock_delay.clone().transpose()?;
    if !bus.sessions {
        return Ok(None);
    }
    if let Some(delay) = lock_delay.filter(|delay| *delay < SHORTEST_LOCK_DELAY) {
        refuse!(
            "--lock-delay {}: a worker that loses a session has until then to kill its command: take 2s or more",
            show(delay)
        );
    }
    if let Some(delay) = lock_delay.filter(|delay| *delay > LONGEST_LOCK_DELAY) {
        refuse!(
            "--lock-delay {}: no session is locked for longer than 5m: take the queue's own lock time",
            show(delay)
        );
    }
    Ok(Some(Sessions {
        idle: idle.unwrap_or(DEFAULT_SESSION_IDLE),
        messages,
        lock_delay: lock_delay.unwrap_or(SHORTEST_LOCK_DELAY),
    }))
}
