//! Azure storage queues as a [`Queue`], and their names and URLs by Azure's rules.
//!
//! **One second more.** The service reports the ends of locks in whole seconds, and may keep them no more
//! precisely. So trafficcop requests one second more than it counts on.
//!
//! **A message that expires** is gone for all workers: its command may finish. Azure locks a message beyond its
//! expiry only when a worker takes it, never by a renewal. So a message taken less than one lock before it
//! expires is never renewed. One taken earlier is held until the end of the last lock that the service grants,
//! and its command is stopped before that.

mod client;
mod lock;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use url::Url;

pub use self::client::Encoding;
use self::client::{QueueApi, Received, is_ambiguous};
use self::lock::{Held, Service, is_deleted};
use super::{About, Message, Missing, Queue};
use crate::account::malformed;
use crate::{Account, AccountError, Operation, ServiceError, is_label, shown, typed_url};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

// The service's longest visibility timeout.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
// Less leaves no time to renew it.
const SHORTEST: Duration = Duration::from_secs(2);
// The most that rounding to whole seconds takes away.
const GRAIN: Duration = Duration::from_secs(1);
// Azure refuses a greater number (400).
const MOST: usize = 32;

// Id of a message that never exists.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Settings of a storage queue.
#[derive(Clone, Debug)]
pub struct Config {
    /// The queue.
    pub target: Target,
    /// The account ([`Account::find_queue`]).
    pub account: Account,
    /// Lock duration: whole seconds, 2 s to 7 days.
    pub lock_time: Duration,
    /// Encoding of the senders; `None` passes the text on.
    pub encoding: Option<Encoding>,
    /// The largest body that a command gets, in bytes.
    pub max_body: usize,
    /// The poison queue, created when it is needed; default `QUEUE-poison`.
    pub poison: Option<String>,
    /// Create the queue if it is missing.
    pub create: bool,
}

/// The queue as one worker takes from it.
pub struct StorageQueue {
    config: Config,
    service: Arc<Service>,
    warned: AtomicBool,
    proven: AtomicBool,
    deleted: AtomicBool,
}

impl StorageQueue {
    /// Creates the queue; sends nothing.
    pub fn open(config: Config) -> Result<StorageQueue, AccountError> {
        let asked = config.lock_time;
        if !(SHORTEST..=LONGEST).contains(&asked) || asked.subsec_nanos() != 0 {
            let why = format!("is locked for 2 s to 7 days, in whole seconds, not for {asked:?}");
            return Err(malformed("a message", why));
        }
        // At the service's own limit there is no second to add.
        let hidden = (asked + GRAIN).min(LONGEST);
        let poison = config.target.poison(config.poison.as_deref())?;
        Ok(StorageQueue {
            service: Arc::new(Service {
                client: QueueApi::new(&config.account, config.target.queue())?,
                // A SAS for the one queue fails only when the first message is dead-lettered.
                poison: QueueApi::new(&config.account, &poison)?,
                seconds: i32::try_from(hidden.as_secs()).unwrap_or(i32::MAX),
                lock_time: hidden - GRAIN,
            }),
            config,
            warned: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
        })
    }

    /// Address of the poison queue, without a secret.
    #[must_use]
    pub fn poison_name(&self) -> &str {
        &self.service.poison.name
    }

    fn message(&self, told: Received, t0: Instant) -> Message {
        if told.is_last {
            tracing::warn!(
                "message {} expires at {}, before its lock of {}s ends: its command may finish, but the \
                 message cannot come again",
                told.id,
                told.about.expires.as_deref().unwrap_or_default(),
                self.service.lock_time.as_secs()
            );
        }
        if self.config.encoding.is_none()
            && is_ambiguous(&told.text)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the text of message {} is valid base64, too, and the command gets it as it was sent: pass \
                 --encoding base64 if senders encode what they put into this queue, --encoding text if not",
                told.id
            );
        }
        let encoding = self.config.encoding.unwrap_or(Encoding::Text);
        let how = match encoding {
            Encoding::Base64 => "base64",
            Encoding::Text => "text",
        };
        Message {
            attempt: told.attempt,
            t0,
            lock_time: self.service.lock_time,
            // This worker set the lock duration: no other machine's clock matters.
            first_renewal: None,
            body: encoding.read(&told.text, self.config.max_body),
            about: About {
                encoding: Some(how),
                ..told.about.clone()
            },
            id: told.id.clone(),
            // The core counts with the same end.
            lock: Arc::new(Held::new(
                Arc::clone(&self.service),
                told,
                t0 + self.service.lock_time,
            )),
        }
    }
}

#[async_trait]
impl Queue for StorageQueue {
    fn name(&self) -> &str {
        &self.service.client.name
    }

    fn lock_time(&self) -> Duration {
        self.service.lock_time
    }

    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing> {
        let client = &self.service.client;
        let told = |error: ServiceError, operation| {
            let failure = error.failure(operation, &self.service.client.name, false);
            Missing::from(self.config.account.naming_the_credential(failure))
        };
        match client.look(give_up_at).await {
            Ok(()) => {}
            Err(error) if error.code() == Some("QueueNotFound") => {
                // A mistyped name would create a queue that stays empty.
                if !self.config.create {
                    return Err(Missing::NoQueue(format!(
                        "no such queue {}: create it, or add --create",
                        client.name
                    )));
                }
                client
                    .create(give_up_at)
                    .await
                    .map_err(|error| told(error, Operation::CreateQueue))?;
            }
            Err(error) => return Err(told(error, Operation::LookAtQueue)),
        }
        // Without the right to update, each command would be killed at the end of its first lock, and all
        // messages would end in the poison queue.
        match client.update(NOBODY, NOBODY, 0, give_up_at).await {
            Err(error) if matches!(error.status(), Some(401 | 403)) => {
                Err(told(error, Operation::Update))
            }
            // 404 is the good answer: the right exists.
            _ => Ok(()),
        }
    }

    async fn take(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure> {
        let Service {
            client, seconds, ..
        } = &*self.service;
        // Before the request: the service cannot have begun earlier.
        let t0 = Instant::now();
        let told = client.take(most.min(MOST), *seconds, give_up_at).await;
        let deleted = matches!(&told, Err(error) if is_deleted(error));
        self.deleted.store(deleted, Ordering::Relaxed);
        let told = told.map_err(|error| {
            // After a success a refusal is doubt: a right that is missing for a moment must not end the worker.
            let proven = self.proven.load(Ordering::Relaxed);
            let failure = error.failure(Operation::Take, &self.service.client.name, proven);
            self.config.account.naming_the_credential(failure)
        })?;
        self.proven.store(true, Ordering::Relaxed);
        self.config.account.tell();
        Ok(told
            .into_iter()
            .map(|told| self.message(told, t0))
            .collect())
    }

    fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }
}

// As in Azure Functions.
const POISON: &str = "-poison";

/// Name of the queue, or its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    queue: String,
    url: Option<Url>,
}

impl Target {
    /// Parses a queue's name, or its URL, which may have a SAS.
    pub fn parse(text: &str) -> Result<Target, AccountError> {
        if !text.contains("://") {
            check(text)?;
            return Ok(Target {
                queue: text.to_owned(),
                url: None,
            });
        }
        let (url, split) = typed_url(text, "the queue's URL")?;
        // The portal shows the endpoints side by side.
        let elsewhere = [".blob.", ".file.", ".table.", ".dfs."];
        let host = url.host_str().unwrap_or_default();
        let queue = split.path.strip_suffix('/').unwrap_or(&split.path);
        if queue.is_empty() || queue.contains('/') || elsewhere.iter().any(|s| host.contains(s)) {
            return Err(malformed(
                "the URL",
                "is not a queue's: it is https://ACCOUNT.queue.core.windows.net/QUEUE, with nothing after the name",
            ));
        }
        check(queue)?;
        Ok(Target {
            queue: queue.to_owned(),
            url: Some(url),
        })
    }

    /// Name of the queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// URL of the queue, if it was given as one. May hold a secret.
    #[must_use]
    pub fn url(&self) -> Option<&Url> {
        self.url.as_ref()
    }

    /// Returns the name of the poison queue: the one `named`, else `QUEUE-poison`.
    pub fn poison(&self, named: Option<&str>) -> Result<String, AccountError> {
        let Some(name) = named else {
            let name = format!("{}{POISON}", self.queue);
            // The error names the flag: the user did not type this name.
            return check(&name).map(|()| name).map_err(|_| {
                let why = format!(
                    "is {} characters long, so '-poison' does not fit behind it (63 at most): name a poison queue \
                     with --poison-queue",
                    self.queue.len()
                );
                malformed("the queue's name", why)
            });
        };
        check(name)?;
        if name == self.queue {
            let why = "cannot be its own poison queue: name another with --poison-queue";
            return Err(malformed(format!("'{name}'"), why));
        }
        Ok(name.to_owned())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.queue)
    }
}

fn check(name: &str) -> Result<(), AccountError> {
    // The service's 400 would not tell which rule was broken.
    match is_label(name) {
        true => Ok(()),
        false => Err(malformed(
            format!("'{}'", shown(name)),
            "cannot be a queue: 3 to 63 lower-case letters, digits and single hyphens, beginning and ending with a \
             letter or digit",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuthOptions;

    fn config() -> Config {
        let emulator = AuthOptions {
            emulator: true,
            ..AuthOptions::default()
        };
        Config {
            target: Target::parse("jobs").expect("a target"),
            account: Account::find_queue(&|_| None, &emulator, None).expect("an account"),
            lock_time: Duration::from_secs(60),
            encoding: None,
            max_body: 1 << 20,
            poison: None,
            create: false,
        }
    }

    #[test]
    fn lock_is_requested_one_second_longer_than_counted_on() {
        for (asked, hidden, counted) in [
            (2, 3, 2),
            (60, 61, 60),
            (604_799, 604_800, 604_799),
            (604_800, 604_800, 604_799),
        ] {
            let queue = StorageQueue::open(Config {
                lock_time: Duration::from_secs(asked),
                ..config()
            })
            .expect("a queue");
            assert_eq!(queue.service.seconds, hidden);
            assert_eq!(queue.lock_time(), Duration::from_secs(counted));
        }
    }

    #[test]
    fn unsupported_lock_times_and_poison_names_are_refused() {
        for bad in [0, 1000, 1999, 2500, 604_800_001] {
            let said = StorageQueue::open(Config {
                lock_time: Duration::from_millis(bad),
                ..config()
            });
            let said = said.map(drop).expect_err("refused").to_string();
            assert!(
                said.starts_with("a message is locked for 2 s to 7 days"),
                "{said}"
            );
        }
        let said = StorageQueue::open(Config {
            poison: Some("jobs".into()),
            ..config()
        });
        let said = said.map(drop).expect_err("refused").to_string();
        assert!(
            said.starts_with("'jobs' cannot be its own poison queue"),
            "{said}"
        );
    }

    #[test]
    fn names_are_addresses() {
        let queue = StorageQueue::open(config()).expect("a queue");
        let base = "http://127.0.0.1:10001/devstoreaccount1";
        assert_eq!(queue.name(), format!("{base}/jobs"));
        assert_eq!(queue.poison_name(), format!("{base}/jobs-poison"));
    }

    #[test]
    fn names_and_urls_are_read() {
        for (text, queue) in [
            ("jobs", "jobs"),
            ("a-1-b", "a-1-b"),
            ("https://acct.queue.core.windows.net/jobs", "jobs"),
            ("https://acct.queue.core.windows.net/jobs/", "jobs"),
            ("http://127.0.0.1:10001/devstoreaccount1/jobs", "jobs"),
            (
                "https://acct.queue.core.windows.net/jobs?sig=s3cret",
                "jobs",
            ),
        ] {
            let target = Target::parse(text).expect(text);
            assert_eq!(target.queue(), queue);
            assert_eq!(target.url().is_some(), text.contains("://"));
            assert!(!format!("{target:?}").contains("s3cret"));
        }
    }

    #[test]
    fn names_and_urls_that_azure_would_refuse_are_refused() {
        let long = "x".repeat(64);
        for bad in [
            "",
            "ab",
            "Jobs",
            "jobs_1",
            "-jobs",
            "jobs-",
            "jo--bs",
            "jobs/messages",
            "jobs\nsecond line",
            &long,
            "https://acct.queue.core.windows.net/",
            "https://acct.queue.core.windows.net/jobs/messages",
            "https://acct.queue.core.windows.net/Jobs",
            "https://acct.queue.core.windows.net/jobs?comp=metadata",
            "https://u:p@acct.queue.core.windows.net/jobs",
            "https://acct.blob.core.windows.net/jobs",
            "http://127.0.0.1:10001/devstoreaccount1",
            "http://acct.queue.core.windows.net/jobs",
            "ftp://h.example/jobs",
            "http://[/x",
            "https:/acct.queue.core.windows.net/jobs?sig=s3cret",
        ] {
            let said = Target::parse(bad).expect_err(bad).to_string();
            assert!(!said.contains('\n') && !said.contains("s3cret"), "{said}");
        }
        assert!(Target::parse(&"x".repeat(63)).is_ok());
    }

    #[test]
    fn poison_queue_name_fits_the_limit() {
        let of = |name: &str| Target::parse(name).expect(name);
        assert_eq!(of("jobs").poison(None).as_deref(), Ok("jobs-poison"));
        assert_eq!(of("jobs").poison(Some("aside")).as_deref(), Ok("aside"));
        assert_eq!(of(&"x".repeat(56)).poison(None).map(|n| n.len()), Ok(63));
        let long = of(&"x".repeat(57));
        let said = long.poison(None).expect_err("too long").to_string();
        assert!(
            said.starts_with("the queue's name is 57 characters long"),
            "{said}"
        );
        assert!(said.contains("--poison-queue"), "{said}");
        assert!(long.poison(Some("aside")).is_ok());
        assert!(of("jobs").poison(Some("Aside")).is_err());
        let itself = of("jobs").poison(Some("jobs")).expect_err("itself");
        assert!(
            itself.to_string().contains("its own poison queue"),
            "{itself}"
        );
    }
}
