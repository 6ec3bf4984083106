//! Record in the lock file: one line of JSON, padded to a fixed width, the token first.
//!
//! Every record replaces the one before it in one write, inside one page: torn, it shows the old token or the
//! new one.
//!
//! A damaged record must not make the token go back: any number readable behind "token" counts. Without one,
//! the wall clock does: it is greater than any number of tenures. Other content is refused: `--file ./job.sh`
//! must not destroy a script.

use crate::record::{Record, cut_longest};
use crate::version_record::FIRST_LINE;

/// Length of a record with its newline, in bytes: within a page, which a disk writes whole.
pub const WIDTH: usize = 2048;
// Length of a file without results, at most.
pub(super) const READ_LIMIT: usize = 4096;
const OPENING: &[u8] = b"{\"token\":";
// Width of every token's field: a torn write shows no mix of two numbers.
const DIGITS: usize = 20;

/// Content of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// No record yet.
    Empty,
    /// A record.
    Record(Record),
    /// Rest of a record, with the greatest token in it.
    Damaged(Option<u64>),
    /// Hint of a [chain of versions](crate::shared_file).
    Shared,
    /// Content of another program.
    Foreign,
}

impl Content {
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Content::Record(record) => Some(record.token),
            Content::Damaged(token) => *token,
            Content::Empty | Content::Shared | Content::Foreign => None,
        }
    }
}

/// Encodes the record in [`WIDTH`] bytes. Cuts texts that are too long, the longest first.
pub fn encode(record: &Record) -> Vec<u8> {
    let mut record = record.clone();
    loop {
        let mut bytes = serde_json::to_vec(&record).unwrap_or_default();
        let indent = DIGITS.saturating_sub(record.token.to_string().len());
        if bytes.len() + indent < WIDTH {
            bytes.splice(
                OPENING.len()..OPENING.len(),
                std::iter::repeat_n(b' ', indent),
            );
            bytes.resize(WIDTH - 1, b' ');
            bytes.push(b'\n');
            return bytes;
        }
        // All texts: one that was read can be longer than what trafficcop writes.
        cut_longest([
            &mut record.command,
            &mut record.holder,
            &mut record.host,
            &mut record.since,
            &mut record.health,
            &mut record.bell,
        ]);
    }
}

/// Whether the bytes were never written, or are lost.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    let blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    bytes.iter().all(blank)
}

/// Classifies the content of a lock file.
pub fn decode(bytes: &[u8]) -> Content {
    if bytes.starts_with(FIRST_LINE) {
        return Content::Shared;
    }
    decode_record(bytes)
}

/// Classifies content as versions without shared locks did: to them a hint must be another program's file.
pub fn decode_record(bytes: &[u8]) -> Content {
    if bytes.is_empty() {
        return Content::Empty;
    }
    if is_blank(bytes) {
        return Content::Damaged(None);
    }
    let value = serde_json::from_slice::<serde_json::Value>(bytes);
    if let Ok(record) = value.and_then(serde_json::from_value) {
        return Content::Record(record);
    }
    let token = greatest_token(bytes);
    if begins_like_a_record(bytes) || (bytes[0] == 0 && token.is_some()) {
        return Content::Damaged(token);
    }
    Content::Foreign
}

/// Whether the bytes begin like a record; a disk may show zeros for some. Other JSON with a token has no field
/// of this width.
fn begins_like_a_record(bytes: &[u8]) -> bool {
    let (opening, field) = bytes.split_at(OPENING.len().min(bytes.len()));
    opening.iter().zip(OPENING).all(|(byte, ours)| byte == ours)
        && field
            .iter()
            .take(DIGITS)
            .all(|byte| matches!(byte, 0 | b' ' | b'0'..=b'9'))
}

/// Finds the greatest complete number behind `"token"` and a colon.
fn greatest_token(bytes: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"token\"";
    bytes
        .windows(KEY.len())
        .enumerate()
        .filter(|(_, window)| *window == KEY)
        .filter_map(|(at, _)| {
            let rest = bytes[at + KEY.len()..].trim_ascii_start();
            let digits = rest.strip_prefix(b":")?.trim_ascii_start();
            let end = digits.iter().take_while(|b| b.is_ascii_digit()).count();
            // Cut off, 1007 would be 10: a number counts only with a character behind it.
            matches!(digits.get(end)?, b',' | b'}' | b' ').then_some(())?;
            std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(token: u64) -> Record {
        Record {
            token,
            holder: "a".into(),
            host: "h".into(),
            pid: 7,
            since: "2026-01-01T00:00:00Z".into(),
            command: "./job".into(),
            ..Record::default()
        }
    }

    #[test]
    fn event_log_is_not_taken_for_a_torn_record() {
        let line = r#"{"v":1,"time":"2026-01-01T00:00:00Z","event":"acquired","token":7}"#;
        let log = format!("{line}\n{line}\n");
        assert_eq!(decode(log.as_bytes()), Content::Foreign);
    }

    #[test]
    fn record_round_trips_at_its_fixed_width() {
        let bytes = encode(&record(41));
        assert_eq!(bytes.len(), WIDTH);
        assert!(bytes.starts_with(b"{\"token\":                  41,") && bytes.ends_with(b" \n"));
        assert_eq!(decode(&bytes), Content::Record(record(41)));
    }

    #[test]
    fn texts_of_any_length_keep_the_width_and_the_token() {
        let mut long = record(u64::MAX - 1);
        long.holder = "é".repeat(4000);
        long.command = "\u{1}".repeat(256);
        long.host = "x".repeat(300);
        let bytes = encode(&long);
        assert_eq!(bytes.len(), WIDTH);
        let Content::Record(back) = decode(&bytes) else {
            panic!("not a record");
        };
        assert_eq!(back.token, u64::MAX - 1);
        assert!(!back.holder.is_empty() && long.holder.starts_with(&back.holder));
    }

    #[test]
    fn record_with_other_long_texts_is_still_written() {
        let mut long = record(41);
        long.since = "x".repeat(3000);
        long.bell = "y".repeat(3000);
        assert!(
            matches!(decode(&encode(&long)), Content::Record(back) if back.token == 41 && back.pid == 7)
        );
    }

    #[test]
    fn a_record_cut_or_torn_at_any_byte_never_shows_a_smaller_token() {
        let old = encode(&record(99));
        let new = encode(&record(100));
        for cut in 0..WIDTH {
            let torn = [&new[..cut], &old[cut..]].concat();
            match decode(&torn) {
                Content::Record(record) => assert!(record.token >= 99, "cut at {cut}"),
                Content::Damaged(Some(token)) => assert!(token >= 99, "cut at {cut}"),
                other => panic!("cut at {cut}: {other:?}"),
            }
            match decode(&new[..cut]) {
                Content::Empty => assert_eq!(cut, 0),
                Content::Damaged(token) => assert!(token.is_none_or(|t| t == 100), "{cut}"),
                Content::Record(record) => assert_eq!(record.token, 100),
                Content::Foreign | Content::Shared => panic!("cut to {cut}"),
            }
        }
    }

    #[test]
    fn other_json_with_a_token_is_foreign_and_a_torn_record_is_damaged() {
        for foreign in [
            "#!/bin/sh\nexit 0\n",
            "root:x:0:0:root:/root:/bin/sh\n",
            "{\"name\":\"x\"}",
            "{\"token\":\"secret\"}",
            "{\"token\": 7, \"name\": \"app\"}",
            "{\"token\":7,\"name\":\"app\"}\n{\"token\":8,\"name\":\"app\"}\n",
            "[database]\n\"token\": 7, the rest\n",
            "4242\n",
            "\u{7f}ELF",
        ] {
            assert_eq!(decode(foreign.as_bytes()), Content::Foreign, "{foreign}");
        }
        assert_eq!(decode(b""), Content::Empty);
        assert_eq!(decode(&[0; 512]), Content::Damaged(None));
        assert_eq!(decode(b"{\"tok"), Content::Damaged(None));
        assert_eq!(decode(b"{\"token\":\0\0\0"), Content::Damaged(None));
        assert_eq!(
            decode(b"\0\0\"token\": 7,\"holder\"{\"token\":12,"),
            Content::Damaged(Some(12))
        );
    }
}
