//! The adversary: a list of acts, made from a seed in advance. So one act can be removed and the
//! rest tried again.

use std::time::Duration;

use fastrand::Rng;
use trafficcop_core::Budget;

use super::clock::{MILLI, SECOND, Time};
use super::drive::GRACE;
use super::drive_deeds as drive;

/// Fate of the requests sent while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Requests and replies take up to this long, and overtake each other.
    Slow(Time),
    LosesRequests,
    LosesReplies,
    /// One message in four is late by up to this long.
    Straggles(Time),
    /// No request arrives. (In other weathers one in five escapes.)
    Cut,
    /// Each request arrives again, up to this much later.
    Twice(Time),
    /// The store does not act; the answer has this status.
    Answers(u16, Option<u64>),
    /// The store acts, and answers with a 500.
    DoesAndDenies,
    /// The store does nothing until the end, then everything.
    Frozen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Supervisor,
    Guardian,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire,
    Record,
    Renew,
    Rest,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Weather for one machine, or for all.
    Net(Option<usize>, Weather, Time),
    Stop(usize, Who, Time),
    /// Stops the supervisor for this long when its next request of this kind is at the store.
    Trap(usize, Kind, Time),
    Kill(usize, Who),
    Suspend(usize, Time),
    Break(Option<Duration>),
    Delete,
    Signal(usize, i32),
    WallJump(usize),
    /// Makes a machine's reads this old, for this long.
    Stale(usize, Time, Time),
    /// Reads of the lock's path differ from what was written.
    Torn(Time),
    RestartServer(bool),
    /// Puts it forward by this many seconds.
    ServerClock(u64),
    /// An operator removes all but this many of the last versions.
    Tidy(usize),
    /// The disturbance comes this much later at the earliest, if known. The cordon is lifted after
    /// the second time, or never.
    Cordon(usize, Option<Time>, Option<Time>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub(crate) at: Time,
    pub(crate) deed: Deed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    /// Mean time to its own end.
    pub(crate) lives: Option<Time>,
    /// Percentages: ignores SIGTERM; leaves a daemon; whose daemon ignores SIGTERM.
    pub(crate) deaf: u8,
    pub(crate) daemon: u8,
    pub(crate) deaf_daemon: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Blob,
    /// A file on one machine's disk, with all instances.
    File,
    Shared,
    /// An entry of a helper's store.
    Store,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Blob => "blob",
            Place::File => "file",
            Place::Shared => "shared drive",
            Place::Store => "store",
        }
    }

    /// Whether the lock is a chain of versions, whose leases the waiting instances count.
    pub(crate) fn is_chain(self) -> bool {
        matches!(self, Place::Shared | Place::Store)
    }

    fn knows(self, deed: Deed) -> bool {
        match deed {
            Deed::Net(..) | Deed::Stop(..) | Deed::Kill(..) => true,
            Deed::Signal(..) | Deed::WallJump(_) | Deed::Cordon(..) => true,
            // The instances share the machine: no other is awake while it sleeps.
            Deed::Suspend(..) => self != Place::File,
            Deed::Trap(..) => self == Place::Blob,
            Deed::Break(_) => self != Place::File,
            // A store's entry may be deleted only when no instance runs.
            Deed::Delete => matches!(self, Place::Blob | Place::Shared),
            Deed::Stale(..) | Deed::Torn(_) => self.is_chain(),
            Deed::RestartServer(_) => self == Place::Shared,
            Deed::ServerClock(_) | Deed::Tidy(_) => self == Place::Shared,
        }
    }
}

/// A schedule: all but the small random choices on the way.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) budgets: Vec<Budget>,
    /// Greatest age of a read at any time.
    pub(crate) staleness: Time,
    pub(crate) poll: Duration,
    pub(crate) grace: Duration,
    pub(crate) compete: bool,
    pub(crate) ppm: Vec<i64>,
    pub(crate) store_ppm: i64,
    pub(crate) habit: Habit,
    pub(crate) place: Place,
    /// Longest unbroken control of one instance.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) cooldown: Duration,
    pub(crate) acts: Vec<Act>,
    /// Time at which the last act and its effect on the network are over.
    pub(crate) rest: Time,
}

/// Longest delay of a single message.
pub(crate) const LONGEST: Time = 30 * SECOND;

impl Schedule {
    pub(crate) fn longest_lease(&self) -> Duration {
        let leases = self.budgets.iter().map(|budget| budget.lease);
        leases.max().expect("machines")
    }

    /// Returns the longest wait for one version of an entry: a break in a store may last longer than
    /// each lease.
    pub(crate) fn longest_wait(&self) -> Duration {
        let breaks = self.acts.iter().filter_map(|act| match act.deed {
            Deed::Break(period) if self.place == Place::Store => period,
            _ => None,
        });
        breaks.fold(self.longest_lease(), Duration::max)
    }

    pub(crate) fn of(seed: u64) -> Schedule {
        Schedule::drawn(seed, None)
    }

    /// Makes a seed's schedule for a helper's store, which [`Schedule::of`] never chooses.
    pub(crate) fn of_store(seed: u64) -> Schedule {
        Schedule::drawn(seed, Some(Place::Store))
    }

    fn drawn(seed: u64, place: Option<Place>) -> Schedule {
        let mut rng = Rng::with_seed(seed ^ 0x5EED_F1EE_7000_0000);
        let budget = budget(&mut rng);
        let machines = rng.choice([2, 2, 2, 3, 3, 4]).expect("a choice");
        let drift = rng.choice([0, 0, 1000, 10_000, 10_000]).expect("a choice");
        let ppm = (0..machines).map(|_| sign(&mut rng) * drift).collect();
        let store_ppm = sign(&mut rng) * drift;
        let length = rng.u64(20..100) * SECOND;
        let count = rng.usize(0..9);
        let mut acts: Vec<Act> = (0..count)
            .map(|_| Act {
                at: rng.u64(SECOND..length),
                deed: deed(&mut rng, machines),
            })
            .collect();
        // Some faults only meet if they are placed together.
        if rng.u8(0..3) == 0 && acts.len() >= 2 {
            let near = acts[0].at;
            for act in &mut acts[1..] {
                act.at = near + rng.u64(0..20 * SECOND);
            }
        }
        let drawn = rng.u8(0..26);
        acts.extend(pattern(&mut rng, machines, drawn));
        let drawn_place = match rng.u8(0..10) {
            0..6 => Place::Blob,
            6..8 => Place::File,
            _ => Place::Shared,
        };
        let place = place.unwrap_or(drawn_place);
        let mut of_drive = Rng::with_seed(seed ^ 0x0B5E_27ED_0000_0000);
        let budgets = match place.is_chain() {
            true => {
                acts.extend(drive::deeds(&mut of_drive, machines));
                drive::budgets(&mut of_drive, machines)
            }
            false => vec![budget; machines],
        };
        if place.is_chain() {
            // From another random source, so that schedules without these acts stay the same.
            let mut rng = Rng::with_seed(seed ^ 0x0B5E_27ED_3EE7_0000);
            acts.extend(drive::meetings(&mut rng, &budgets));
        }
        acts.retain(|act| place.knows(act.deed));
        acts.sort_by_key(|act| act.at);
        let rest = acts
            .iter()
            .map(|act| act.at + lasts(act.deed))
            .max()
            .unwrap_or(length);
        Schedule {
            seed,
            budgets,
            staleness: match place.is_chain() {
                true => of_drive.choice([0, 0, 5, 60]).expect("a choice") * SECOND,
                false => 0,
            },
            poll: Duration::from_secs(rng.choice([1, 2, 2, 5]).expect("a choice")),
            grace: Duration::from_secs(rng.choice([1, 5, 30]).expect("a choice")),
            compete: rng.u8(0..4) > 0,
            ppm,
            store_ppm,
            habit: Habit {
                lives: (rng.u8(0..3) == 0).then(|| rng.u64(1..60) * SECOND),
                deaf: rng.choice([0, 30, 100]).expect("a choice"),
                daemon: rng.choice([0, 0, 50]).expect("a choice"),
                deaf_daemon: rng.choice([0, 50]).expect("a choice"),
            },
            acts,
            place,
            rest: rest + LONGEST + 10 * SECOND,
            max_hold: match drawn {
                10 => Some(Duration::from_secs(rng.u64(6..12))),
                _ => (rng.u8(0..5) == 0).then(|| Duration::from_secs(rng.u64(8..40))),
            },
            cooldown: Duration::from_millis(rng.u64(100..if drawn == 10 { 500 } else { 4000 })),
        }
    }

    /// Interval of the condition's questions, in every fourth schedule.
    // From the seed itself: one more draw would change the schedules of all seeds.
    pub(crate) fn asks_every(&self) -> Option<Duration> {
        self.seed.is_multiple_of(4).then_some(self.poll)
    }

    /// Whether the machine is fit at this time: no in a third of all times; always yes once the
    /// adversary is about to rest.
    pub(crate) fn is_fit(&self, machine: usize, now: Time) -> bool {
        let stretch = now / (12 * SECOND);
        let draw = Rng::with_seed(self.seed ^ (machine as u64) << 32 ^ stretch).u8(0..3);
        draw > 0 || now + LONGEST >= self.rest
    }
}

fn sign(rng: &mut Rng) -> i64 {
    rng.choice([-1, 0, 1]).expect("a choice")
}

fn budget(rng: &mut Rng) -> Budget {
    if rng.bool() {
        let lease = rng.choice([15, 15, 15, 30, 30, 60]).expect("a choice");
        return Budget::for_lease(Duration::from_secs(lease));
    }
    loop {
        let lease = Duration::from_secs(rng.u64(15..=40));
        let least = lease / 50 + Duration::from_millis(200);
        let budget = Budget {
            lease,
            renew_every: Duration::from_millis(rng.u64(2000..8000)),
            grace_on_loss: Duration::from_millis(rng.u64(0..10_000)),
            margin: least + Duration::from_millis(rng.choice([0, 0, 500, 2000]).expect("a choice")),
            attempt: trafficcop_core::budget::ATTEMPT,
        };
        if budget.validate().is_ok() {
            return budget;
        }
    }
}

fn lasts(deed: Deed) -> Time {
    match deed {
        Deed::Net(_, _, span) | Deed::Stop(_, _, span) | Deed::Suspend(_, span) => span,
        // The trap can close late.
        Deed::Trap(_, _, span) => span + 30 * SECOND,
        Deed::Cordon(_, _, span) => span.unwrap_or(0),
        Deed::Stale(_, _, span) | Deed::Torn(span) => span,
        Deed::RestartServer(true) => GRACE + 2 * SECOND,
        Deed::RestartServer(false) | Deed::ServerClock(_) | Deed::Tidy(_) => 0,
        Deed::Kill(..) | Deed::Break(_) | Deed::Delete | Deed::Signal(..) | Deed::WallJump(_) => 0,
    }
}

pub(crate) fn span(rng: &mut Rng, longest: u64) -> Time {
    match rng.u8(0..3) {
        0 => rng.u64(10..3000) * MILLI,
        1 => rng.u64(1000..15_000) * MILLI,
        _ => rng.u64(1000..longest * 1000) * MILLI,
    }
}

fn deed(rng: &mut Rng, machines: usize) -> Deed {
    let machine = rng.usize(0..machines);
    let who = rng
        .choice([Who::Supervisor, Who::Guardian, Who::Both])
        .expect("a choice");
    match rng.u8(0..100) {
        0..46 => {
            let weather = match rng.u8(0..10) {
                0 | 1 => Weather::Slow(span(rng, 30).min(LONGEST)),
                2 => Weather::LosesRequests,
                3 => Weather::LosesReplies,
                4 => Weather::Twice(span(rng, 30).min(LONGEST)),
                5 => {
                    let status = rng.choice([403, 429, 500, 503]).expect("a choice");
                    let wish = (status == 429 || status == 503) && rng.bool();
                    Weather::Answers(status, wish.then(|| rng.u64(1..40)))
                }
                6 => Weather::DoesAndDenies,
                7 => Weather::Cut,
                8 => Weather::Straggles(rng.u64(500..5000) * MILLI),
                _ => Weather::Frozen,
            };
            let whom = rng.bool().then_some(machine);
            Deed::Net(whom, weather, span(rng, 50))
        }
        46..50 => cordon(rng, machine),
        50..54 => {
            let kinds = [Kind::Acquire, Kind::Record, Kind::Renew, Kind::Release];
            let kind = rng.choice(kinds).expect("a choice");
            Deed::Trap(machine, kind, span(rng, 60))
        }
        54..64 => Deed::Stop(machine, who, span(rng, 60)),
        64..76 => Deed::Kill(machine, who),
        76..83 => Deed::Suspend(machine, span(rng, 60)),
        83..89 => Deed::Break(match rng.u8(0..3) {
            0 => None,
            1 => Some(Duration::ZERO),
            _ => Some(Duration::from_secs(rng.u64(1..30))),
        }),
        89 => Deed::Delete,
        90..97 => Deed::Signal(machine, rng.choice([15, 15, 2, 1]).expect("a choice")),
        _ => Deed::WallJump(machine),
    }
}

fn cordon(rng: &mut Rng, machine: usize) -> Deed {
    let before = rng.bool().then(|| span(rng, 60));
    Deed::Cordon(machine, before, (rng.u8(0..4) > 0).then(|| span(rng, 60)))
}

fn pattern(rng: &mut Rng, machines: usize, drawn: u8) -> Vec<Act> {
    let machine = rng.usize(0..machines);
    let at = rng.u64(3..60) * SECOND + rng.u64(0..1000) * MILLI;
    match drawn {
        // New deadlines are in the socket of a guardian that continues later than its supervisor.
        0 => vec![
            Act {
                at,
                deed: Deed::Stop(machine, Who::Guardian, span(rng, 60) + 2 * SECOND),
            },
            Act {
                at: at + rng.u64(500..1000) * MILLI,
                deed: Deed::Stop(machine, Who::Supervisor, 70 * SECOND),
            },
        ],
        // The store grants control while the supervisor is stopped.
        1 => vec![
            Act {
                at: 0,
                deed: Deed::Net(None, Weather::Slow(2 * SECOND), 20 * SECOND),
            },
            Act {
                at: rng.u64(1000..6000) * MILLI,
                deed: Deed::Stop(machine, Who::Supervisor, rng.u64(5..15) * SECOND),
            },
        ],
        // A release is still on its way when its sender competes again.
        2 => vec![
            Act {
                at,
                deed: Deed::Net(Some(machine), Weather::LosesRequests, 14 * SECOND),
            },
            Act {
                at: at + 8 * SECOND,
                deed: Deed::Net(Some(machine), Weather::Twice(LONGEST), 15 * SECOND),
            },
        ],
        // A cordon arrives during an attempt to acquire.
        3 => vec![
            Act {
                at: 0,
                deed: Deed::Net(None, Weather::Slow(8 * SECOND), 30 * SECOND),
            },
            Act {
                at: rng.u64(1000..10_000) * MILLI,
                deed: cordon(rng, machine),
            },
        ],
        // Every machine is cordoned in turn, and one dies of its disturbance.
        4 => {
            let mut acts = vec![Act {
                at: at + rng.u64(0..20_000) * MILLI,
                deed: Deed::Kill(machine, Who::Both),
            }];
            acts.extend((0..machines).map(|machine| Act {
                at: at + rng.u64(0..5000) * MILLI,
                deed: cordon(rng, machine),
            }));
            acts
        }
        // Answers are late, and then stop: a lease counted from an answer would be too long.
        5 => vec![
            Act {
                at,
                deed: Deed::Net(Some(machine), Weather::Slow(4 * SECOND), 30 * SECOND),
            },
            Act {
                at: at + 30 * SECOND,
                deed: Deed::Net(Some(machine), Weather::Cut, 70 * SECOND),
            },
        ],
        // As before, with the answer that grants control.
        6 => vec![
            Act {
                at: 0,
                deed: Deed::Net(None, Weather::Slow(4 * SECOND), 30 * SECOND),
            },
            Act {
                at: rng.u64(2000..15_000) * MILLI,
                deed: Deed::Net(Some(machine), Weather::Cut, 70 * SECOND),
            },
        ],
        // A holder releases while requests are repeated, and acquires again at once.
        7 => {
            let mut acts = vec![
                Act {
                    at: at + SECOND,
                    deed: Deed::Net(Some(machine), Weather::Twice(LONGEST), 10 * SECOND),
                },
                Act {
                    at: at + 2 * SECOND,
                    deed: Deed::Cordon(machine, None, Some(rng.u64(1000..4000) * MILLI)),
                },
            ];
            let others = (0..machines).filter(|other| *other != machine);
            acts.extend(others.map(|other| Act {
                at,
                deed: Deed::Kill(other, Who::Both),
            }));
            acts
        }
        // A guardian stopped now and then for short times is not silent.
        8 => (0..6)
            .map(|n| Act {
                at: at + n * 9 * SECOND + rng.u64(0..5000) * MILLI,
                deed: Deed::Stop(machine, Who::Guardian, rng.u64(200..850) * MILLI),
            })
            .collect(),
        // The supervisor is stopped after it asks how long a broken lease still lasts.
        9 => vec![
            Act {
                at: at - SECOND,
                deed: Deed::Trap(machine, Kind::Rest, rng.u64(1500..8000) * MILLI),
            },
            Act {
                at,
                deed: Deed::Break(Some(Duration::from_secs(rng.u64(10..60)))),
            },
        ],
        // Control alternates on one machine; a request under one lease is answered under the next.
        10 => {
            let mut acts = vec![Act {
                at,
                deed: Deed::Net(Some(machine), Weather::Straggles(4500 * MILLI), 90 * SECOND),
            }];
            let others = (0..machines).filter(|other| *other != machine);
            acts.extend(others.map(|other| Act {
                at,
                deed: Deed::Kill(other, Who::Both),
            }));
            acts
        }
        // The order to start waits in a stopped guardian's socket until it is too late.
        11 => {
            // It begins within two seconds, at an unknown time.
            let stop = |n: u64| Act {
                at: n * 250 * MILLI,
                deed: Deed::Stop(machine, Who::Guardian, 60 * SECOND),
            };
            let mut acts: Vec<Act> = (1..9).map(stop).collect();
            acts.push(Act {
                at: rng.u64(1500..9000) * MILLI,
                deed: if rng.bool() {
                    Deed::Kill(machine, Who::Supervisor)
                } else {
                    Deed::Stop(machine, Who::Supervisor, 90 * SECOND)
                },
            });
            acts
        }
        // A lease is broken twice, the second time at once, and acquired again before its holder
        // has heard of both.
        12 => {
            let mut acts = vec![Act {
                at,
                deed: Deed::Net(Some(machine), Weather::Straggles(4500 * MILLI), 80 * SECOND),
            }];
            let others = (0..machines).filter(|other| *other != machine);
            acts.extend(others.map(|other| Act {
                at,
                deed: Deed::Kill(other, Who::Both),
            }));
            for n in 0..4 {
                let broken = at + (6 + 18 * n) * SECOND;
                acts.push(Act {
                    at: broken,
                    deed: Deed::Break(Some(Duration::from_secs(25))),
                });
                acts.push(Act {
                    at: broken + rng.u64(2000..9000) * MILLI,
                    deed: Deed::Break(Some(Duration::ZERO)),
                });
            }
            acts
        }
        _ => Vec::new(),
    }
}
