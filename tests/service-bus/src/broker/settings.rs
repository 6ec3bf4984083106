//! How a broker behaves as a whole; queues have their own settings.

use std::time::Duration;

use super::access::Access;

/// What the real service has, unless said otherwise.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port on 127.0.0.1; 0 takes one that is free.
    pub port: u16,
    /// After how much silence a client is given up is twice this; it is announced as it is here.
    pub idle_time_out: Duration,
    /// After how long without use a link is detached by force.
    pub idle_detach: Duration,
    /// The largest frame taken, in bytes.
    pub max_frame_size: u32,
    /// The largest message taken, in bytes.
    pub max_message_size: u64,
    /// The largest state of a session, in bytes: that of the standard tier.
    pub max_state_size: u64,
    /// Lock tokens are also sent as the delivery annotation `x-opt-lock-token`. Without it they are
    /// in the delivery tag only, which finds clients that do not swap its bytes.
    pub token_annotation: bool,
    /// Which tokens are taken.
    pub access: Access,
    /// TLS from the first byte; plain TCP without it.
    #[cfg(feature = "tls")]
    pub tls: Option<super::Tls>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            port: 0,
            idle_time_out: Duration::from_secs(120),
            idle_detach: Duration::from_secs(600),
            max_frame_size: 65536,
            max_message_size: 1024 * 1024,
            max_state_size: 256 * 1024,
            token_annotation: false,
            access: Access::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}
