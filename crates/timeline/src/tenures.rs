//! From the records of one process to its tenures. Reads them in the order they were made (their
//! number), takes their times from the common axis, and says nothing about other processes.

use super::{At, End, KnownBy, Tenure, Violation};
use crate::{EventKind, Record};

/// A record with its place on the common axis.
#[derive(Clone, Debug)]
pub(super) struct Placed<'a> {
    pub(super) record: &'a Record,
    pub(super) at: At,
    pub(super) deadline: Option<At>,
    pub(super) expires: Option<At>,
}

/// A tenure with the lock it was of.
pub(super) type Found = (String, Tenure);

/// The tenures of one process; `records` in their order, all of them from one boot.
pub(super) fn tenures(records: &[Placed<'_>], boot: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut open: Option<Open> = None;
    for placed in records {
        match placed.record.event {
            EventKind::Holding => {
                // Control twice without an end between: the lines that say how the first one ended
                // are missing.
                found.extend(open.take().map(|open| open.close(Some(placed.at))));
                open = Some(Open::begin(placed, boot));
            }
            // Nobody who competes, stands by or ends has control.
            EventKind::Competing
            | EventKind::Standby
            | EventKind::CoolingDown
            | EventKind::Cordoned
            | EventKind::Unfit => {
                found.extend(open.take().map(|open| open.close(Some(placed.at))));
            }
            EventKind::Done => {
                if let Some(mut open) = open.take() {
                    open.takes(placed);
                    found.push(open.close(Some(placed.at)));
                } else if placed.record.overlap == Some(true)
                    && let Some((_, tenure)) = found.last_mut()
                {
                    // Said at its end, when its tenure was closed already: it is about the last one.
                    tenure.confessed = true;
                }
            }
            EventKind::Overlap if open.is_none() => {
                if let Some((_, tenure)) = found.last_mut() {
                    tenure.confessed = true;
                }
            }
            EventKind::Released | EventKind::LeftToRunOut => {
                if let Some(mut open) = open.take() {
                    open.takes(placed);
                    // The tree's end, not the lease's: from then on nothing of it could run beside another.
                    let over = open.gone.unwrap_or(placed.at).min(placed.at);
                    let end = if placed.record.event == EventKind::Released {
                        open.gives_back();
                        End::Released(placed.at)
                    } else {
                        End::Over(over)
                    };
                    found.push(open.end(end, over));
                }
            }
            _ => {
                if let Some(open) = &mut open {
                    open.takes(placed);
                }
            }
        }
    }
    found.extend(open.map(|open| open.close(None)));
    found
}

/// A tenure whose end was not read yet.
struct Open {
    lock: String,
    tenure: Tenure,
    /// Its last record.
    last: At,
    /// When nothing of its command lived any more.
    gone: Option<At>,
    /// Its command was started, and not seen to be gone.
    runs: bool,
    /// When its lease runs out, by the last word of that.
    expires: Option<At>,
    /// The number of its last record, as long as none is missing: of what is not there nothing can be said.
    number: Option<u64>,
    draining: Option<At>,
    doubting: Option<At>,
}

impl Open {
    fn begin(placed: &Placed<'_>, boot: &str) -> Open {
        Open {
            lock: placed.record.lock.clone(),
            tenure: Tenure {
                track: 0,
                pid: placed.record.pid,
                boot: boot.to_owned(),
                token: placed.record.token,
                from: placed.at,
                lived: placed.at,
                end: End::Unseen {
                    by: None,
                    known_by: KnownBy::Nothing,
                },
                cause: None,
                deadline: placed.deadline,
                drains: Vec::new(),
                doubts: Vec::new(),
                hangs: Vec::new(),
                confessed: false,
                violations: Vec::new(),
            },
            last: placed.at,
            gone: None,
            runs: false,
            expires: None,
            number: Some(placed.record.seq),
            draining: None,
            doubting: None,
        }
    }

    fn takes(&mut self, placed: &Placed<'_>) {
        let at = placed.at;
        self.last = self.last.max(at);
        // Kept where a record bears none: the last deadline that was told still binds the guardian.
        self.tenure.deadline = placed.deadline.or(self.tenure.deadline);
        self.number = self
            .number
            .filter(|number| placed.record.seq <= number.saturating_add(1))
            .map(|_| placed.record.seq);
        self.counts(placed);
        match placed.record.event {
            // A restart: something of it lives again.
            EventKind::Starting | EventKind::CommandStarted => {
                self.gone = None;
                self.runs = true;
            }
            EventKind::TreeEmpty | EventKind::NotStarted => {
                self.gone = Some(at.max(self.tenure.from));
                self.ran_until(at);
                self.drained(at);
            }
            EventKind::Draining | EventKind::CommandEnded | EventKind::GuardianLost => {
                self.draining.get_or_insert(at);
                if placed.record.event == EventKind::Draining {
                    self.tenure.cause.clone_from(&placed.record.cause);
                }
            }
            EventKind::Doubt => {
                self.doubting.get_or_insert(at);
            }
            EventKind::Hung => self.tenure.hangs.push(at),
            EventKind::Recovered => self.settled(at),
            EventKind::HandingOver | EventKind::LeftToRunOut => {
                self.tenure.cause.clone_from(&placed.record.cause);
            }
            EventKind::Overlap => self.tenure.confessed = true,
            EventKind::Done => {
                self.tenure.confessed |= placed.record.overlap == Some(true);
                if self.tenure.cause.is_none() {
                    self.tenure.cause.clone_from(&placed.record.cause);
                }
            }
            // Readers pass over what they do not know, and the rest says nothing of control.
            _ => {}
        }
    }

    /// Takes in when the lease runs out, and holds the deadline against it.
    fn counts(&mut self, placed: &Placed<'_>) {
        self.expires = placed.expires.or(self.expires);
        if let (Some(deadline), Some(expires)) = (placed.deadline, placed.expires)
            && deadline >= expires
        {
            let after = deadline - expires;
            self.tenure.violations.push(Violation::Deadline { after });
        }
    }

    /// Nothing of the command lived after this moment.
    fn ran_until(&mut self, at: At) {
        if let Some(expires) = self.expires
            && self.runs
            && self.number.is_some()
            && at > expires
        {
            let by = at - expires;
            self.tenure.violations.push(Violation::Outlived { by });
        }
        self.runs = false;
    }

    fn gives_back(&mut self) {
        if self.runs && self.number.is_some() {
            self.tenure.violations.push(Violation::Released);
        }
    }

    fn drained(&mut self, at: At) {
        if let Some(from) = self.draining.take() {
            self.tenure.drains.push((from, at.max(from)));
        }
    }

    fn settled(&mut self, at: At) {
        if let Some(from) = self.doubting.take() {
            self.tenure.doubts.push((from, at.max(from)));
        }
    }

    fn end(mut self, end: End, lived: At) -> Found {
        // A drain or a doubt that was not seen to end lasted no longer than the tenure.
        self.drained(lived);
        self.settled(lived);
        self.tenure.end = end;
        self.tenure.lived = lived.max(self.tenure.from);
        (self.lock, self.tenure)
    }

    /// No word of the lease's end: `later` is when the same process said something that nobody in
    /// control says.
    fn close(self, later: Option<At>) -> Found {
        match (self.gone, later) {
            // Nothing of it lived from then on, whatever became of its lease.
            (Some(gone), _) => self.end(End::Over(gone), gone),
            (None, Some(later)) => {
                let lived = self.last.min(later);
                let unseen = End::Unseen {
                    by: Some(later),
                    known_by: KnownBy::Itself,
                };
                self.end(unseen, lived)
            }
            (None, None) => {
                let last = self.last;
                let unseen = End::Unseen {
                    // It spoke after its deadline: then that has not ended it.
                    by: self.tenure.deadline.map(|at| at.max(last)),
                    known_by: if self.tenure.deadline.is_some() {
                        KnownBy::Deadline
                    } else {
                        KnownBy::Nothing
                    },
                };
                self.end(unseen, last)
            }
        }
    }
}
