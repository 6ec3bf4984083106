//! Which queue is worked on, made sense of. Called by the plan of work.

use std::time::Duration;

#[cfg(feature = "service-bus")]
use super::span;
use super::{UsageError, options};
use crate::args;
use crate::azure::AuthOptions;
#[cfg(feature = "service-bus")]
use crate::azure::ServiceBusOptions;
#[cfg(feature = "service-bus")]
use crate::units::show;

/// How messages were encoded by their sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As base64 if they can be read as that, else as text.
    Auto,
    /// As base64.
    Base64,
    /// Not at all.
    Text,
}

/// A queue, and what is particular to its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An Azure storage queue.
    Storage(Storage),
    /// A queue or a subscription on Azure Service Bus.
    #[cfg(feature = "service-bus")]
    ServiceBus(ServiceBus),
}

/// A storage queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its name or URL; the service's rules for names are the queue's to check. May hold a secret.
    pub queue: String,
    /// It is created if it is missing.
    pub create: bool,
    /// How the account and our credential are found.
    pub options: AuthOptions,
    /// Where messages are put aside, if not beside the queue.
    pub poison_queue: Option<String>,
    /// How messages were encoded.
    pub encoding: Encoding,
    /// For how long a message is locked.
    pub lock_time: Duration,
}

/// A queue on Service Bus.
#[cfg(feature = "service-bus")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBus {
    /// Which one; Azure's rules for names are checked when it is opened.
    pub asked: ServiceBusOptions,
    /// How our credential is found.
    pub options: AuthOptions,
    /// For how long its messages are locked, where its own word for that is not to be believed.
    pub lock_time: Option<Duration>,
    /// Settle on the link that brought the message.
    pub link_settle: bool,
}

impl Source {
    /// Makes sense of what was typed.
    pub(super) fn new(typed: &args::Work) -> Result<Source, UsageError> {
        #[cfg(feature = "service-bus")]
        {
            let bus = &typed.bus;
            match (typed.queue.as_deref(), bus.service_bus.as_deref()) {
                (Some(_), Some(_)) => {
                    return Err(UsageError::new(
                        "--queue and --service-bus contradict each other: work is done on one queue",
                    ));
                }
                (None, None) => {
                    return Err(UsageError::new(
                        "no queue: name one with --queue NAME or its URL, or with --service-bus NAME",
                    ));
                }
                (None, Some(name)) => return service_bus(name, typed).map(Source::ServiceBus),
                (Some(_), None) => {}
            }
            for (flag, typed) in [
                ("--dead-letter-queue", bus.dead_letter_queue),
                (
                    "--connection-string-env",
                    bus.connection_string_env.is_some(),
                ),
            ] {
                if typed {
                    return Err(UsageError::new(format!(
                        "{flag} belongs to --service-bus: a storage queue knows no such thing"
                    )));
                }
            }
        }
        storage(typed).map(Source::Storage)
    }

    /// Whether what fails for good can be put aside.
    #[must_use]
    pub fn puts_aside(&self) -> bool {
        match self {
            Source::Storage(_) => true,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => !bus.asked.dead_letters,
        }
    }

    /// How often a message is tried where nothing was said; `None`: that is for the queue to say.
    pub(super) fn attempts(&self) -> Option<u32> {
        match self {
            Source::Storage(_) => Some(super::work::DEFAULT_ATTEMPTS),
            // It has a number of its own, which its owner has chosen and which cannot be switched off.
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(_) => None,
        }
    }
}

fn storage(typed: &args::Work) -> Result<Storage, UsageError> {
    let queue = match typed.queue.as_deref() {
        None => {
            return Err(UsageError::new(
                "no queue: name one with --queue NAME or its URL",
            ));
        }
        Some("") => return Err(UsageError::new("--queue is empty: name a queue, or a URL")),
        Some(queue) => queue.to_owned(),
    };
    Ok(Storage {
        queue,
        create: typed.create,
        options: options(typed.emulator, &typed.access),
        poison_queue: match typed.poison_queue.as_deref() {
            Some("") => {
                return Err(UsageError::new(
                    "--poison-queue is empty: name a queue, or leave it out",
                ));
            }
            name => name.map(str::to_owned),
        },
        encoding: match typed.encoding {
            args::Encoding::Auto => Encoding::Auto,
            args::Encoding::Base64 => Encoding::Base64,
            args::Encoding::Text => Encoding::Text,
        },
        lock_time: super::work::lock_time(typed)?,
    })
}

#[cfg(feature = "service-bus")]
fn service_bus(name: &str, typed: &args::Work) -> Result<ServiceBus, UsageError> {
    /// What a queue on Service Bus can lock a message for.
    const LOCK_TIME: std::ops::RangeInclusive<Duration> =
        Duration::from_secs(5)..=Duration::from_secs(300);
    if name.is_empty() {
        return Err(UsageError::new(
            "--service-bus is empty: name a queue, or a subscription as TOPIC/Subscriptions/NAME",
        ));
    }
    let bus = &typed.bus;
    for (flag, is_typed, why) in [
        (
            "--create",
            typed.create,
            "making a queue takes the right to manage the namespace: make it with 'az servicebus queue create'",
        ),
        (
            "--emulator",
            typed.emulator,
            "that is the emulator of storage: write UseDevelopmentEmulator=true into the connection string",
        ),
        (
            "--poison-queue",
            typed.poison_queue.is_some(),
            "what is put aside goes to the dead-letter queue that every queue has",
        ),
        (
            "--encoding",
            typed.encoding != args::Encoding::Auto,
            "its messages are bytes, and are handed over as they are",
        ),
        (
            "--max-attempts",
            bus.dead_letter_queue && typed.max_attempts.is_some(),
            "with --dead-letter-queue nothing can be put aside, however often it fails",
        ),
        (
            "--dead-letter-exit",
            bus.dead_letter_queue && typed.dead_letter_exit.is_some(),
            "with --dead-letter-queue nothing can be put aside, whatever a command exits with",
        ),
    ] {
        if is_typed {
            return Err(UsageError::new(format!(
                "{flag} does not go with --service-bus: {why}"
            )));
        }
    }
    let string_in = bus.connection_string_env.clone();
    if let Some(variable) = string_in.as_deref()
        && (variable.is_empty() || variable.contains(['=', ';', ' ', '\0']))
    {
        // Not repeated: it may be the string itself.
        return Err(UsageError::new(
            "--connection-string-env takes the name of a variable, not the connection string",
        ));
    }
    let lock_time = span("--lock-time", typed.lock_time.as_deref())?;
    if let Some(time) = lock_time.filter(|time| !LOCK_TIME.contains(time)) {
        return Err(UsageError::new(format!(
            "--lock-time {}: a queue on Service Bus locks for 5s to 5m; take what it is set to",
            show(time)
        )));
    }
    Ok(ServiceBus {
        asked: ServiceBusOptions {
            entity: name.to_owned(),
            dead_letters: bus.dead_letter_queue,
            string_in,
        },
        options: options(false, &typed.access),
        lock_time,
        link_settle: bus.link_settle,
    })
}
