//! The record a holder leaves with its lock, for people and for standbys: who, where, since when.
//!
//! The file store writes it as one line of JSON, the blob store as metadata. Nothing in it is
//! ever used for a decision about safety, but for the fencing token.

use serde::{Deserialize, Serialize};

use super::once::TaskLog;
use trafficcop_core::Bell;
use trafficcop_core::util::wall_clock;

/// The longest command text in a record, in bytes.
pub const COMMAND_LIMIT: usize = 256;

/// Who competes: the part of the record that is the same for all tenures of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How the instance calls itself (`--identity`; by default `HOST-PID`).
    pub identity: String,
    /// The machine's name.
    pub host: String,
    /// The supervisor's process id.
    pub pid: u32,
    /// The command, shell-quoted, at most [`COMMAND_LIMIT`] bytes.
    pub command: String,
    /// Where it rings when control changes, if it does.
    pub bell: Option<Bell>,
}

/// What stands with the lock.
///
/// Reading demands every field that is always written: any other JSON is not a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The fencing token of the latest tenure; the next one's is greater.
    pub token: u64,
    /// The identity of the holder, or of the last one.
    pub holder: String,
    /// The machine of the holder.
    pub host: String,
    /// The process id of the holder's supervisor.
    pub pid: u32,
    /// When the tenure began, by the holder's wall clock (RFC 3339, UTC).
    pub since: String,
    /// What the holder runs.
    pub command: String,
    /// The holder has begun to drain.
    pub draining: bool,
    /// What is wrong with the holder's command: `hung: …` or `failing: …`; empty where nothing is, or nobody
    /// asks it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
    /// Where the holder rings when control changes ([`Bell`] as text); empty where it does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bell: String,
    /// What is known of tasks that are to be done once. Each store keeps it in its own way.
    #[serde(skip)]
    pub once: TaskLog,
}

impl Record {
    /// A record that tells nothing but the latest token.
    #[must_use]
    pub fn of_token(token: u64) -> Record {
        Record {
            token,
            ..Record::default()
        }
    }

    /// The record of a tenure that begins now.
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
    /// What the holder is at.
    pub(super) fn tell(&mut self, drains: bool, health: String) {
        // For good: what is written later says so, too.
        self.draining |= drains;
        self.health = health;
    }
}

/// Makes room: cuts the longest of these texts by a quarter; `false` if nothing is left of any.
// By a quarter each time: control characters take six bytes in JSON, so the length cannot be told from the
// text's.
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
