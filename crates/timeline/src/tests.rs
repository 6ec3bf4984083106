//! Timelines from logs: written by hand, at random, and by processes that were killed.

mod chance;
mod ends;
mod forms;
mod overlaps;
mod rules;

use super::*;
use crate::{EventKind, Record, record};

const SECOND: u64 = 1_000_000_000;
/// Time of the boots, by a right clock.
const BOOTED: i64 = 1_767_225_600_000_000_000;
const SKEW: i64 = 100_000_000;

/// Writer of an instance's log; times are tenths of a second since the boot.
struct Pen {
    common: Record,
    /// Error of its wall clock, in seconds.
    off: i64,
    lines: Vec<Record>,
}

impl Pen {
    fn new(identity: &str, boot: &str) -> Pen {
        Pen {
            common: Record {
                v: 1,
                boot_id: boot.into(),
                host: format!("host-of-{boot}"),
                identity: identity.into(),
                pid: 1000,
                run: 7,
                lock: "file:/x".into(),
                ..Record::default()
            },
            off: 0,
            lines: Vec::new(),
        }
    }

    fn says(&mut self, tenths: u64, event: EventKind, more: impl FnOnce(&mut Record)) -> &mut Pen {
        let boottime_ns = tenths * SECOND / 10;
        let wall = BOOTED + i64::try_from(boottime_ns).unwrap() + self.off * SECOND as i64;
        let mut record = Record {
            time: record::spelt(wall),
            boottime_ns,
            event,
            ..self.common.clone()
        };
        more(&mut record);
        self.common.seq += 1;
        self.lines.push(record);
        self
    }

    fn word(&mut self, tenths: u64, event: EventKind) -> &mut Pen {
        self.says(tenths, event, |_| {})
    }

    fn holds(&mut self, tenths: u64, token: u64) -> &mut Pen {
        self.common.token = Some(token);
        self.word(tenths, EventKind::Holding)
    }

    fn starts(&mut self, tenths: u64, deadline: u64) -> &mut Pen {
        let deadline_ns = Some(deadline * SECOND / 10);
        self.says(tenths, EventKind::Starting, |record| {
            record.deadline_ns = deadline_ns;
        })
    }

    fn leases(&mut self, tenths: u64, deadline: u64, expires: u64) -> &mut Pen {
        self.starts(tenths, deadline);
        let last = self.lines.last_mut().unwrap();
        last.expires_ns = Some(expires * SECOND / 10);
        self
    }

    fn tenure(&mut self, from: u64, to: u64, token: u64) -> &mut Pen {
        self.holds(from, token)
            .word(from, EventKind::Starting)
            .says(to - 5, EventKind::Draining, |record| {
                record.cause = Some("stopped by SIGTERM".into());
            })
            .word(to, EventKind::TreeEmpty)
            .word(to + 1, EventKind::Released)
    }
}

fn lines(pens: &[&Pen]) -> Vec<String> {
    let records = pens.iter().flat_map(|pen| &pen.lines);
    records
        .map(|record| serde_json::to_string(record).unwrap())
        .collect()
}

fn of(text: &str) -> Timeline {
    merge(&read([("log", text.as_bytes())]), SKEW)
}

fn told(pens: &[&Pen]) -> Timeline {
    of(&lines(pens).join("\n"))
}

fn only(timeline: &Timeline) -> &Lock {
    let [lock] = &timeline.locks[..] else {
        panic!("{timeline:?}")
    };
    lock
}

fn tokens(timeline: &Timeline) -> Vec<u64> {
    let tenures = only(timeline).tenures.iter();
    tenures.filter_map(|tenure| tenure.token).collect()
}

fn pair() -> (Pen, Pen) {
    (Pen::new("web1", "a"), Pen::new("web2", "a"))
}
