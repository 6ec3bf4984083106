//! The record of a version as bytes: in the version's own file, and in the lock's path as the hint.
//!
//! ```text
//! trafficcop shared lock 1          which protocol is spoken here
//! {"version":41,"state":"held",…}   the record, one line of JSON
//! 9f3c…                             its check
//! ```
//! Called by `share`. The hint is padded to a fixed width: whoever rewrites it leaves nothing of
//! what stood there before. It must look like nothing of ours to a trafficcop that locks files by
//! the kernel (that one goes by `"token":` and a number, which never stands here), and must never
//! take bytes for a record that are not whole.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::once::TaskLog;
use crate::record::{Record, cut_longest};
use trafficcop_core::observed::{Claim, Version};
use trafficcop_core::util::check;

/// The first line of a lock's path, and of every record.
pub(crate) const FIRST_LINE: &[u8] = b"trafficcop shared lock 1\n";

/// The length of the hint, in bytes. A record is never longer. Two pages: one more than the results may take.
pub const WIDTH: usize = 8192;

/// What a version means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Its maker has control.
    Held,
    /// It has control, and will soon give it back.
    Draining,
    /// It has nothing any more.
    Released,
}

/// The record of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRecord {
    pub version: Version,
    pub(super) state: State,
    /// Whose tenure.
    pub(super) nonce: u128,
    pub(super) lease: Duration,
    /// Who and since when, the fencing token, and the results of tasks that are to be done once.
    pub record: Record,
    /// There were results that could not be read, and nobody has forgotten them yet.
    pub unread: bool,
}

/// How it is written.
#[derive(Serialize, Deserialize)]
struct Json {
    version: Version,
    state: State,
    // As text: JSON's numbers end at 53 bits for many who read it.
    nonce: String,
    lease_ms: u64,
    // The fencing token: the version that began the tenure. Not called "token", by which a trafficcop that
    // locks files by the kernel would know it for one of its own records.
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
    /// JSON in JSON: its own `"token":` does not look like one in here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    once: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unread: bool,
}

impl VersionRecord {
    /// What others' decisions depend on.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            nonce: self.nonce,
            lease: self.lease,
            released: self.state == State::Released,
        }
    }

    /// As bytes, at most [`WIDTH`]. Texts that are too long are cut, the longest first.
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
            // All of them: what was read (`reset` writes it again) can be longer anywhere than what we write.
            let cut = cut_longest([
                &mut line.command,
                &mut line.holder,
                &mut line.host,
                &mut line.since,
                &mut line.health,
                &mut line.doorbell,
            ]);
            if !cut {
                // Never in silence: a task of which nothing is known is done again.
                line.once.clear();
                line.unread = true;
            }
        }
    }

    /// As the hint: the same, with blanks up to the width.
    pub fn encode_hint(&self) -> Vec<u8> {
        padded(self.encode())
    }

    /// Reads what [`VersionRecord::encode`] wrote, whatever follows it; `None` if it is not that.
    pub fn decode(bytes: &[u8]) -> Option<VersionRecord> {
        // The check is over the text as it stands, before any of it is believed: a torn record can be good JSON.
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
                draining: line.state == State::Draining,
                health: line.health,
                bell: line.doorbell,
                once: once.unwrap_or_default(),
            },
        })
    }
}

/// The hint before there is any version.
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
            state: State::Held,
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
    fn a_record_comes_back_alone_and_as_a_hint() {
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
    fn whatever_is_torn_or_changed_is_no_record() {
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
    fn a_trafficcop_that_locks_by_the_kernel_takes_it_for_a_stranger_s() {
        use crate::file::record::{Content, decode_record};
        for bytes in [record(41).encode(), record(41).encode_hint(), first_hint()] {
            for end in [bytes.len(), bytes.len().min(2048), 30] {
                assert_eq!(decode_record(&bytes[..end]), Content::Foreign);
            }
        }
    }
}
