//! Record of a version as bytes: a version's file, the hint in the lock's path, the text of a helper's entry.
//!
//! ```text
//! trafficcop shared lock 1          which protocol is spoken here
//! {"version":41,"state":"held",…}   the record, one line of JSON
//! 9f3c…                             its check
//! ```
//! The hint is padded to a fixed width: a rewrite leaves nothing of the text before. A trafficcop that locks
//! files by the kernel must not take it for its own: that has `"token":` and a number, which never occurs here.
//! Bytes that are not whole must never count as a record.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::errors::fatal;
use crate::inspect::{BreakResult, LockState, LockStatus, ResetResult, Tasks, UNREADABLE};
use crate::once::TaskLog;
use crate::record::{Record, cut_longest};
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::{Claim, LONGEST_LEASE, Version};
use trafficcop_core::util::check;
use trafficcop_core::{Failure, HolderInfo};

/// First line of a lock's path, and of every record.
pub(crate) const FIRST_LINE: &[u8] = b"trafficcop shared lock 1\n";

/// Length of the hint in bytes; no record is longer. Two pages: the results may take one.
pub const WIDTH: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum VersionState {
    Held,
    Draining,
    Released,
}

/// Record of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRecord {
    pub version: Version,
    pub(super) state: VersionState,
    pub(super) nonce: u128,
    pub(super) lease: Duration,
    pub record: Record,
    /// Whether results were unreadable and no operator has forgotten them.
    pub unread: bool,
}

#[derive(Serialize, Deserialize)]
struct Json {
    version: Version,
    state: VersionState,
    // As text: many JSON readers keep 53 bits of a number.
    nonce: String,
    lease_ms: u64,
    // Fencing token: the version that began the tenure. "token" would mark a record of the kernel's locks.
    tenure: u64,
    holder: String,
    host: String,
    pid: u32,
    since: String,
    command: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    health: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    doorbell: String,
    /// JSON in JSON, which hides its `"token":`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    once: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unread: bool,
}

impl VersionRecord {
    /// Returns what others' decisions depend on.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            nonce: self.nonce,
            lease: self.lease,
            released: self.state == VersionState::Released,
        }
    }

    pub(super) fn new(
        version: Version,
        state: VersionState,
        (nonce, lease): (u128, Duration),
        record: Record,
        unread: bool,
    ) -> VersionRecord {
        VersionRecord {
            version,
            state,
            nonce,
            lease,
            record,
            unread,
        }
    }

    /// Whether an operator wrote it to break this tenure.
    pub(super) fn is_break_of(&self, ours: &Record) -> bool {
        // An operator's record repeats the tenure without its command. A take-over's number equals this one
        // only if a server forgot this tenure's versions.
        let theirs = &self.record;
        self.state == VersionState::Held
            && theirs.token == ours.token
            && theirs.command.is_empty()
            && (&theirs.host, theirs.pid, &theirs.since) == (&ours.host, ours.pid, &ours.since)
    }

    /// Returns the status with this version; `record` is `None` if unreadable.
    pub(super) fn status(
        name: String,
        lock: String,
        version: Version,
        record: Option<VersionRecord>,
    ) -> LockStatus {
        let unreadable = record.as_ref().is_some_and(|record| record.unread);
        let problem = match &record {
            None if version > 0 => Some(format!(
                "version {version} has no record that can be read: it is held for {} s from when it was seen",
                LONGEST_LEASE.as_secs()
            )),
            _ => unreadable.then(|| UNREADABLE.to_owned()),
        };
        let is_free = |record: &VersionRecord| record.state == VersionState::Released;
        LockStatus {
            name,
            lock,
            state: match version == 0 || record.as_ref().is_some_and(is_free) {
                true => LockState::Free,
                false => LockState::Held,
            },
            record: record.map(|record| record.record),
            problem,
            unreadable,
            tag: Some(version.to_string()),
            ..LockStatus::default()
        }
    }

    /// Returns the version that breaks the tenure `seen`, and how long others wait then.
    pub(super) fn broken(
        self,
        seen: &Record,
        period: Option<Duration>,
        by: &str,
    ) -> Result<(VersionRecord, Duration), BreakResult> {
        if self.state == VersionState::Released {
            return Err(BreakResult::Free);
        }
        if self.record.token != seen.token {
            return Err(BreakResult::Changed);
        }
        let after = period.unwrap_or(self.lease);
        let record = VersionRecord {
            version: self.version.saturating_add(1),
            state: match after.is_zero() {
                true => VersionState::Released,
                false => VersionState::Held,
            },
            // Not the holder's nonce: its next renewal must find that it lost.
            nonce: fresh_nonce(),
            lease: if after.is_zero() { self.lease } else { after },
            record: Record {
                holder: by.to_owned(),
                command: String::new(),
                draining: false,
                ..self.record
            },
            unread: self.unread,
        };
        Ok((record, after))
    }

    /// Returns the version after `read`, without the chosen results that were `shown`.
    pub(super) fn without(
        read: Option<VersionRecord>,
        lock: &str,
        tasks: &Tasks,
        shown: &TaskLog,
        force: bool,
    ) -> Result<Result<VersionRecord, ResetResult>, Failure> {
        // Without a readable record, an instance may hold it.
        let Some(mut free) = read.filter(|read| read.state == VersionState::Released) else {
            // A version with other results would end the holder's tenure.
            return match force {
                false => Ok(Err(ResetResult::Held)),
                true => Err(fatal(format!(
                    "{lock}: its holder has the results in memory, so they cannot be forgotten now: \
                     end the holder first"
                ))),
            };
        };
        let left = tasks.remaining_of(&free.record.once, free.unread, shown);
        Ok(left.map(|left| {
            free.record.once = left;
            VersionRecord {
                version: free.version.saturating_add(1),
                nonce: fresh_nonce(),
                unread: false,
                ..free
            }
        }))
    }

    /// Encodes in at most [`WIDTH`] bytes; cuts the longest texts first.
    pub fn encode(&self) -> Vec<u8> {
        let mut line = Json {
            version: self.version,
            state: self.state,
            nonce: format!("{:032x}", self.nonce),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            tenure: self.record.token,
            holder: self.record.holder.clone(),
            host: self.record.host.clone(),
            pid: self.record.pid,
            since: self.record.since.clone(),
            command: self.record.command.clone(),
            health: self.record.health.clone(),
            doorbell: self.record.bell.clone(),
            once: self.record.once.text(),
            unread: self.unread,
        };
        loop {
            let text = serde_json::to_string(&line).unwrap_or_default();
            let bytes = [
                FIRST_LINE,
                text.as_bytes(),
                b"\n",
                check(text.as_bytes()).as_bytes(),
                b"\n",
            ]
            .concat();
            if bytes.len() <= WIDTH {
                return bytes;
            }
            // `reset` writes again what it read, of any length.
            let cut = cut_longest([
                &mut line.command,
                &mut line.holder,
                &mut line.host,
                &mut line.since,
                &mut line.health,
                &mut line.doorbell,
            ]);
            if !cut {
                // Never silently: a task without a result is done again.
                line.once.clear();
                line.unread = true;
            }
        }
    }

    /// Encodes the hint, padded with blanks.
    pub fn encode_hint(&self) -> Vec<u8> {
        padded(self.encode())
    }

    /// Decodes the record at the beginning; `None` if there is none.
    pub fn decode(bytes: &[u8]) -> Option<VersionRecord> {
        // Before parsing: a torn record can be good JSON.
        let mut lines = bytes.strip_prefix(FIRST_LINE)?.split(|byte| *byte == b'\n');
        let (text, said) = (lines.next()?, lines.next()?);
        if check(text).as_bytes() != said {
            return None;
        }
        let line: Json = serde_json::from_slice(text).ok()?;
        let once = match line.once.as_str() {
            "" => Some(TaskLog::EMPTY),
            once => TaskLog::parse(once),
        };
        Some(VersionRecord {
            version: line.version,
            state: line.state,
            nonce: u128::from_str_radix(&line.nonce, 16).ok()?,
            lease: Duration::from_millis(line.lease_ms),
            unread: line.unread || once.is_none(),
            record: Record {
                token: line.tenure,
                holder: line.holder,
                host: line.host,
                pid: line.pid,
                since: line.since,
                command: line.command,
                draining: line.state == VersionState::Draining,
                health: line.health,
                bell: line.doorbell,
                once: once.unwrap_or_default(),
            },
        })
    }
}

// From the system's randomness: of two machines with one nonce, each would take the other's versions for its
// own. Seeded by clocks, machines that start alike draw the same.
pub(super) fn fresh_nonce() -> u128 {
    azure_core::Uuid::new_v4().as_u128()
}

pub(super) fn holder_info(record: Option<&VersionRecord>, due: Option<Instant>) -> HolderInfo {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let Some(record) = record else {
        return HolderInfo {
            expires: due,
            ..HolderInfo::default()
        };
    };
    HolderInfo {
        holder: some(&record.record.holder),
        token: Some(record.record.token),
        command: some(&record.record.command).map(Into::into),
        draining: record.state == VersionState::Draining,
        since: some(&record.record.since).map(Into::into),
        expires: due,
        bell: record.record.bell.parse().ok().map(Box::new),
        // A standby counts from the last renewal that it saw: looking less often, it would take over later.
        polls_as_ever: true,
        foreign: None,
    }
}

pub(super) fn first_hint() -> Vec<u8> {
    padded(FIRST_LINE.to_vec())
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(WIDTH - 1, b' ');
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: Version) -> VersionRecord {
        VersionRecord {
            version,
            state: VersionState::Held,
            nonce: 0xfeed,
            lease: Duration::from_secs(15),
            unread: false,
            record: Record {
                token: 7,
                holder: "web1-7".into(),
                host: "web1".into(),
                pid: 7,
                since: "2026-01-01T00:00:00Z".into(),
                command: "echo '\"token\": 5,'".into(),
                draining: false,
                health: "failing: it".into(),
                bell: "10.0.0.4:1 00".into(),
                once: TaskLog::parse(
                    r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}}]"#,
                )
                .expect("results"),
            },
        }
    }

    #[test]
    fn record_round_trips_alone_and_as_a_hint() {
        let record = record(u64::MAX);
        assert_eq!(
            VersionRecord::decode(&record.encode()),
            Some(record.clone())
        );
        let hint = record.encode_hint();
        assert_eq!(hint.len(), WIDTH);
        assert_eq!(VersionRecord::decode(&hint), Some(record));
        assert_eq!(VersionRecord::decode(&first_hint()), None);
    }

    #[test]
    fn texts_of_any_length_keep_the_width() {
        let mut long = record(1);
        long.record.holder = "é\u{1}".repeat(4000);
        long.record.command = "\"".repeat(5000);
        assert!(long.encode().len() <= WIDTH);
        assert_eq!(VersionRecord::decode(&long.encode()).unwrap().version, 1);
    }

    #[test]
    fn torn_or_changed_record_is_refused() {
        let (old, new) = (record(41).encode_hint(), record(42).encode_hint());
        for cut in 0..WIDTH {
            let torn = [&new[..cut], &old[cut..]].concat();
            let read = VersionRecord::decode(&torn).map(|record| record.version);
            assert!(matches!(read, None | Some(41 | 42)), "cut at {cut}");
            let read = VersionRecord::decode(&new[..cut]).map(|record| record.version);
            assert!(matches!(read, None | Some(42)), "cut to {cut}");
        }
        let text = record(1).encode();
        for at in FIRST_LINE.len()..text.len() - 18 {
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert_eq!(VersionRecord::decode(&changed), None, "at {at}");
        }
    }

    #[test]
    fn kernel_lock_takes_a_version_record_for_foreign() {
        use crate::file::record::{Content, decode_record};
        for bytes in [record(41).encode(), record(41).encode_hint(), first_hint()] {
            for end in [bytes.len(), bytes.len().min(2048), 30] {
                assert_eq!(decode_record(&bytes[..end]), Content::Foreign);
            }
        }
    }
}
