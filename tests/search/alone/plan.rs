//! Plan of a history: rules, lock, command and faults.

use std::net::IpAddr;
use std::time::Duration;

use fastrand::Rng;
use trafficcop_core::{
    After, Budget, Exit, Failed, HealthRules, HoldPolicy, IfLost, OnFailure, Once, ProbeFailure,
    Restart, Ring, Rules, Unfit, WatchdogWord,
};

use super::drive::DrivePlan;
use super::health::{health, probe, word};
use super::meetings::{ends, meet, meetings};
use super::record::told;

/// Fate of the requests that are sent while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    RequestsLost,
    AnswersLost,
    Slow(Duration),
    /// Refused, with the service's Retry-After.
    Refused(Option<Duration>),
    Forbidden,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Weather(Weather, Duration),
    /// Breaks the lease: at once, or after this.
    Break(Option<Duration>),
    /// Breaks the lease at once, and another takes it.
    Taken,
    Stop(i32),
    Cordon(Option<Duration>, Option<Duration>),
    Pause(Duration),
    GuardianDies,
    Hush(Duration),
    ClockJumps,
    CommandStopping,
    /// A report of an earlier round, or of no process.
    Echo(u8),
    /// Lets SIGKILL end trees this much later, or never.
    Stuck(Option<Duration>),
    ProberDies,
}

#[derive(Clone, Debug)]
pub(crate) struct Act {
    pub(crate) at: Duration,
    pub(crate) deed: Deed,
}

#[derive(Clone, Debug)]
pub(crate) struct Habit {
    pub(crate) lives: Option<Duration>,
    pub(crate) exits: Vec<Exit>,
    /// Per cent of the commands that ignore SIGTERM; the following fields are in per cent, too.
    pub(crate) deaf: u8,
    pub(crate) daemon: u8,
    pub(crate) not_started: u8,
    pub(crate) hook_failed: u8,
    /// Ends without a known status.
    pub(crate) silent: u8,
    pub(crate) ends_within: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) rules: Rules,
    /// Whether the lock wakes its waiters.
    pub(crate) wakes: bool,
    /// Whether the driver looks at the clock before it reports an event, as the core does.
    pub(crate) ticks_first: bool,
    pub(crate) way: Duration,
    pub(crate) habit: Habit,
    /// Chance that a rival comes when it can; above 0, one is there first.
    pub(crate) rival: u8,
    pub(crate) rival_holds: Duration,
    pub(crate) rival_drains: Duration,
    /// Whether the store tells when the rival's lease runs out.
    pub(crate) tells_expiry: bool,
    /// Time from which another has done the task.
    pub(crate) done_by_another: Option<Duration>,
    pub(crate) cordoned_before: bool,
    pub(crate) begins_late: Duration,
    pub(crate) bell: Option<IpAddr>,
    pub(crate) polls_as_ever: bool,
    pub(crate) rings: Vec<(Ring, Duration)>,
    pub(crate) acts: Vec<Act>,
    /// Address of the rival's doorbell; whether polls continue while it is heard; its rings, with
    /// pauses.
    pub(crate) condition: Option<Duration>,
    pub(crate) answers: Vec<(Result<(), Unfit>, Option<Duration>)>,
    pub(crate) health: HealthRules,
    pub(crate) words: Vec<(WatchdogWord, Duration)>,
    pub(crate) speaks: usize,
    /// Results with delays; `None`: never.
    pub(crate) probes: Vec<(Result<(), ProbeFailure>, Option<Duration>)>,
    /// Whether a write of the command's health is lost, and when that is known.
    pub(crate) told: Vec<(bool, Duration)>,
    pub(crate) drive: Option<DrivePlan>,
    /// Time after which there are no more faults.
    pub(crate) rest: Duration,
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

pub(super) fn maybe<T>(rng: &mut Rng, percent: u8, what: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u8(0..100) < percent).then(|| what(rng))
}

fn budget(rng: &mut Rng) -> Budget {
    match rng.u8(0..6) {
        0..3 => Budget::for_lease(secs(one(rng, &[15, 30, 60]))),
        3 => {
            let lock = one(rng, &[2000, 5000, 10_000, 30_000, 60_000, 300_000]);
            let share = one(rng, &[10, 50, 70, 90]);
            let most = maybe(rng, 30, |_| secs(20));
            Budget::for_lock(ms(lock), share).renewing_within(most)
        }
        _ => loop {
            let lease = ms(rng.u64(1..70_000));
            let budget = Budget {
                lease,
                renew_every: ms(rng.u64(500..20_000)),
                grace_on_loss: ms(rng.u64(0..20_000)),
                margin: ms(rng.u64(100..3000)),
                attempt: one(rng, &[ms(5000), ms(5000), ms(1000)]),
            };
            if budget.validate().is_ok() {
                return budget;
            }
        },
    }
}

// Often about equal to the lifetime of a command.
fn hold(rng: &mut Rng) -> Duration {
    let any = rng.u64(1..120);
    secs(one(rng, &[1, 2, 3, 10, 20, 90, any, any]))
}

fn hold_policy(rng: &mut Rng) -> HoldPolicy {
    HoldPolicy {
        restart: maybe(rng, 50, |rng| Restart {
            after: one(rng, &[After::Failure, After::Any]),
            limit: rng.u32(0..8),
            window: secs(one(rng, &[5, 30, 120, 600])),
        }),
        max_hold: maybe(rng, 40, hold),
        min_hold: maybe(rng, 40, hold),
        cooldown: maybe(rng, 40, |rng| secs(rng.u64(1..60))),
    }
}

fn rules(rng: &mut Rng) -> (Rules, bool) {
    let leased = rng.u8(0..4) > 0;
    let wakes = if leased {
        rng.u8(0..20) == 0
    } else {
        rng.u8(0..4) > 0
    };
    let polls = [500, 1000, 2000, 2000, 5000, 16_000, 60_000];
    let (mut policy, mut once) = (HoldPolicy::default(), None);
    match rng.u8(0..4) {
        0 => {}
        1 | 2 => policy = hold_policy(rng),
        _ => {
            once = Some(Once {
                on_failure: one(rng, &[OnFailure::Retry, OnFailure::Retry, OnFailure::Stop]),
                attempts: maybe(rng, 50, |rng| rng.u32(1..5)),
            });
        }
    }
    let rules = Rules {
        budget: leased.then(|| budget(rng)),
        poll: (!wakes).then(|| ms(one(rng, &polls))),
        wait: maybe(rng, 35, |rng| {
            let most = rng.u64(1..90_000);
            one(rng, &[Duration::ZERO, ms(most), ms(most)])
        }),
        patience: secs(one(rng, &[2, 10, 30])),
        auth_patience: std::time::Duration::from_secs(300),
        grace: secs(one(rng, &[0, 1, 5, 30])),
        stop_signal: one(rng, &[15, 3]),
        if_lost: one(rng, &[IfLost::Compete, IfLost::Compete, IfLost::Exit]),
        hold_policy: policy,
        once,
        on_terminal: false,
        seed: rng.u64(..),
    };
    (rules, wakes)
}

fn addresses() -> Vec<IpAddr> {
    let all = [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.1",
        "127.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.0.1",
        "8.8.8.8",
        "172.32.0.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.0.1",
        "::ffff:8.8.8.8",
    ];
    all.map(|text| text.parse().expect("an address")).to_vec()
}

fn ring(rng: &mut Rng) -> (Ring, Duration) {
    let rank = one(rng, &[0, 0, 1, 2, 3, 4, 20]);
    let rings = [
        Ring::Greeted { rank },
        Ring::Greeted { rank },
        Ring::Greeted { rank },
        Ring::Draining,
        Ring::Draining,
        Ring::Released,
        Ring::Closed,
        Ring::Silent,
    ];
    (
        one(rng, &rings),
        ms(one(rng, &[0, 10, 99, 100, 3000, 30_000])),
    )
}

fn span(rng: &mut Rng) -> Duration {
    match rng.u8(0..3) {
        0 => ms(rng.u64(1..2000)),
        1 => ms(rng.u64(1000..15_000)),
        _ => ms(rng.u64(1000..90_000)),
    }
}

fn deed(rng: &mut Rng) -> Deed {
    match rng.u8(0..100) {
        0..40 => {
            let weather = match rng.u8(0..6) {
                0 => Weather::RequestsLost,
                1 => Weather::AnswersLost,
                2 => Weather::Slow(ms(rng.u64(50..5000))),
                3 => Weather::Refused(None),
                4 => Weather::Refused(Some(secs(rng.u64(1..60)))),
                _ => Weather::Forbidden,
            };
            Deed::Weather(weather, span(rng))
        }
        40..48 => Deed::Break(maybe(rng, 60, |rng| ms(rng.u64(0..30_000)))),
        48..62 => Deed::Stop(one(rng, &[15, 15, 2, 1])),
        62..72 => Deed::Cordon(maybe(rng, 60, span), maybe(rng, 70, span)),
        72..79 => Deed::Pause(span(rng)),
        79..82 => Deed::GuardianDies,
        82..87 => Deed::ClockJumps,
        87..91 => Deed::CommandStopping,
        91..98 => Deed::Echo(rng.u8(..)),
        _ => Deed::Stuck(maybe(rng, 80, |rng| ms(rng.u64(1..9900)))),
    }
}

fn answer(rng: &mut Rng) -> (Result<(), Unfit>, Option<Duration>) {
    let no = [
        Unfit::Failed(Failed::Exited(Exit::Code(1))),
        Unfit::Failed(Failed::NotStarted(2)),
        Unfit::ProgramRefused,
    ];
    let answer = match rng.u8(0..3) {
        0 => Err(one(rng, &no)),
        _ => Ok(()),
    };
    let spans = [0, 0, 1, 30, 300, 2000, 5000, 9000];
    (answer, maybe(rng, 90, |rng| ms(one(rng, &spans))))
}

fn drive(rng: &mut Rng, rules: &mut Rules) -> Option<DrivePlan> {
    let leased = rules.budget.is_some_and(|budget| {
        let lease = budget.lease;
        (secs(10)..=secs(60)).contains(&lease)
    });
    if !leased || rules.once.is_some() || rules.poll.is_none() {
        return None;
    }
    let cron = maybe(rng, 30, |rng| ms(rng.u64(500..20_000)));
    if cron.is_some() {
        rules.wait = Some(Duration::ZERO);
    }
    Some(DrivePlan {
        rival_lease: secs(one(rng, &[10, 15, 30, 60])),
        dies: one(rng, &[0, 0, 50, 100]),
        unread: one(rng, &[0, 0, 10, 50]),
        stale: one(rng, &[0, 0, 10, 50]),
        cron,
    })
}

/// Returns when all acts are over, `least` at the earliest.
pub(super) fn rest(acts: &[Act], least: Duration) -> Duration {
    let ends = acts.iter().map(|act| {
        act.at
            + match &act.deed {
                Deed::Weather(_, span) | Deed::Pause(span) => *span,
                Deed::Cordon(_, span) => span.unwrap_or_default(),
                _ => Duration::ZERO,
            }
    });
    ends.max().unwrap_or_default().max(least) + secs(6)
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut rng = Rng::with_seed(seed ^ 0xA10E_0000_5EED);
        let rng = &mut rng;
        let (mut rules, wakes) = rules(rng);
        let length = rng.u64(5000..200_000);
        let mut acts: Vec<Act> = (0..rng.usize(0..7))
            .map(|_| Act {
                at: ms(rng.u64(0..length)),
                deed: deed(rng),
            })
            .collect();
        // Some acts matter only soon after another.
        if acts.len() >= 2 && rng.bool() {
            let near = acts[0].at;
            for act in &mut acts[1..] {
                act.at = near + ms(one(rng, &[0, 50, 99, 100, 101, 1000]) * rng.u64(1..4));
            }
        }
        // The first attempt differs from all others.
        if let Some(deed) = maybe(rng, 20, deed) {
            acts.push(Act {
                at: ms(rng.u64(0..3)),
                deed,
            });
        }
        // From another random source, so that histories without these stay the same.
        let mut more = Rng::with_seed(seed ^ 0x40_0E00);
        let conditions = [20, 500, 2000, 2000, 6000, 30_000];
        let condition = maybe(&mut more, 20, |more| ms(one(more, &conditions)));
        let health = match more.u8(0..5) {
            0 => health(&mut more),
            _ => HealthRules::default(),
        };
        let drive = match more.u8(0..4) {
            0 => drive(&mut more, &mut rules),
            _ => None,
        };
        // With cron, no process lives on to hear of a cordon or a condition.
        let cron = drive.as_ref().is_some_and(|drive| drive.cron.is_some());
        let condition = condition.filter(|_| !cron);
        if cron {
            acts.retain(|act| {
                !matches!(act.deed, Deed::Cordon(..) | Deed::Pause(_) | Deed::Stop(_))
            });
        }
        if condition.is_some() && more.u8(0..6) == 0 {
            rules.wait = Some(ms(more.u64(1..3000)));
        }
        // Rare meetings: the answer to a renewal, the end of a command, a loss, a pause.
        let mut ticks_first = rng.u8(0..3) > 0;
        let way = ms(one(rng, &[0, 1, 10, 100]));
        let mut lives = maybe(rng, 60, |rng| {
            ms(one(rng, &[1, 1000, 10_000, 90_000]) * rng.u64(1..5))
        });
        if let Some(budget) = rules.budget.filter(|_| more.u8(0..4) == 0 && !cron) {
            acts.extend(meetings(&mut more, &budget, way, &mut lives));
        } else if let Some(budget) = rules.budget.filter(|_| more.u8(0..8) == 0 && !cron) {
            let (mut at, which) = (Duration::ZERO, more.u8(0..3));
            ticks_first &= which != 2;
            acts = ends(&mut more, which, &mut rules, &budget, way, &mut at);
            lives = Some(at);
        }
        if health.probe.is_some() && more.bool() {
            acts.extend((0..3).map(|_| {
                let at = ms(more.u64(0..length));
                let deed = Deed::Pause(ms(more.u64(300..20_000)));
                Act { at, deed }
            }));
        }
        if !health.is_empty()
            && let Some(at) = maybe(&mut more, 10, |more| ms(more.u64(0..length)))
        {
            let deed = Deed::ProberDies;
            acts.push(Act { at, deed });
        }
        acts.sort_by_key(|act| act.at);
        let rest = rest(&acts, ms(length));
        let exits = [Exit::Code(0), Exit::Code(0), Exit::Code(3), Exit::Signal(9)];
        let period = health.watchdog.unwrap_or(secs(2));
        let mut plan = Plan {
            condition,
            answers: (0..16).map(|_| answer(&mut more)).collect(),
            words: (0..32).map(|_| word(&mut more, period)).collect(),
            speaks: one(&mut more, &[1, 5, 20, 100, usize::MAX]),
            probes: (0..16).map(|_| probe(&mut more, health.probe)).collect(),
            told: told(seed),
            health,
            drive,
            seed,
            wakes,
            ticks_first,
            way,
            habit: Habit {
                lives,
                exits: (0..8).map(|_| one(rng, &exits)).collect(),
                deaf: one(rng, &[0, 0, 50, 100]),
                daemon: one(rng, &[0, 0, 50]),
                not_started: one(rng, &[0, 0, 0, 10]),
                hook_failed: one(rng, &[0, 0, 0, 20]),
                silent: one(rng, &[0, 0, 0, 0, 30]),
                ends_within: ms(one(rng, &[0, 100, 300, 3000, 60_000])),
            },
            rival: one(rng, &[0, 0, 50, 100]),
            rival_holds: {
                let holds = match rng.u8(0..4) {
                    0 => rng.u64(1..60),
                    _ => rng.u64(1..60_000),
                };
                // Longer than the pause in listening to a bell.
                ms(holds) + secs(one(&mut more, &[0, 0, 0, 90]))
            },
            rival_drains: ms(one(rng, &[0, 300, 5000])),
            tells_expiry: rng.u8(0..4) == 0,
            done_by_another: rules
                .once
                .and_then(|_| maybe(rng, 20, |rng| ms(rng.u64(0..length)))),
            cordoned_before: rng.u8(0..20) == 0 && !cron,
            bell: maybe(rng, 50, |rng| one(rng, &addresses())),
            polls_as_ever: rng.u8(0..4) == 0,
            rings: (0..24).map(|_| ring(rng)).collect(),
            begins_late: one(rng, &[0, 0, 0, 0, 5, 100]) * secs(1),
            rules,
            acts,
            rest,
        };
        meet(&mut plan);
        plan
    }
}
