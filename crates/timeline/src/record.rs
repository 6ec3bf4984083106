//! Format of the event log. The man page is made from these lists.
//!
//! A field's name or meaning never changes; readers ignore fields that they do not know.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use trafficcop_core::util::documented;

/// Version of the format, in each line.
pub const VERSION: u32 = 1;

documented! {
    /// One line of the event log. Fields that do not apply are left out.
    #[derive(
        Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
    )]
    struct Record {
        v: u32 = "the version of the format: 1",
        time: String = "when it happened by the wall clock (RFC 3339, UTC, milliseconds): for people",
        boottime_ns: u64 = "the same in nanoseconds of CLOCK_BOOTTIME, which never jumps and counts while the machine \
            sleeps: what happened on one machine is ordered by it",
        #[serde(default)]
        boot_id: String = "which boot boottime_ns counts from (/proc/sys/kernel/random/boot_id)",
        host: String = "the machine's name",
        identity: String = "the instance's identity (--identity)",
        pid: u32 = "the supervisor's process",
        #[serde(default)]
        run: u64 = "when that process began, in nanoseconds of CLOCK_BOOTTIME: parts two runs that had the same \
            process id",
        #[serde(default)]
        seq: u64 = "the number of the line within its run, from 0: a number that is missing is a line that was lost",
        lock: String = "the lock's address; with --slots that of the slot",
        event: EventKind = "what happened: see below",
        ;
        token: u64 = "the fencing token of the tenure",
        deadline: String = "until when the command may live if nothing more is heard of the lease, by the wall clock; \
            left out for a lock without a deadline",
        deadline_ns: u64 = "the same in nanoseconds of CLOCK_BOOTTIME",
        expires_ns: u64 = "when the lease runs out if nothing more is heard of it, counted on the same clock from \
            before the request that the store granted last: another instance may be given control from then on",
        cause: String = "the reason",
        holder: String = "the identity of the instance that has control",
        command_pid: i32 = "the command's main process",
        command_exit: i32 = "the command's exit status, or 128+n for signal n",
        overlap: bool = "true: the command may have run beside another holder's",
        exit: i32 = "the exit status of trafficcop (128+n if it dies of signal n)",
        message_id: String = "of work: the message's id in the queue",
        session_id: String = "of work --sessions: the session that it belongs to",
        attempt: u32 = "which attempt of it this was, from 1",
        outcome: String = "what became of it: completed, retried (it comes again after a delay), dead-lettered (moved \
            to the poison or dead-letter queue), failed (deleted before its command started, which did not succeed), \
            released (given back as it was), expired (gone before it was settled: its time to live had ended, or its \
            queue was deleted), lost (its lock, or that was in doubt), unconfirmed (settled, but the queue did not \
            confirm it: it may come again), unsettled (the queue refused: it comes again)",
        duration_ms: u64 = "for how many milliseconds its command ran",
        renewals: u32 = "how often its lock was renewed",
    }
}

macro_rules! words {
    ($($variant:ident $word:literal $meaning:literal,)*) => {
        /// Event of a record.
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum EventKind {
            $(#[doc = $meaning] #[serde(rename = $word)] $variant,)*
            /// Event of a later version.
            #[default]
            #[serde(other)]
            Other,
        }

        impl EventKind {
            /// Returns the event's word.
            pub fn word(self) -> &'static str {
                match self {
                    $(EventKind::$variant => $word,)*
                    EventKind::Other => "other",
                }
            }
        }

        /// The words with their meanings.
        pub const WORDS: &[(&str, &str)] = &[$(($word, $meaning),)*];

        #[cfg(test)]
        const ALL: &[EventKind] = &[$(EventKind::$variant,)*];
    };
}

words! {
    Competing "competing" "the instance has begun to compete for the lock, or does so again",
    Standby "standby" "another instance is in control, or the lock is not available yet: holder and token, where they \
        are known",
    Holding "holding" "the instance has got control: token",
    Rang "rang" "the holder's doorbell was heard, and the lock is looked at: cause",
    Starting "starting" "the command is being started: token, deadline, expires_ns",
    CommandStarted "command-started" "the command runs: command_pid",
    NotStarted "not-started" "the command could not be started, and nothing of it runs: cause",
    Renewed "renewed" "the lease was renewed: the deadline has moved",
    Doubt "doubt" "the store does not answer as hoped: cause",
    Recovered "recovered" "it answers again",
    Lost "lost" "another instance has the lease, or none has: cause",
    Draining "draining" "the command's tree is being stopped: cause",
    CommandEnded "command-ended" "the command's main process has ended: command_exit",
    Unhealthy "unhealthy" "--health has failed, which is not yet too often: cause",
    Healthy "healthy" "it succeeds again",
    Hung "hung" "the command does not work any more (--watchdog, --health), and is to be stopped: cause",
    LeftBehind "left-behind" "it has left processes behind, which are being stopped",
    TreeEmpty "tree-empty" "nothing of the command lives any more; the time is that of the last one's end",
    TreeStuck "tree-stuck" "a process of the command cannot be killed",
    GuardianLost "guardian-lost" "the guardian died or fell silent; the tree is being killed",
    Resting "resting" "in control, and nothing runs: cause",
    Restarting "restarting" "the command is started again",
    Recorded "recorded" "the result of a --once task was recorded: cause",
    NotRecorded "not-recorded" "it was not, or not yet: cause",
    HandingOver "handing-over" "control is given to others though it was not lost: cause",
    Released "released" "the lease was given back",
    LeftToRunOut "left-to-run-out" "the lease could not be given back and runs out by itself: cause",
    Overlap "overlap" "the command may have run beside another holder's",
    CoolingDown "cooling-down" "the instance does not compete for a while: cause",
    Cordoned "cordoned" "this machine is about to be disturbed, and the instance does not compete until that is over: \
        cause",
    Unfit "unfit" "this machine is not fit to take control (--if), and the instance does not compete until it is: \
        cause",
    Done "done" "the instance ends: cause, exit, overlap",
    Working "working" "a worker has begun to take messages; the lock is the queue's address",
    Message "message" "work on a message has ended: message_id, session_id, attempt, outcome, cause, command_exit, \
        duration_ms, renewals, overlap",
}

impl EventKind {
    /// Returns whether control may change hands: such a line must be on the disk before the next.
    #[must_use]
    pub fn changes_control(self) -> bool {
        matches!(
            self,
            EventKind::Holding
                | EventKind::Lost
                | EventKind::TreeEmpty
                | EventKind::TreeStuck
                | EventKind::Released
                | EventKind::LeftToRunOut
                | EventKind::Overlap
                | EventKind::Done
        )
    }
}

/// Formats a wall-clock time as records have it: RFC 3339, UTC, milliseconds.
#[must_use]
pub fn spelt(unix_ns: i64) -> String {
    // Every moment of 64-bit nanoseconds has a date.
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ns))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

/// Parses any RFC 3339 as nanoseconds since 1970.
#[must_use]
pub fn read(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos()).ok()
}

/// Returns the wall clock in nanoseconds since 1970.
#[must_use]
pub fn wall_clock() -> i64 {
    i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        Record {
            v: VERSION,
            token: Some(1),
            deadline: Some("d".into()),
            deadline_ns: Some(2),
            expires_ns: Some(9),
            cause: Some("c".into()),
            holder: Some("h".into()),
            command_pid: Some(3),
            command_exit: Some(4),
            overlap: Some(true),
            exit: Some(5),
            message_id: Some("m".into()),
            session_id: Some("s".into()),
            attempt: Some(6),
            outcome: Some("completed".into()),
            duration_ms: Some(7),
            renewals: Some(8),
            ..Record::default()
        }
    }

    #[test]
    fn documented_fields_match_the_record_in_order() {
        // A map would sort them.
        let text = serde_json::to_string(&full()).unwrap();
        let keys = text.split(['{', ',', '}']).filter_map(|part| {
            let (key, _) = part.strip_prefix('"')?.split_once("\":")?;
            Some(key)
        });
        let documented = FIELDS.iter().map(|(name, _)| *name);
        assert_eq!(keys.collect::<Vec<_>>(), documented.collect::<Vec<_>>());
    }

    #[test]
    fn documented_words_match_the_events() {
        assert_eq!(ALL.len(), WORDS.len());
        for (word, (spelling, _)) in ALL.iter().zip(WORDS) {
            assert_eq!(serde_json::to_value(word).unwrap(), *spelling);
            assert_eq!(word.word(), *spelling);
        }
    }

    #[test]
    fn words_and_fields_of_later_versions_are_ignored() {
        let line = concat!(
            r#"{"v":2,"time":"t","boottime_ns":1,"host":"h","identity":"i","pid":2,"#,
            r#""lock":"l","event":"yodelled","echo":[]}"#
        );
        let record: Record = serde_json::from_str(line).unwrap();
        assert_eq!((record.event, record.boottime_ns), (EventKind::Other, 1));
    }

    #[test]
    fn fields_that_do_not_apply_are_left_out() {
        let text = serde_json::to_string(&Record::default()).unwrap();
        assert!(!text.contains("null") && !text.contains("token"), "{text}");
    }

    #[test]
    fn formatted_times_are_parsed_back() {
        let at = 1_763_779_239_123_000_000;
        assert_eq!(spelt(at), "2025-11-22T02:40:39.123Z");
        assert_eq!(read(&spelt(at)), Some(at));
        assert_eq!(read("2025-11-22T03:40:39.123+01:00"), Some(at));
        assert_eq!(read("yesterday"), None);
    }
}
