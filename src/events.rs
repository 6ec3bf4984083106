//! The event log: every change of state of an instance as one line of JSON, for those who ask
//! afterwards who held control when.
//!
//! [`EventLog`] is an observer that makes records of the core's notices, the guardian's events, and the
//! deadlines that a command is given; it never decides or fails. [`record`] is what a line says, and
//! the one list of its fields and words; `writer` puts lines into a file without ever holding anybody
//! up. [`crate::timeline`] reads what was written.

pub mod record;
mod writer;

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::doorbell::Ring;
use crate::core::{Cause, HealthEvent, Notice};
use crate::driver::{Observation, Observer};
use crate::guardian::WorkloadEvent;
use crate::report;
use crate::report::MessageRow;

use record::VERSION;
pub use record::{EventKind, Record};
use writer::Writer;

/// The machine's word for its present boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Who writes.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The instance's identity.
    pub identity: String,
    /// The machine's name.
    pub host: String,
    /// The supervisor's process.
    pub pid: u32,
    /// The lock's address; that of the queue, for a worker.
    pub lock: String,
}

/// The event log of an instance. Dropped, it waits a while for its last lines to be written.
pub struct EventLog {
    writer: Writer,
    /// What all records have in common, with the number of the next one.
    common: Record,
}

impl EventLog {
    /// Begins a log in this file, with this word. Starts a thread, so not before the guardian was
    /// forked.
    #[must_use]
    pub fn begin(path: PathBuf, who: Instance, word: EventKind) -> EventLog {
        let now = Instant::now();
        // Where it cannot be read the record is worth as much: only its clock is its own.
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let mut log = EventLog {
            writer: Writer::new(path),
            common: Record {
                v: VERSION,
                boot_id: boot_id.trim().to_owned(),
                host: who.host,
                identity: who.identity,
                pid: who.pid,
                // Process ids come again, and in containers each instance has the same.
                run: now.as_nanos(),
                lock: who.lock,
                ..Record::default()
            },
        };
        log.tell(now, word, |_| {});
        log
    }

    /// A message was done with.
    pub fn message(&mut self, now: Instant, row: &MessageRow) {
        self.tell(now, EventKind::Message, |record| {
            record.message_id = Some(row.id.clone());
            record.session_id.clone_from(&row.session);
            record.attempt = Some(row.attempt);
            record.outcome = Some(row.outcome.to_owned());
            record.cause.clone_from(&row.reason);
            record.command_exit = row.exit;
            record.duration_ms = row.duration.map(report::millis);
            record.renewals = Some(row.renewals);
            record.overlap = row.overlap.then_some(true);
        });
    }

    fn notice(&mut self, now: Instant, notice: &Notice) {
        match notice {
            // It comes as the guardian's word.
            Notice::LeftBehind => return,
            // Two records: whoever looks for losses finds this one as whatever ended it.
            Notice::Draining(Cause::Lost { .. }) => self.because(now, EventKind::Lost, notice),
            Notice::StandingBy(_) | Notice::Cordoned { .. } | Notice::Unfit(_) => {
                self.common.token = None;
            }
            Notice::InControl { token } => self.common.token = Some(*token),
            _ => {}
        }
        self.because(now, EventKind::of(report::event(notice)), notice);
        if let Notice::Released | Notice::FoundLost { .. } | Notice::LeftToRunOut { .. } = notice {
            self.common.token = None;
        }
    }

    fn because(&mut self, now: Instant, word: EventKind, notice: &Notice) {
        self.tell(now, word, |record| match notice {
            Notice::StandingBy(info) => {
                record.holder.clone_from(&info.holder);
                record.token = info.token;
            }
            Notice::CommandEnded(exit) => record.command_exit = Some(exit.as_status()),
            Notice::Overlapped => record.overlap = Some(true),
            Notice::Unfit(unfit) => record.cause = Some(report::cause(&Cause::Unfit(*unfit))),
            Notice::Draining(cause) => record.cause = Some(report::cause(cause)),
            Notice::Doubt { why, .. }
            | Notice::Cordoned { why }
            | Notice::FoundLost { why }
            | Notice::LeftToRunOut { why } => record.cause = Some(why.clone()),
            Notice::BackingOff { .. }
            | Notice::Keeping { .. }
            | Notice::Pausing { .. }
            | Notice::Recorded { .. }
            | Notice::Unrecorded { .. }
            | Notice::NotDone
            | Notice::RestartsSpent
            | Notice::HookFailed(_)
            | Notice::HoldOver
            | Notice::CoolingDown { .. } => record.cause = Some(report::text(notice, now)),
            Notice::InControl { .. }
            | Notice::Recovered
            | Notice::LeftBehind
            | Notice::Restarting
            | Notice::Uncordoned
            | Notice::Fit
            | Notice::Released => {}
        });
    }

    fn workload_event(&mut self, now: Instant, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::Started { pid } => self.tell(now, EventKind::CommandStarted, |record| {
                record.command_pid = Some(*pid);
            }),
            WorkloadEvent::NotStarted { errno } => {
                let cause = report::cause(&Cause::NotStarted { errno: *errno });
                self.tell(now, EventKind::NotStarted, |record| {
                    record.cause = Some(cause)
                });
            }
            // By the time that the guardian saw: ours may have been spent stopped.
            WorkloadEvent::TreeEmpty { at } | WorkloadEvent::HookFailed { at, .. } => {
                self.tell(*at, EventKind::TreeEmpty, |_| {})
            }
            WorkloadEvent::LeftBehind => self.tell(now, EventKind::LeftBehind, |_| {}),
            WorkloadEvent::Lost => self.tell(now, EventKind::GuardianLost, |_| {}),
            WorkloadEvent::TreeStuck => self.tell(now, EventKind::TreeStuck, |_| {}),
            WorkloadEvent::Health(health) => {
                let word = match health {
                    HealthEvent::Answered { again: true } => EventKind::Healthy,
                    // It would be a line for each WATCHDOG=1.
                    HealthEvent::Answered { again: false } => return,
                    HealthEvent::Failed { .. } => EventKind::Unhealthy,
                    HealthEvent::Hung(_) => EventKind::Hung,
                    HealthEvent::GuardianLost => EventKind::GuardianLost,
                };
                let cause = report::failing_health(health);
                self.tell(now, word, |record| record.cause = cause);
            }
            // The core tells of the end, and has its reasons for the rest. What runs on standby has
            // nothing to do with control.
            WorkloadEvent::Standby(_)
            | WorkloadEvent::Condition(_)
            | WorkloadEvent::Exited(_)
            | WorkloadEvent::Stopped
            | WorkloadEvent::Acting
            | WorkloadEvent::ClockJumped => {}
        }
    }

    fn deadline(&mut self, now: Instant, word: EventKind, deadline: Instant, expires: Instant) {
        self.tell(now, word, |record| {
            if deadline == Instant::FOREVER {
                return;
            }
            record.deadline_ns = Some(deadline.as_nanos());
            let wall = wall_clock_at(deadline);
            record.deadline = Some(record::spelt(wall));
            record.expires_ns = (expires != Instant::FOREVER).then_some(expires.as_nanos());
        });
    }

    fn tell(&mut self, at: Instant, word: EventKind, more: impl FnOnce(&mut Record)) {
        let mut record = Record {
            time: record::spelt(wall_clock_at(at)),
            boottime_ns: at.as_nanos(),
            event: word,
            ..self.common.clone()
        };
        more(&mut record);
        // They come from elsewhere: a server's answer, another's record, a queue.
        for text in [
            &mut record.cause,
            &mut record.holder,
            &mut record.message_id,
            &mut record.session_id,
        ]
        .into_iter()
        .flatten()
        {
            *text = report::plain(text);
        }
        // Counted before it is written: a number that is missing tells of a line that was lost.
        self.common.seq += 1;
        if let Ok(line) = serde_json::to_vec(&record) {
            self.writer.put(line, word.changes_control());
        }
    }
}

impl Observer for EventLog {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        match *observation {
            Observation::Notice { notice, lock } => {
                lock.clone_into(&mut self.common.lock);
                self.notice(now, notice);
            }
            Observation::Workload(event) => self.workload_event(now, event),
            Observation::Starts {
                kill_at, expires, ..
            } => self.deadline(now, EventKind::Starting, kill_at, expires),
            Observation::Extended { kill_at, expires } => {
                self.deadline(now, EventKind::Renewed, kill_at, expires);
            }
            // What hands control over; that a bell is heard at all, or no more, is for the log.
            Observation::Rang(ring @ (Ring::Draining | Ring::Released)) => {
                self.tell(now, EventKind::Rang, |record| {
                    let cause = if ring == Ring::Released {
                        "it has released"
                    } else {
                        "it drains"
                    };
                    record.cause = Some(cause.to_owned());
                });
            }
            Observation::Done {
                cause,
                overlap,
                exit,
            } => self.tell(now, EventKind::Done, |record| {
                record.cause = Some(cause.to_owned());
                record.overlap = overlap.then_some(true);
                record.exit = Some(exit);
            }),
            _ => {}
        }
    }
}

/// What the wall clock says, said or will say at this moment, as far as it can be known now.
fn wall_clock_at(at: Instant) -> i64 {
    let (now, wall) = (Instant::now(), record::wall_clock());
    let span = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    wall.saturating_add(span(at.since(now)))
        .saturating_sub(span(now.since(at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Exit, HolderInfo, Unfit};

    impl EventLog {
        fn told(&mut self, now: Instant, notice: &Notice, lock: &str) {
            self.observe(now, &Observation::Notice { notice, lock });
        }
    }

    fn told(tell: impl FnOnce(&mut EventLog)) -> Vec<Record> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let who = Instance {
            identity: "web1".into(),
            host: "web".into(),
            pid: 42,
            lock: "file:/x".into(),
        };
        let mut log = EventLog::begin(path.clone(), who, EventKind::Competing);
        tell(&mut log);
        let done = Observation::Done {
            cause: "the command ended",
            overlap: false,
            exit: 3,
        };
        log.observe(Instant::now(), &done);
        log.writer.lines.finish(Duration::from_secs(60));
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_tenure_is_told_from_its_beginning_to_its_end() {
        let now = Instant::now();
        let empty = now + Duration::from_secs(1);
        let records = told(|log| {
            log.told(now, &Notice::StandingBy(HolderInfo::default()), "file:/x");
            log.told(now, &Notice::InControl { token: 7 }, "file:/x.1");
            let kill_at = now + Duration::from_secs(58);
            let expires = kill_at + Duration::from_secs(2);
            let starts = Observation::Starts {
                kill_at,
                expires,
                slot: 0,
            };
            log.observe(now, &starts);
            log.workload_event(now, &WorkloadEvent::Started { pid: 9 });
            let kill_at = Instant::FOREVER;
            let expires = Instant::FOREVER;
            log.observe(now, &Observation::Extended { kill_at, expires });
            log.told(now, &Notice::CommandEnded(Exit::Signal(9)), "file:/x.1");
            log.workload_event(now, &WorkloadEvent::TreeEmpty { at: empty });
            log.told(now, &Notice::Released, "file:/x.1");
        });
        let words: Vec<_> = records.iter().map(|record| record.event).collect();
        assert_eq!(
            words,
            [
                EventKind::Competing,
                EventKind::Standby,
                EventKind::Holding,
                EventKind::Starting,
                EventKind::CommandStarted,
                EventKind::Renewed,
                EventKind::CommandEnded,
                EventKind::TreeEmpty,
                EventKind::Released,
                EventKind::Done
            ]
        );
        let numbers: Vec<_> = records.iter().map(|record| record.seq).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        let [.., starting, started, renewed, ended, gone, released, done] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(
            starting.deadline_ns,
            Some((now + Duration::from_secs(58)).as_nanos())
        );
        assert_eq!(
            starting.expires_ns,
            Some((now + Duration::from_secs(60)).as_nanos())
        );
        assert!(starting.deadline.as_ref().unwrap() > &starting.time);
        assert_eq!(started.command_pid, Some(9));
        assert_eq!((renewed.deadline_ns, renewed.token), (None, Some(7)));
        assert_eq!(ended.command_exit, Some(137));
        assert_eq!(gone.boottime_ns, empty.as_nanos());
        assert_eq!((&*released.lock, released.token), ("file:/x.1", Some(7)));
        assert_eq!((done.exit, done.token, done.overlap), (Some(3), None, None));
    }

    #[test]
    fn the_log_s_words_are_the_event_log_s() {
        let now = Instant::now();
        for notice in [
            Notice::StandingBy(HolderInfo::default()),
            Notice::InControl { token: 1 },
            Notice::Doubt {
                why: String::new(),
                term_at: None,
            },
            Notice::Recovered,
            Notice::Draining(Cause::HandOver),
            Notice::CommandEnded(Exit::Code(0)),
            Notice::BackingOff {
                until: now,
                number: 1,
            },
            Notice::Keeping { until: now },
            Notice::Restarting,
            Notice::RestartsSpent,
            Notice::HoldOver,
            Notice::CoolingDown { until: now },
            Notice::Cordoned { why: String::new() },
            Notice::Uncordoned,
            Notice::Unfit(Unfit::TimedOut),
            Notice::Fit,
            Notice::Overlapped,
            Notice::Released,
            Notice::FoundLost { why: String::new() },
            Notice::LeftToRunOut { why: String::new() },
        ] {
            let records = told(|log| log.told(now, &notice, "file:/x"));
            let word = serde_json::to_value(records[1].event).unwrap();
            assert_eq!(word, report::event(&notice));
        }
    }

    #[test]
    fn a_loss_is_told_as_one_and_a_server_s_answer_stays_in_bounds() {
        let why = "x\n".repeat(5000);
        let records = told(|log| {
            log.told(
                Instant::now(),
                &Notice::Draining(Cause::Lost { why }),
                "file:/x",
            );
        });
        let words: Vec<_> = records.iter().map(|record| record.event).collect();
        assert_eq!(
            words,
            [
                EventKind::Competing,
                EventKind::Lost,
                EventKind::Draining,
                EventKind::Done
            ]
        );
        let cause = records[1].cause.as_ref().unwrap();
        assert!(cause.len() < 2100 && !cause.contains('\n'));
    }
}
