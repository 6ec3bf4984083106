//! Tenures of one process, from its records in the order of their numbers.

use super::{At, End, Tenure, Violation};
use crate::{EventKind, Record};

#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub(super) record: &'a Record,
    pub(super) at: At,
    pub(super) deadline: Option<At>,
    pub(super) expires: Option<At>,
}

pub(super) fn tenures(records: &[Placed<'_>], boot: &str) -> Vec<(String, Tenure)> {
    let mut found: Vec<(String, Tenure)> = Vec::new();
    let mut open: Option<Open> = None;
    for placed in records {
        let event = placed.record.event;
        // The instance had no control before these: the lines about an open tenure's end are missing.
        let had_none = matches!(
            event,
            EventKind::Holding
                | EventKind::Competing
                | EventKind::Standby
                | EventKind::CoolingDown
                | EventKind::Cordoned
                | EventKind::Unfit
        );
        let ends = matches!(
            event,
            EventKind::Done | EventKind::Released | EventKind::LeftToRunOut
        );
        match (&mut open, found.last_mut()) {
            (Some(open), _) if !had_none => open.take(placed),
            // Reported after its tenure was closed.
            (None, Some((_, tenure))) => tenure.confessed |= confesses(placed.record),
            _ => {}
        }
        if had_none || ends {
            found.extend(open.take().map(|open| open.close(Some(placed))));
        }
        if event == EventKind::Holding {
            open = Some(Open::begin(placed, boot));
        }
    }
    found.extend(open.map(|open| open.close(None)));
    found
}

fn confesses(record: &Record) -> bool {
    match record.event {
        EventKind::Overlap => true,
        EventKind::Done => record.overlap == Some(true),
        _ => false,
    }
}

/// Tenure whose end is not read yet.
#[derive(Default)]
struct Open {
    lock: String,
    tenure: Tenure,
    last: At,
    gone: Option<At>,
    /// Whether its command was started, and not seen to end.
    runs: bool,
    expires: Option<At>,
    /// Number of its last record; `None` once one is missing: no rule can be checked then.
    number: Option<u64>,
    draining: Option<At>,
    doubting: Option<At>,
}

impl Open {
    fn begin(placed: &Placed<'_>, boot: &str) -> Open {
        let record = placed.record;
        Open {
            lock: record.lock.clone(),
            tenure: Tenure {
                pid: record.pid,
                boot: boot.to_owned(),
                token: record.token,
                from: placed.at,
                deadline: placed.deadline,
                ..Tenure::default()
            },
            last: placed.at,
            number: Some(record.seq),
            ..Open::default()
        }
    }

    fn take(&mut self, placed: &Placed<'_>) {
        let (record, at) = (placed.record, placed.at);
        self.last = self.last.max(at);
        // Without a new one, the last deadline still binds the guardian.
        self.tenure.deadline = placed.deadline.or(self.tenure.deadline);
        self.expires = placed.expires.or(self.expires);
        self.tenure.confessed |= confesses(record);
        let number = self.number.take();
        let is_next = |number: &u64| record.seq <= number.saturating_add(1);
        self.number = number.filter(is_next).map(|_| record.seq);
        if let (Some(deadline), Some(expires)) = (placed.deadline, placed.expires)
            && deadline >= expires
        {
            let after = deadline - expires;
            self.tenure.violations.push(Violation::Deadline { after });
        }
        match record.event {
            EventKind::Starting | EventKind::CommandStarted => {
                self.gone = None;
                self.runs = true;
            }
            EventKind::TreeEmpty | EventKind::NotStarted => {
                self.gone = Some(at.max(self.tenure.from));
                if let Some(expires) = self.expires.filter(|expires| at > *expires)
                    && self.certainly_runs()
                {
                    let by = at - expires;
                    self.tenure.violations.push(Violation::Outlived { by });
                }
                self.runs = false;
                end(&mut self.draining, at, &mut self.tenure.drains);
            }
            EventKind::Draining => {
                self.draining.get_or_insert(at);
                self.tenure.cause.clone_from(&record.cause);
            }
            EventKind::CommandEnded | EventKind::GuardianLost => {
                self.draining.get_or_insert(at);
            }
            EventKind::Doubt => {
                self.doubting.get_or_insert(at);
            }
            EventKind::Recovered => end(&mut self.doubting, at, &mut self.tenure.doubts),
            EventKind::Hung => self.tenure.hangs.push(at),
            EventKind::HandingOver | EventKind::LeftToRunOut => {
                self.tenure.cause.clone_from(&record.cause);
            }
            EventKind::Done if self.tenure.cause.is_none() => {
                self.tenure.cause.clone_from(&record.cause);
            }
            _ => {}
        }
    }

    fn certainly_runs(&self) -> bool {
        self.runs && self.number.is_some()
    }

    /// Closes the tenure at the end of the log, or `by` a record that implies no control.
    fn close(mut self, by: Option<&Placed<'_>>) -> (String, Tenure) {
        // The tree's end, not the lease's: later no process of it could overlap.
        let over = |at: At| self.gone.unwrap_or(at).min(at);
        let by = by.map(|placed| (placed.record.event, placed.at));
        let (end_of_it, to, lived) = match (by, self.gone, self.tenure.deadline) {
            (Some((EventKind::Released, at)), ..) => (End::Released, at, over(at)),
            (Some((EventKind::LeftToRunOut, at)), ..) => (End::Over, over(at), over(at)),
            (_, Some(gone), _) => (End::Over, gone, gone),
            (Some((_, later)), None, _) => (End::Itself, later, self.last.min(later)),
            // A record after the deadline shows that the deadline did not end it.
            (None, None, Some(deadline)) => (End::Deadline, deadline.max(self.last), self.last),
            (None, None, None) => (End::Unknown, self.last, self.last),
        };
        if end_of_it == End::Released && self.certainly_runs() {
            self.tenure.violations.push(Violation::Released);
        }
        // A drain or doubt without an end lasted no longer than the tenure.
        end(&mut self.draining, lived, &mut self.tenure.drains);
        end(&mut self.doubting, lived, &mut self.tenure.doubts);
        self.tenure.end = end_of_it;
        self.tenure.to = to;
        self.tenure.lived = lived.max(self.tenure.from);
        (self.lock, self.tenure)
    }
}

fn end(begun: &mut Option<At>, at: At, all: &mut Vec<(At, At)>) {
    all.extend(begun.take().map(|from| (from, at.max(from))));
}
