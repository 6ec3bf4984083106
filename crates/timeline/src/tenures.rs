//! Tenures of one process, from its records in the order of their numbers.

use super::{At, End, KnownBy, Tenure, Violation};
use crate::{EventKind, Record};

#[derive(Clone, Debug)]
pub(super) struct Placed<'a> {
    pub(super) record: &'a Record,
    pub(super) at: At,
    pub(super) deadline: Option<At>,
    pub(super) expires: Option<At>,
}

pub(super) type Found = (String, Tenure);

pub(super) fn tenures(records: &[Placed<'_>], boot: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut open: Option<Open> = None;
    for placed in records {
        match placed.record.event {
            EventKind::Holding => {
                // The lines about the first one's end are missing.
                found.extend(open.take().map(|open| open.close(Some(placed.at))));
                open = Some(Open::begin(placed, boot));
            }
            // An instance that competes, waits or ends has no control.
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
                    // Reported after its tenure was closed.
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
                    // The tree's end, not the lease's: later no process of it could overlap.
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
        // Without a new one, the last deadline still binds the guardian.
        self.tenure.deadline = placed.deadline.or(self.tenure.deadline);
        self.number = self
            .number
            .filter(|number| placed.record.seq <= number.saturating_add(1))
            .map(|_| placed.record.seq);
        self.counts(placed);
        match placed.record.event {
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
            _ => {}
        }
    }

    fn counts(&mut self, placed: &Placed<'_>) {
        self.expires = placed.expires.or(self.expires);
        if let (Some(deadline), Some(expires)) = (placed.deadline, placed.expires)
            && deadline >= expires
        {
            let after = deadline - expires;
            self.tenure.violations.push(Violation::Deadline { after });
        }
    }

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
        // A drain or doubt without an end lasted no longer than the tenure.
        self.drained(lived);
        self.settled(lived);
        self.tenure.end = end;
        self.tenure.lived = lived.max(self.tenure.from);
        (self.lock, self.tenure)
    }

    /// Closes a tenure without a record of the lease's end. `later` is the time of a record that implies no
    /// control.
    fn close(self, later: Option<At>) -> Found {
        match (self.gone, later) {
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
                    // A record after the deadline shows that the deadline did not end it.
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
