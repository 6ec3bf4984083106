//! Record that a holder leaves with its lock, for people and standbys.
//!
//! Only its fencing token ever decides about safety.

use serde::{Deserialize, Serialize};

use super::once::TaskLog;
use trafficcop_core::Bell;
use trafficcop_core::util::wall_clock;

/// Longest command in a record, in bytes.
pub const COMMAND_LIMIT: usize = 256;

/// Part of the record that is the same for all tenures of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name (`--identity`; by default `HOST-PID`).
    pub identity: String,
    /// Name of the machine.
    pub host: String,
    /// Process id of the supervisor.
    pub pid: u32,
    /// Command, shell-quoted.
    pub command: String,
    /// Doorbell that rings when control changes.
    pub bell: Option<Bell>,
}

/// Record of a lock's holder, or of its last one.
///
/// Reading demands every field that is always written: other JSON is not a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Fencing token; the next tenure's is greater.
    pub token: u64,
    /// Holder.
    pub holder: String,
    /// Machine.
    pub host: String,
    /// Process id of the supervisor.
    pub pid: u32,
    /// Start of the tenure, by the holder's clock (RFC 3339, UTC).
    pub since: String,
    /// Command.
    pub command: String,
    /// Whether the holder has begun to drain.
    pub draining: bool,
    /// Problem of its command: `hung: …` or `failing: …`; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
    /// Doorbell ([`Bell`] as text), or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bell: String,
    /// Results, kept in each store's own way.
    #[serde(skip)]
    pub once: TaskLog,
}

impl Record {
    /// Returns a record with the token alone.
    #[must_use]
    pub fn of_token(token: u64) -> Record {
        Record {
            token,
            ..Record::default()
        }
    }

    /// Returns the record of a tenure that begins now.
    #[must_use]
    pub fn begun(candidate: &Candidate, token: u64) -> Record {
        Record {
            token,
            holder: candidate.identity.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            since: wall_clock(),
            command: candidate.command.clone(),
            draining: false,
            health: String::new(),
            bell: candidate
                .bell
                .map(|bell| bell.to_string())
                .unwrap_or_default(),
            once: TaskLog::EMPTY,
        }
    }
}

impl Record {
    pub(super) fn tell(&mut self, drains: bool, health: String) {
        // A later write still reports the drain.
        self.draining |= drains;
        self.health = health;
    }
}

/// Cuts the longest text by a quarter; `false` if all are empty.
// A control character takes six bytes in JSON, so lengths do not tell how much to cut.
pub(super) fn cut_longest<const N: usize>(texts: [&mut String; N]) -> bool {
    let longest = texts.into_iter().max_by_key(|text| text.len());
    let Some(text) = longest.filter(|text| !text.is_empty()) else {
        return false;
    };
    let mut end = text.len() * 3 / 4;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    true
}
