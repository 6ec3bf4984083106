//! A queue in Azure Service Bus: a queue, a subscription, or the dead letters of one.
//!
//! [`connection`] keeps the one connection, gives credit, and puts arriving messages into [`shared`], from
//! which `take` hands them out. [`lock`] renews and settles. If messages come in sessions, `take` accepts one,
//! and [`session`] has its messages, on a [`session_link`] of its own. Only [`amqp`], [`request_link`],
//! [`wire`] and [`error`] know the AMQP library. They use [`stream`], which [`frame_scanner`] reads along.
//!
//! Things that must never happen here:
//! - An answer counts for a request that it does not name.
//! - A message counts as settled before the service confirmed that.
//! - More messages are locked than there are free slots.
//! - A deadline comes from a wall clock.
//! - A message is handed out whose lock may have begun long ago.
//! - A key, a signature or a token is shown.

mod amqp;
mod connection;
#[cfg(feature = "entra")]
mod entra;
mod error;
pub mod frame_scanner;
mod lock;
mod request_link;
mod session;
mod session_link;
mod shared;
mod stream;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use rustls::ClientConfig;
use time::OffsetDateTime;
use tokio::sync::{mpsc, oneshot};
use url::form_urlencoded::byte_serialize;

use self::amqp::{Connection, Connector};
use self::connection::{ConnectionTask, Instruction};
use self::error::BusError;
use self::session::Accepted;
use self::shared::{Prefetch, SharedConnection};
use trafficcop_azure::before;
use trafficcop_azure::queue::{Message, Missing, Queue};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

// Time that the service may look for a session; a queue without sessions refuses at once.
const SESSION_PROBE: Duration = Duration::from_secs(1);

/// Address of the queue.
#[derive(Clone)]
pub struct Target {
    /// Host of the namespace, as its certificate names it.
    pub host: String,
    /// Port: 5671 with TLS, 5672 without.
    pub port: u16,
    /// Configuration for TLS from the first byte; `None` is plain TCP.
    pub tls: Option<Arc<ClientConfig>>,
    /// `QUEUE` or `TOPIC/Subscriptions/NAME`, perhaps with `/$DeadLetterQueue` behind it.
    pub entity: String,
}

impl Target {
    fn audience(&self) -> String {
        format!("sb://{}/{}", self.host, self.entity)
    }
}

/// Settings of a Service Bus queue.
#[derive(Clone)]
pub struct Config {
    /// Address of the queue.
    pub target: Target,
    /// Address for people, without a secret.
    pub name: String,
    /// Tokens that prove the identity.
    pub tokens: Arc<dyn CbsTokens>,
    /// Length of the queue's locks, if the user set it: then no clock is needed.
    pub lock_time: Option<Duration>,
    /// Largest accepted body, in bytes.
    pub max_body: usize,
    /// Whether to settle on the link if possible, instead of by `$management`.
    pub link_settle: bool,
    /// Whether its messages come in sessions.
    pub sessions: bool,
}

/// Queue as one worker takes from it.
pub struct ServiceBusQueue {
    name: String,
    shared: Arc<SharedConnection>,
    prefetch: Arc<Prefetch>,
    instructions: mpsc::Sender<Instruction>,
    sessions: Option<usize>,
    accepted: Mutex<Option<Accepted>>,
    // The first call that needs a connection starts it: only then there is a runtime.
    connection_task: Mutex<Option<ConnectionTask>>,
    answered: AtomicBool,
}

impl ServiceBusQueue {
    /// Makes the queue; sends nothing.
    #[must_use]
    pub fn open(config: Config) -> ServiceBusQueue {
        let shared = Arc::new(SharedConnection::new(config.lock_time, config.link_settle));
        let prefetch = Arc::new(Prefetch::default());
        // Room for a stop and a close.
        let (instructions, to_follow) = mpsc::channel(4);
        let connection_task = ConnectionTask {
            audience: config.target.audience(),
            connector: Connector::new(config.target, config.max_body, config.sessions),
            tokens: config.tokens,
            shared: Arc::clone(&shared),
            prefetch: Arc::clone(&prefetch),
            instructions: to_follow,
        };
        ServiceBusQueue {
            name: config.name,
            shared,
            prefetch,
            instructions,
            sessions: config.sessions.then_some(config.max_body),
            accepted: Mutex::new(None),
            connection_task: Mutex::new(Some(connection_task)),
            answered: AtomicBool::new(false),
        }
    }

    fn begin(&self) {
        if let Some(task) = lock(&self.connection_task).take() {
            tokio::spawn(task.run());
        }
    }

    async fn instruct(
        &self,
        give_up_at: Instant,
        instruction: impl FnOnce(oneshot::Sender<()>) -> Instruction,
    ) {
        if lock(&self.connection_task).is_some() {
            return;
        }
        let (done, waiting) = oneshot::channel();
        let followed = async {
            if self.instructions.send(instruction(done)).await.is_ok() {
                let _ = waiting.await;
            }
        };
        before(give_up_at, followed).await;
    }

    fn unreachable(&self, error: &BusError) -> Failure {
        // At first the service may refuse a new token: a worker must not exit for that.
        match self.answered.load(Ordering::Relaxed) {
            true => error.refusal_or_doubt(&self.name),
            false => error.doubt(&format!("cannot reach {}", self.name)),
        }
    }

    /// Checks that the queue has sessions, if configured: otherwise it refuses to give one. The session that it
    /// gives is the first to be taken.
    async fn look_for_sessions(&self, connection: Arc<Connection>) -> Result<(), Missing> {
        if self.sessions.is_none() {
            return Ok(());
        }
        let accepted = session::accept(connection, Instant::now() + SESSION_PROBE).await;
        let accepted = accepted.map_err(|error| error.at_first(&self.name, true))?;
        *lock(&self.accepted) = accepted;
        Ok(())
    }

    /// Dropping the future gives back what it may have got.
    async fn take_session(
        &self,
        max_body: usize,
        give_up_at: Instant,
    ) -> Result<Vec<Message>, Failure> {
        let shared = &self.shared;
        let found = lock(&self.accepted).take();
        let mut accepted = found.filter(|(connection, ..)| !connection.has_ended());
        let mut ended = None;
        while accepted.is_none() {
            let failures = shared.failures();
            let connection = tokio::select! {
                biased;
                up = shared.connection(ended.as_ref(), give_up_at) => up,
                error = shared.failing(failures) => Err(error),
            };
            let connection = connection.map_err(|error| self.unreachable(&error))?;
            match session::accept(Arc::clone(&connection), give_up_at).await {
                Ok(Some(session)) => accepted = Some(session),
                Ok(None) => return Ok(Vec::new()),
                // A connection that ended says nothing about the next one.
                Err(_) if connection.has_ended() && Instant::now() < give_up_at => {
                    ended = Some(connection);
                }
                Err(error) => return Err(self.unreachable(&error)),
            }
        }
        let message = match accepted {
            Some(accepted) => session::take(accepted, shared, max_body).await,
            None => None,
        };
        Ok(message.into_iter().collect())
    }

    async fn take_once(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure> {
        self.begin();
        if let Some(max_body) = self.sessions {
            return self.take_session(max_body, give_up_at).await;
        }
        let (prefetch, shared) = (&self.prefetch, &self.shared);
        // Only failures from now on answer this call.
        let failures = shared.failures();
        // At once: with more free slots, credit is added during the wait.
        prefetch.want(most);
        loop {
            let filled = prefetch.filled.notified();
            // Await nothing from here on: the messages could be dropped there.
            let messages = prefetch.hand_out(Instant::now());
            if !messages.is_empty() {
                return Ok(messages);
            }
            let woken = async {
                tokio::select! {
                    biased;
                    () = filled => Ok(()),
                    error = shared.failing(failures) => Err(error),
                }
            };
            let failed = match before(give_up_at, woken).await {
                Some(Ok(())) => continue,
                Some(Err(error)) => Some(error),
                // An empty queue and an unreachable one are equally silent.
                None => shared.error(),
            };
            return match failed {
                Some(error) => {
                    // The caller comes again later. Messages must not lie here until then while their locks run
                    // out.
                    prefetch.want(0);
                    Err(self.unreachable(&error))
                }
                None => Ok(Vec::new()),
            };
        }
    }
}

#[async_trait]
impl Queue for ServiceBusQueue {
    fn name(&self) -> &str {
        &self.name
    }

    fn lock_time(&self) -> Duration {
        self.shared.lock_duration.at_first()
    }

    fn waits(&self) -> bool {
        true
    }

    // The service has no delay: the lock keeps a message away.
    fn delays(&self) -> bool {
        false
    }

    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing> {
        let shared = &self.shared;
        let failures = shared.failures();
        self.begin();
        tokio::select! {
            biased;
            // The earlier attempt may just have failed.
            up = shared.connection(None, give_up_at) => match up {
                Ok(connection) => self.look_for_sessions(connection).await,
                Err(error) => Err(self.unreachable(&error).into()),
            },
            // The error of an attempt tells more than a timeout.
            error = shared.failing(failures) => {
                Err(error.at_first(&self.name, self.sessions.is_some()))
            }
        }
    }

    async fn take(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure> {
        let taken = self.take_once(most, give_up_at).await;
        self.answered.fetch_or(taken.is_ok(), Ordering::Relaxed);
        taken
    }

    fn is_deleted(&self) -> bool {
        let error = self.shared.error();
        error.is_some_and(|error| error.is_not_found())
    }

    async fn stop(&self, give_up_at: Instant) {
        drop(lock(&self.accepted).take());
        self.instruct(give_up_at, |done| Instruction::Stop(give_up_at, done))
            .await;
    }

    async fn close(&self, give_up_at: Instant) {
        self.instruct(give_up_at, |done| Instruction::Close(give_up_at, done))
            .await;
    }
}

// Renewed after 80 %: so the service may be away for ten minutes.
const LIFE: Duration = Duration::from_secs(3600);

/// Name of a shared access signature at `$cbs`.
pub const SAS: &str = "servicebus.windows.net:sastoken";
/// Name of an Entra ID token at `$cbs`.
pub const JWT: &str = "jwt";

/// Token as `$cbs` takes it.
#[derive(Clone, Debug)]
pub struct CbsToken {
    /// [`SAS`] or [`JWT`].
    pub kind: &'static str,
    /// The token itself: a secret.
    pub token: Secret,
    /// Time until which it is valid, as far as its maker knows.
    pub good_until: Instant,
}

/// Maker of tokens.
#[async_trait]
pub trait CbsTokens: Send + Sync {
    /// Returns a token for this audience (`sb://HOST/ENTITY`), under a time limit of its own.
    ///
    /// # Errors
    /// The reason why there is none; `Fatal` if there will never be one.
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure>;

    /// Notes that the service refused this token, so that a cache makes another.
    fn refused(&self, _token: &CbsToken) {}
}

/// Shared access signatures.
#[derive(Clone, Debug)]
pub enum SasTokens {
    /// Made from a key.
    Key {
        /// Name of the key (`SharedAccessKeyName`).
        name: String,
        /// Key (`SharedAccessKey`), as it is written, not decoded.
        key: Secret,
    },
    /// Ready-made (`SharedAccessSignature`): valid for as long as its maker chose.
    Signature(Secret),
}

#[async_trait]
impl CbsTokens for SasTokens {
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure> {
        let (now, date) = (Instant::now(), OffsetDateTime::now_utc().unix_timestamp());
        let (token, left) = match self {
            SasTokens::Key { name, key } => {
                let expiry = date.saturating_add(LIFE.as_secs() as i64);
                (sign(audience, expiry, name, key)?, LIFE)
            }
            SasTokens::Signature(text) => {
                // The service judges one without an end.
                let expiry = expiry(text.secret()).unwrap_or(i64::MAX);
                let left = expiry.saturating_sub(date).clamp(0, i64::from(u32::MAX));
                (text.clone(), Duration::from_secs(left as u64))
            }
        };
        Ok(CbsToken {
            kind: SAS,
            token,
            good_until: now + left,
        })
    }
}

fn sign(audience: &str, expiry: i64, name: &str, key: &Secret) -> Result<Secret, Failure> {
    let resource: String = byte_serialize(audience.as_bytes()).collect();
    // The library takes keys in base64, and this one counts as it is written.
    let key = Secret::new(azure_core::base64::encode(key.secret()));
    let signature =
        hmac_sha256(&format!("{resource}\n{expiry}"), &key).map_err(|why| Failure::Fatal {
            why: format!("the shared access key cannot sign: {why}"),
            denied: false,
        })?;
    let signature: String = byte_serialize(signature.as_bytes()).collect();
    let name: String = byte_serialize(name.as_bytes()).collect();
    Ok(Secret::new(format!(
        "SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"
    )))
}

fn expiry(text: &str) -> Option<i64> {
    let fields = text.split_once(' ').map_or(text, |(_, fields)| fields);
    fields
        .split('&')
        .find_map(|field| field.strip_prefix("se="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_equals_that_of_openssl() {
        // printf 'sb%%3A%%2F%%2Flocalhost%%2Fjobs\n1900000000' |
        //     openssl dgst -sha256 -hmac c3RhbmQtaW4ga2V5IG9mIG5vIHdvcnRo -binary | base64
        let key = Secret::new("c3RhbmQtaW4ga2V5IG9mIG5vIHdvcnRo");
        let token = sign("sb://localhost/jobs", 1_900_000_000, "a key", &key).expect("signed");
        assert_eq!(
            token.secret(),
            "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fjobs&\
             sig=RaW79Mr2%2BpFtem0iPsv6pLtMw78HCspgoAHaJO19Zi8%3D&se=1900000000&\
             skn=a+key"
        );
    }

    #[tokio::test]
    async fn tokens_last_until_their_expiry() {
        let now = Instant::now();
        let ours = SasTokens::Key {
            name: "n".into(),
            key: Secret::new("k"),
        };
        let token = ours.token("sb://h/q").await.expect("a token");
        assert_eq!(token.kind, SAS);
        assert!(token.good_until >= now + LIFE);
        let soon = OffsetDateTime::now_utc().unix_timestamp() + 100;
        for (text, least, most) in [
            (
                format!("SharedAccessSignature sr=x&sig=y&se={soon}&skn=z"),
                90,
                101,
            ),
            ("SharedAccessSignature sr=x&sig=y&se=1&skn=z".into(), 0, 1),
            (
                "SharedAccessSignature sr=x&sig=y&skn=z".into(),
                1 << 31,
                u64::MAX,
            ),
        ] {
            let ready = SasTokens::Signature(Secret::new(text.clone()));
            let token = ready.token("sb://h/q").await.expect("a token");
            let left = token.good_until.since(now).as_secs();
            assert!((least..=most).contains(&left), "{text}: {left}");
            assert_eq!(token.token.secret(), text);
        }
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let key = SasTokens::Key {
            name: "name".into(),
            key: Secret::new("s3cret"),
        };
        let ready = SasTokens::Signature(Secret::new("s3cret"));
        let token = CbsToken {
            kind: SAS,
            token: Secret::new("s3cret"),
            good_until: Instant::now(),
        };
        assert!(!format!("{key:?} {ready:?} {token:?}").contains("s3cret"));
    }
}
