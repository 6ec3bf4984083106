//! Makes records of what happens: of the core's notices, the guardian's news, and the deadlines
//! that a command is given.
//!
//! Called by `run`, from its observer and from its workload, which is why it is shared between two.
//! It never decides, waits or fails.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Instant;
use crate::core::{Cause, Ending, Notice};
use crate::guardian::WorkloadEvent;
use crate::report;
use crate::report::messages::Row;
use crate::util::lock;

use super::record::{self, EventKind, Record, VERSION};
use super::writer::Writer;

/// The machine's word for its present boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The event log of this instance, or none. Clones write the same one.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<Mutex<EventLog>>>);

/// Who writes.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The instance's identity.
    pub identity: String,
    /// The machine's name.
    pub host: String,
    /// The supervisor's process.
    pub pid: u32,
    /// The lock's address.
    pub lock: String,
}

struct EventLog {
    writer: Writer,
    /// What all records have in common, with the number of the next one.
    common: Record,
}

impl Events {
    /// Begins a log in this file, or none. Starts a thread, so not before the guardian was forked.
    #[must_use]
    pub fn begin(path: Option<PathBuf>, who: Instance) -> Events {
        Events::begin_as(path, who, EventKind::Competing)
    }

    /// The same for a worker, whose lock is the queue it takes messages from.
    #[must_use]
    pub fn begin_work(path: Option<PathBuf>, who: Instance) -> Events {
        Events::begin_as(path, who, EventKind::Working)
    }

    fn begin_as(path: Option<PathBuf>, who: Instance, word: EventKind) -> Events {
        let Some(path) = path else {
            return Events(None);
        };
        let now = Instant::now();
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let mut child = EventLog {
            writer: Writer::new(path),
            common: Record {
                v: VERSION,
                boot_id: boot_id.trim().to_owned(),
                host: who.host,
                identity: who.identity,
                pid: who.pid,
                run: now.as_nanos(),
                lock: who.lock,
                ..Record::default()
            },
        };
        child.tell(now, word, |_| {});
        Events(Some(Arc::new(Mutex::new(child))))
    }

    fn with(&self, act: impl FnOnce(&mut EventLog)) {
        if let Some(child) = &self.0 {
            act(&mut lock(child));
        }
    }

    /// What the core says; `lock` is the one at this moment (with slots it is another one in every
    /// tenure).
    pub fn notice(&self, now: Instant, notice: &Notice, lock: &str) {
        self.with(|child| {
            lock.clone_into(&mut child.common.lock);
            child.notice(now, notice);
        });
    }

    /// What the guardian says.
    pub fn workload_event(&self, now: Instant, event: &WorkloadEvent) {
        self.with(|child| child.workload_event(now, event));
    }

    /// The command is to be started, and may live until then.
    pub fn starts(&self, now: Instant, deadline: Instant) {
        self.with(|child| child.deadline(now, EventKind::Starting, deadline));
    }

    /// The lease was renewed: the command may live until then.
    pub fn renewed(&self, now: Instant, deadline: Instant) {
        self.with(|child| child.deadline(now, EventKind::Renewed, deadline));
    }

    /// A message was done with.
    pub fn message(&self, now: Instant, row: &Row) {
        self.with(|child| {
            child.tell(now, EventKind::Message, |record| {
                record.message_id = Some(row.id.clone());
                record.attempt = Some(row.attempt);
                record.outcome = Some(row.outcome.to_owned());
                record.cause.clone_from(&row.reason);
                record.command_exit = row.exit;
                record.duration_ms = row
                    .duration
                    .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
                record.renewals = Some(row.renewals);
                record.overlap = row.overlap.then_some(true);
            });
        });
    }

    /// The end of a worker, for this reason; waits until it is written, but not for longer than
    /// `limit`.
    pub fn finish_work(self, cause: String, exit: i32, limit: Duration) {
        self.with(|child| {
            child.tell(Instant::now(), EventKind::Done, |record| {
                record.cause = Some(cause);
                record.exit = Some(exit);
            });
            child.writer.finish(limit);
        });
    }

    /// The end; waits until it is written, but not for longer than `limit`.
    pub fn finish(self, ending: &Ending, exit: i32, limit: Duration) {
        self.with(|child| {
            child.tell(Instant::now(), EventKind::Done, |record| {
                record.cause = Some(report::cause(&ending.cause));
                record.overlap = ending.overlap.then_some(true);
                record.exit = Some(exit);
            });
            child.writer.finish(limit);
        });
    }
}

impl EventLog {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        let because = |word: EventKind, child: &mut EventLog, cause: String| {
            child.tell(now, word, |record| record.cause = Some(cause));
        };
        match notice {
            Notice::StandingBy(sight) => {
                self.common.token = None;
                self.tell(now, EventKind::Standby, |record| {
                    record.holder.clone_from(&sight.holder);
                    record.token = sight.token;
                });
            }
            Notice::InControl { token } => {
                self.common.token = Some(*token);
                self.tell(now, EventKind::Holding, |_| {});
            }
            Notice::Doubt { why, .. } => because(EventKind::Doubt, self, why.clone()),
            Notice::Recovered => self.tell(now, EventKind::Recovered, |_| {}),
            Notice::Draining(cause) => {
                if matches!(cause, Cause::Lost { .. }) {
                    because(EventKind::Lost, self, report::cause(cause));
                }
                because(EventKind::Draining, self, report::cause(cause));
            }
            Notice::CommandEnded(exit) => self.tell(now, EventKind::CommandEnded, |record| {
                record.command_exit = Some(exit.as_status());
            }),
            // It comes as news.
            Notice::LeftBehind => {}
            Notice::BackingOff { .. } | Notice::Keeping { .. } | Notice::Pausing { .. } => {
                because(EventKind::Resting, self, report::text(notice, now));
            }
            Notice::Restarting => self.tell(now, EventKind::Restarting, |_| {}),
            Notice::Recorded { .. } => {
                because(EventKind::Recorded, self, report::text(notice, now))
            }
            Notice::Unrecorded { .. } | Notice::NotDone => {
                because(EventKind::NotRecorded, self, report::text(notice, now));
            }
            Notice::RestartsSpent | Notice::HookFailed(_) | Notice::HoldOver => {
                because(EventKind::HandingOver, self, report::text(notice, now));
            }
            Notice::CoolingDown { .. } => {
                because(EventKind::CoolingDown, self, report::text(notice, now));
            }
            Notice::Cordoned { why } => {
                self.common.token = None;
                because(EventKind::Cordoned, self, why.clone());
            }
            Notice::Uncordoned => self.tell(now, EventKind::Competing, |_| {}),
            Notice::Overlapped => self.tell(now, EventKind::Overlap, |record| {
                record.overlap = Some(true);
            }),
            Notice::Released => {
                self.tell(now, EventKind::Released, |_| {});
                self.common.token = None;
            }
            Notice::FoundLost { why } => {
                because(EventKind::Lost, self, why.clone());
                self.common.token = None;
            }
            Notice::LeftToRunOut { why } => {
                because(EventKind::LeftToRunOut, self, why.clone());
                self.common.token = None;
            }
        }
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
            WorkloadEvent::TreeEmpty { at } | WorkloadEvent::HookFailed { at, .. } => {
                self.tell(*at, EventKind::TreeEmpty, |_| {})
            }
            WorkloadEvent::LeftBehind => self.tell(now, EventKind::LeftBehind, |_| {}),
            WorkloadEvent::Lost => self.tell(now, EventKind::GuardianLost, |_| {}),
            WorkloadEvent::TreeStuck => self.tell(now, EventKind::TreeStuck, |_| {}),
            // The core tells of the end, and has its reasons for the rest. What runs on standby has
            // nothing to do with control.
            WorkloadEvent::Standby(_)
            | WorkloadEvent::Exited(_)
            | WorkloadEvent::Stopped
            | WorkloadEvent::Acting
            | WorkloadEvent::ClockJumped => {}
        }
    }

    fn deadline(&mut self, now: Instant, word: EventKind, deadline: Instant) {
        self.tell(now, word, |record| {
            if deadline == Instant::FOREVER {
                return;
            }
            record.deadline_ns = Some(deadline.as_nanos());
            let wall = wall_clock_at(deadline);
            record.deadline = Some(record::spelt(wall));
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
        for text in [
            &mut record.cause,
            &mut record.holder,
            &mut record.message_id,
        ]
        .into_iter()
        .flatten()
        {
            *text = report::one_line(text);
        }
        self.common.seq += 1;
        if let Ok(line) = serde_json::to_vec(&record) {
            self.writer.put(line, word.changes_control());
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
    use crate::core::{Exit, HolderInfo};

    fn told(tell: impl FnOnce(&Events)) -> Vec<Record> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let who = Instance {
            identity: "web1".into(),
            host: "web".into(),
            pid: 42,
            lock: "file:/x".into(),
        };
        let events = Events::begin(Some(path.clone()), who);
        tell(&events);
        let ending = Ending {
            cause: Cause::CommandEnded,
            exit: Some(Exit::Code(3)),
            overlap: false,
            released: true,
        };
        events.finish(&ending, 3, Duration::from_secs(60));
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_tenure_is_told_from_its_beginning_to_its_end() {
        let now = Instant::now();
        let empty = now + Duration::from_secs(1);
        let records = told(|events| {
            events.notice(now, &Notice::StandingBy(HolderInfo::default()), "file:/x");
            events.notice(now, &Notice::InControl { token: 7 }, "file:/x.1");
            events.starts(now, now + Duration::from_secs(58));
            events.workload_event(now, &WorkloadEvent::Started { pid: 9 });
            events.renewed(now, Instant::FOREVER);
            events.notice(now, &Notice::CommandEnded(Exit::Signal(9)), "file:/x.1");
            events.workload_event(now, &WorkloadEvent::TreeEmpty { at: empty });
            events.notice(now, &Notice::Released, "file:/x.1");
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
            Notice::Overlapped,
            Notice::Released,
            Notice::FoundLost { why: String::new() },
            Notice::LeftToRunOut { why: String::new() },
        ] {
            let records = told(|events| events.notice(now, &notice, "file:/x"));
            let word = serde_json::to_value(records[1].event).unwrap();
            assert_eq!(word, report::event(&notice));
        }
    }

    #[test]
    fn a_loss_is_told_as_one_and_a_server_s_answer_stays_in_bounds() {
        let why = "x\n".repeat(5000);
        let records = told(|events| {
            events.notice(
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

    #[test]
    fn no_log_is_no_trouble() {
        let events = Events::default();
        events.renewed(Instant::now(), Instant::FOREVER);
        events.workload_event(Instant::now(), &WorkloadEvent::Lost);
    }
}
