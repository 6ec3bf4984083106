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
    for (flag, is_typed, why) in [
        (
            "--create",
            typed.create,
            "creating a queue needs the right to manage the namespace: create it with 'az servicebus queue create'",
        ),
        (
            "--emulator",
            typed.emulator,
            "that is the storage emulator: write UseDevelopmentEmulator=true in the connection string",
        ),
        (
            "--poison-queue",
            typed.poison_queue.is_some(),
            "dead-lettered messages go to the queue's own dead-letter queue: leave it out (or unset its variable)",
        ),
        (
            "--encoding",
            typed.encoding.is_some(),
            "its messages are bytes, and the command gets them unchanged: leave it out (or unset its variable)",
        ),
    ] {
        if is_typed {
            return Err(UsageError::new(format!(
                "{flag} does not go with --service-bus: {why}"
            )));
        }
    }
    if bus.dead_letter_queue {
        let puts_aside = [
            ("--max-attempts", typed.max_attempts.is_some()),
            ("--dead-letter-exit", typed.dead_letter_exit.is_some()),
        ];
        refuse_first(puts_aside, |flag| {
            format!(
                "{flag} does not go with --dead-letter-queue: its messages cannot be dead-lettered again: \
                 leave it out (or unset its variable)"
            )
        })?;
    }
    let string_in = bus.connection_string_env.clone().transpose()?;
    let lock_time = typed.lock_time.clone().transpose()?;
    if let Some(time) = lock_time.filter(|time| !LOCK_TIME.contains(time)) {
        return Err(UsageError::new(format!(
            "--lock-time {}: a queue on Service Bus locks for 5s to 5m; take the queue's own lock time",
            show(time)
        )));
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

pub(super) fn sessions(typed: &args::Work) -> Result<Option<Sessions>, UsageError> {
    let bus = &typed.bus;
    let idle = bus.session_idle.clone().transpose()?;
    let messages = bus.session_messages.clone().transpose()?;
    let lock_delay = bus.lock_delay.clone().transpose()?;
    if !bus.sessions {
        let alone = [
            ("--session-idle", idle.is_some()),
            ("--session-messages", messages.is_some()),
            ("--lock-delay", lock_delay.is_some()),
        ];
        let whose = match bus.service_bus {
            Some(_) => "--sessions",
            None => "--service-bus NAME --sessions",
        };
        refuse_first(alone, |flag| {
            format!("{flag} belongs to {whose}: without it messages are taken one by one")
        })?;
        return Ok(None);
    }
    if bus.dead_letter_queue {
        return Err(UsageError::new(
            "--sessions does not go with --dead-letter-queue: dead letters come in no order: leave --sessions out",
        ));
    }
    if bus.link_settle {
        return Err(UsageError::new(
            "--sessions does not go with --link-settle: messages of sessions are settled by their lock token",
        ));
    }
    if let Some(delay) = lock_delay.filter(|delay| *delay < SHORTEST_LOCK_DELAY) {
        return Err(UsageError::new(format!(
            "--lock-delay {}: a worker that loses a session has until then to kill its command: take 2s or more",
            show(delay)
        )));
    }
    if let Some(delay) = lock_delay.filter(|delay| *delay > LONGEST_LOCK_DELAY) {
        return Err(UsageError::new(format!(
            "--lock-delay {}: no session is locked for longer than 5m: take the queue's own lock time",
            show(delay)
        )));
    }
    Ok(Some(Sessions {
        idle: idle.unwrap_or(DEFAULT_SESSION_IDLE),
        messages,
        lock_delay: lock_delay.unwrap_or(SHORTEST_LOCK_DELAY),
    }))
}
