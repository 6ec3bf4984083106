//! Settings of a broker as a whole.

use std::time::Duration;

use super::access::Access;

/// Settings; the defaults are the real service's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Port on 127.0.0.1; 0 selects a free one.
    pub port: u16,
    /// Announced idle time-out; twice this silence ends a client.
    pub idle_time_out: Duration,
    /// Idle time after which a link is detached by force.
    pub idle_detach: Duration,
    /// Largest accepted frame, in bytes.
    pub max_frame_size: u32,
    /// Largest accepted message, in bytes.
    pub max_message_size: u64,
    /// Largest session state, in bytes: that of the standard tier.
    pub max_state_size: u64,
    /// Whether lock tokens are also the delivery annotation `x-opt-lock-token`. Without it they are
    /// only in the delivery tag, which reveals clients that do not swap its bytes.
    pub token_annotation: bool,
    /// Accepted tokens.
    pub access: Access,
    /// TLS from the first byte; `None`: plain TCP.
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
