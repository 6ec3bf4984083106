//! A queue that is an Azure Service Bus queue, a subscription, or the dead letters of one.
//!
//! Called by the driver of `work` through [`Queue`] and [`Lock`](trafficcop_azure::queue::Lock). Maps what the service
//! says to the five meanings of [`Failure`] and decides nothing.
//!
//! As the data goes: [`connection`] keeps the one connection, gives credit for as many messages as the
//! driver wants, and puts what comes into [`shared`], from where `take` hands it out; [`lock`] renews
//! and settles, and says how long a lock is. Where messages come in sessions, `take` accepts one on that
//! connection, and [`session`] has its messages, on a [`session_link`] of its own. AMQP is spoken by
//! [`amqp`] with its [`request_link`], [`wire`] and [`error`] (the only ones that know the library), over
//! [`stream`], which [`frame_scanner`] reads along. [`CbsTokens`] prove who we are: shared access
//! signatures here, Entra's tokens by whoever opens the queue.
//!
//! What must never happen here: an answer counts for a request that it does not name; a message counts
//! as settled that the service has not said to be; more messages are locked than there are free slots
//! for; a deadline is taken from a wall clock; a message is handed out whose lock may have begun long
//! ago; a key, a signature or a token is shown.

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

// For how long a queue is asked for a session to find out whether it has any: it refuses at once if not.
const LOOK: Duration = Duration::from_secs(1);

/// Where the queue is.
#[derive(Clone)]
pub struct Target {
    /// The namespace's host, as its certificate names it.
    pub host: String,
    /// The port: 5671 with TLS, 5672 without.
    pub port: u16,
    /// TLS from the first byte; plain TCP without it.
    pub tls: Option<Arc<ClientConfig>>,
    /// `QUEUE` or `TOPIC/Subscriptions/NAME`, with `/$DeadLetterQueue` behind it for the dead letters.
    pub entity: String,
}

impl Target {
    /// What tokens are for.
    fn audience(&self) -> String {
        format!("sb://{}/{}", self.host, self.entity)
    }
}

/// What a Service Bus queue is made of.
#[derive(Clone)]
pub struct Config {
    /// Where it is.
    pub target: Target,
    /// Its address for people, without a secret.
    pub name: String,
    /// What proves who we are.
    pub tokens: Arc<dyn CbsTokens>,
    /// For how long the queue locks a message, if the user says so: then no clock is believed.
    pub lock_time: Option<Duration>,
    /// The largest body that is handed over, in bytes.
    pub max_body: usize,
    /// Settle by dispositions on the link wherever that can be, instead of by `$management`.
    pub link_settle: bool,
    /// Its messages come in sessions.
    pub sessions: bool,
}

/// The queue as one worker takes from it.
pub struct ServiceBusQueue {
    name: String,
    shared: Arc<SharedConnection>,
    prefetch: Arc<Prefetch>,
    instructions: mpsc::Sender<Instruction>,
    /// Its messages come in sessions, and bodies may be so large.
    sessions: Option<usize>,
    /// The session that was given to us when the queue was looked at.
    accepted: Mutex<Option<Accepted>>,
    // Begins with the first call that needs a connection: only then is there a runtime.
    connection_task: Mutex<Option<ConnectionTask>>,
    /// A call to take was answered.
    answered: AtomicBool,
}

impl ServiceBusQueue {
    /// Makes the queue; nothing is sent.
    #[must_use]
    pub fn open(config: Config) -> ServiceBusQueue {
        let shared = Arc::new(SharedConnection::new(config.lock_time, config.link_settle));
        let prefetch = Arc::new(Prefetch::default());
        // More than can ever wait: a stop and a close.
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

    /// Has the connection task do something, and waits until it is done.
    async fn instruct(
        &self,
        give_up_at: Instant,
        instruction: impl FnOnce(oneshot::Sender<()>) -> Instruction,
    ) {
        if lock(&self.connection_task).is_some() {
            // It has not begun: there is nothing to stop.
            return;
        }
        let (done, waiting) = oneshot::channel();
        let followed = async {
            if self.instructions.send(instruction(done)).await.is_ok() {
                // A connection task that has ended has nothing left to do.
                let _ = waiting.await;
            }
        };
        before(give_up_at, followed).await;
    }

    fn unreachable(&self, error: &BusError) -> Failure {
        // At first a token that was just replaced may be refused, and a worker would leave at once for it.
        match self.answered.load(Ordering::Relaxed) {
            true => error.refusal_or_doubt(&self.name),
            false => error.doubt(&format!("cannot reach {}", self.name)),
        }
    }

    /// Whether the queue is what was said: one with sessions refuses others, and one without refuses who
    /// asks for one. A session that is given to us meanwhile is the first to be taken.
    async fn look_for_sessions(&self, connection: Arc<Connection>) -> Result<(), Missing> {
        if self.sessions.is_none() {
            return Ok(());
        }
        let accepted = session::accept(connection, Instant::now() + LOOK).await;
        let accepted = accepted.map_err(|error| error.at_first(&self.name, true))?;
        *lock(&self.accepted) = accepted;
        Ok(())
    }

    /// The next session, by its first message. Dropped, it gives back what it may have got.
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
                // One that ended while it waited says nothing of the next one.
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
        // Only what fails from now on is the answer to this call.
        let failures = shared.failures();
        // At once: where there are more free slots than before, credit is added while we wait.
        prefetch.want(most);
        loop {
            let filled = prefetch.filled.notified();
            // Nothing is awaited between here and the caller: it could be dropped there.
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
                // An empty queue and one out of reach are equally silent: only the connection tells
                // them apart.
                None => shared.error(),
            };
            return match failed {
                Some(error) => {
                    // Whoever asked comes again after a while. A connection that comes before is not to have
                    // messages sent that lie here for nobody while their locks run out.
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

    // Credit is a request that waits: the service sends a message as soon as there is one.
    fn waits(&self) -> bool {
        true
    }

    // The service abandons at once or not at all: its lock is what keeps a message away.
    fn delays(&self) -> bool {
        false
    }

    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing> {
        let shared = &self.shared;
        let failures = shared.failures();
        self.begin();
        tokio::select! {
            biased;
            // A connection counts before a failure: the attempt before it may just have failed.
            up = shared.connection(None, give_up_at) => match up {
                Ok(connection) => self.look_for_sessions(connection).await,
                Err(error) => Err(self.unreachable(&error).into()),
            },
            // A failed attempt says more than our patience does.
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
        // Dropped, its link ends.
        drop(lock(&self.accepted).take());
        self.instruct(give_up_at, |done| Instruction::Stop(give_up_at, done))
            .await;
    }

    async fn close(&self, give_up_at: Instant) {
        self.instruct(give_up_at, |done| Instruction::Close(give_up_at, done))
            .await;
    }
}

// A new one is sent after 80 % of it: the service may be away for ten minutes meanwhile.
const LIFE: Duration = Duration::from_secs(3600);

/// What `$cbs` calls a shared access signature.
pub const SAS: &str = "servicebus.windows.net:sastoken";
/// What `$cbs` calls a token of Entra ID.
pub const JWT: &str = "jwt";

/// A token as `$cbs` takes it.
#[derive(Clone, Debug)]
pub struct CbsToken {
    /// [`SAS`] or [`JWT`].
    pub kind: &'static str,
    /// The token itself: a secret.
    pub token: Secret,
    /// Until when it is good, as far as its maker knows.
    pub good_until: Instant,
}

/// Who makes tokens.
#[async_trait]
pub trait CbsTokens: Send + Sync {
    /// A token for this audience (`sb://HOST/ENTITY`), under a time limit of its own.
    ///
    /// # Errors
    /// Why there is none; `Fatal` if there will never be one.
    async fn token(&self, audience: &str) -> Result<CbsToken, Failure>;

    /// The service did not take this one: whoever keeps tokens is to make another. By default nothing is done.
    fn refused(&self, _token: &CbsToken) {}
}

/// Shared access signatures.
#[derive(Clone, Debug)]
pub enum SasTokens {
    /// Made from a key.
    Key {
        /// The key's name (`SharedAccessKeyName`).
        name: String,
        /// The key (`SharedAccessKey`), as it is written: its text is the key, not what base64
        /// would make of it.
        key: Secret,
    },
    /// Ready-made (`SharedAccessSignature`): good for as long as its maker meant.
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
                // One that does not say when it ends is for the service to judge.
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

/// The signature for `audience` that ends at `expiry`, in seconds since 1970.
fn sign(audience: &str, expiry: i64, name: &str, key: &Secret) -> Result<Secret, Failure> {
    let resource: String = byte_serialize(audience.as_bytes()).collect();
    // The library takes its keys in base64, and this one is meant as it is written.
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

/// When a ready-made signature ends, in seconds since 1970.
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
    fn a_signature_is_what_another_implementation_computes() {
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
    async fn tokens_last_as_long_as_they_say() {
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
    fn nothing_shows_a_secret() {
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
