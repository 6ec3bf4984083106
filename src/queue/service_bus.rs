//! A queue that is an Azure Service Bus queue, a subscription, or the dead letters of one.
//!
//! Called by the driver of `work` through [`Queue`] and [`Lock`](super::Lock). Maps what the service
//! says to the five meanings of [`Failure`] and decides nothing.
//!
//! As the data goes: [`connection`] keeps the one connection, gives credit for as many messages as the
//! driver wants, and puts what comes into [`shared`], from where `take` hands it out; [`lock`] renews
//! and settles, and says how long a lock is. AMQP is spoken by [`amqp`] with its [`request_link`],
//! [`wire`] and [`error`] (the only ones that know the library), over [`stream`], which [`frame_scanner`]
//! reads along. [`tokens`] prove who we are.
//!
//! What must never happen here: an answer counts for a request that it does not name; a message counts
//! as settled that the service has not said to be; more messages are locked than there are free slots
//! for; a deadline is taken from a wall clock; a message is handed out whose lock may have begun long
//! ago.

mod amqp;
mod connection;
mod error;
mod frame_scanner;
mod lock;
mod request_link;
mod shared;
mod stream;
mod tokens;
mod wire;

pub use tokens::{CbsToken, CbsTokens, JWT, SAS, SasTokens};

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustls::ClientConfig;
use tokio::sync::{mpsc, oneshot};

use self::amqp::Connector;
use self::connection::{ConnectionTask, Instruction};
use self::error::BusError;
use self::shared::{Prefetch, SharedConnection};
use super::{Message, Missing, Queue};
use crate::azure::before;
use crate::clock::Instant;
use crate::core::Failure;
use crate::util::lock;

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
}

/// The queue as one worker takes from it.
pub struct ServiceBusQueue {
    name: String,
    shared: Arc<SharedConnection>,
    prefetch: Arc<Prefetch>,
    orders: mpsc::Sender<Instruction>,
    /// Begins with the first call that needs a connection: only then is there a runtime.
    connection_task: Mutex<Option<ConnectionTask>>,
}

impl ServiceBusQueue {
    /// Makes the queue; nothing is sent.
    #[must_use]
    pub fn open(config: Config) -> ServiceBusQueue {
        let shared = Arc::new(SharedConnection::new(config.lock_time, config.link_settle));
        let prefetch = Arc::new(Prefetch::default());
        let (orders, ordered) = mpsc::channel(4);
        let connection_task = ConnectionTask {
            audience: config.target.audience(),
            connector: Connector::new(config.target, config.max_body),
            tokens: config.tokens,
            shared: Arc::clone(&shared),
            prefetch: Arc::clone(&prefetch),
            orders: ordered,
        };
        ServiceBusQueue {
            name: config.name,
            shared,
            prefetch,
            orders,
            connection_task: Mutex::new(Some(connection_task)),
        }
    }

    fn begin(&self) {
        if let Some(task) = lock(&self.connection_task).take() {
            tokio::spawn(task.run());
        }
    }

    /// Has the connection task do something, and waits until it is done.
    async fn order(
        &self,
        give_up_at: Instant,
        order: impl FnOnce(oneshot::Sender<()>) -> Instruction,
    ) {
        if lock(&self.connection_task).is_some() {
            // It has not begun: there is nothing to stop.
            return;
        }
        let (done, waiting) = oneshot::channel();
        let ordered = async {
            if self.orders.send(order(done)).await.is_ok() {
                // A connection task that has ended has nothing left to do.
                let _ = waiting.await;
            }
        };
        before(give_up_at, ordered).await;
    }

    fn unreachable(&self, fault: &BusError) -> Failure {
        fault.doubt(&format!("cannot reach {}", self.name))
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

    fn delays(&self) -> bool {
        false
    }

    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing> {
        let shared = &self.shared;
        let failures = shared.failures();
        self.begin();
        tokio::select! {
            biased;
            up = shared.connection(None, give_up_at) => match up {
                Ok(_) => Ok(()),
                Err(fault) => Err(self.unreachable(&fault).into()),
            },
            // A failed attempt says more than our patience does.
            fault = shared.failing(failures) => Err(fault.at_first(&self.name)),
        }
    }

    async fn take(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure> {
        self.begin();
        let (prefetch, shared) = (&self.prefetch, &self.shared);
        // Only what fails from now on is the answer to this call.
        let failures = shared.failures();
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
                    fault = shared.failing(failures) => Err(fault),
                }
            };
            match before(give_up_at, woken).await {
                Some(Ok(())) => {}
                Some(Err(fault)) => return Err(self.unreachable(&fault)),
                None => {
                    return match shared.trouble() {
                        Some(fault) => Err(self.unreachable(&fault)),
                        None => Ok(Vec::new()),
                    };
                }
            }
        }
    }

    async fn stop(&self, give_up_at: Instant) {
        self.order(give_up_at, |done| Instruction::Stop(give_up_at, done))
            .await;
    }

    async fn close(&self, give_up_at: Instant) {
        self.order(give_up_at, |done| Instruction::Close(give_up_at, done))
            .await;
    }
}
