//! A stand-in for an Azure Service Bus namespace, for tests.
//!
//! **A test tool, not a broker:** it keeps everything in memory, listens on loopback only, and has
//! those parts of the real service that a client of queues and subscriptions can see: AMQP 1.0 with
//! SASL, `$cbs`, receive links with credit and drain, locks with expiry, delivery counts,
//! dead-letter queues, sessions with their locks and states, `$management` with renewing and
//! settling by lock token, sends, and refusals. It lacks: time to live, scheduled messages, rules
//! of subscriptions, transactions, duplicate detection, web sockets.
//!
//! Microsoft's clients for Python and JavaScript accept it (`clients/run.sh` shows that), and its
//! codec shares no line with any of them or with the client under test.
//!
//! ```no_run
//! use service_bus_stand_in::{Act, Broker, Fault, Message, On, QueueSettings, Settings};
//!
//! let broker = Broker::start(Settings::default())?;
//! broker.create("jobs", QueueSettings::default());
//! broker.put("jobs", Message::data(b"one"));
//! // The second renewal is done, but its answer is lost.
//! broker.fault(Fault::new(On::RenewLock, Act::Lose).at("jobs").after(1));
//! println!("{}", broker.connection_string());
//! # Ok::<(), std::io::Error>(())
//! ```

mod broker;
pub mod codec;

pub use broker::{
    Access, Act, Broker, Counts, Entry, Event, Fault, LOCK_LOST, MessageState, On, Outcome,
    QueueSettings, Settings, View, Waiting, Way,
};
#[cfg(feature = "tls")]
pub use broker::{Tls, TlsError};
pub use codec::{Guid, Message, Value};
