//! What a schedule consists of, all of it from a seed: the fleet, and what an adversary does to it.

use std::time::Duration;

use fastrand::Rng;

use super::clock::{MILLI, SECOND, Time};
use super::protocol::Protocol;
use super::share::GRACE;

/// What the way between a machine and the server does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Requests and answers are late, each by so much at most.
    Slow(Time),
    /// Nothing passes; what was asked is asked again when it is over.
    Frozen,
    /// Requests pass, answers do not: what was asked is asked again when it is over.
    LosesAnswers,
    /// The mount gives up: an error, whatever becomes of the request.
    Errors,
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Supervisor,
    Guardian,
    Machine,
}

/// What the adversary does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// To one machine, or to all.
    Net(Option<usize>, Weather, Time),
    /// The supervisor stands still.
    Stop(usize, Time),
    Kill(usize, Who),
    /// The whole machine stands still; its clock goes on. Then it is shown what it saw last for the
    /// second span.
    Suspend(usize, Time, Time),
    /// What a machine reads is as old as that, for so long.
    Stale(usize, Time, Time),
    /// The hint cannot be read.
    Torn(Time),
    /// With a grace period, or without.
    RestartServer(bool),
    /// An operator gives control to somebody else.
    Break,
    /// A stop is asked for.
    Signal(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub(crate) at: Time,
    pub(crate) deed: Deed,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) protocol: Protocol,
    /// Of each machine: how wrong its clock is, and the lease of its instances.
    pub(crate) ppm: Vec<i64>,
    pub(crate) leases: Vec<Duration>,
    pub(crate) poll: Duration,
    /// As short as they may be, else the usual ones.
    pub(crate) least_margins: bool,
    /// Of a hundred commands, so many do not listen.
    pub(crate) deaf: u8,
    /// A command ends by itself within twice that.
    pub(crate) lives: Option<Time>,
    /// How old what machines read can be at any time.
    pub(crate) staleness: Time,
    pub(crate) acts: Vec<Act>,
    /// When the last act is over, and what it did to the network has passed.
    pub(crate) rest: Time,
}

/// The longest delay of a single message.
pub(crate) const LONGEST: Time = 20 * SECOND;

impl Schedule {
    pub(crate) fn of(seed: u64, protocol: Protocol) -> Schedule {
        let mut rng = Rng::with_seed(seed ^ 0x0B5E_27ED_0000_0000);
        let machines = rng
            .choice([1, 2, 2, 2, 2, 2, 3, 3, 4, 5])
            .expect("a choice");
        let drift = rng.choice([0, 1000, 10_000, 10_000]).expect("a choice");
        let ppm = (0..machines)
            .map(|_| rng.choice([-1, 0, 1]).expect("a choice") * drift)
            .collect();
        let mixed = rng.bool();
        let usual = lease(&mut rng);
        let leases = (0..machines)
            .map(|_| if mixed { lease(&mut rng) } else { usual })
            .collect();
        let length = rng.u64(15..70) * SECOND;
        let count = rng.usize(0..7);
        let mut acts: Vec<Act> = (0..count)
            .map(|_| Act {
                at: rng.u64(SECOND..length),
                deed: deed(&mut rng, machines),
            })
            .collect();
        // Some faults only meet when they are made to.
        if rng.u8(0..3) == 0 && acts.len() >= 2 {
            let near = acts[0].at;
            for act in &mut acts[1..] {
                act.at = near + rng.u64(0..15 * SECOND);
            }
        }
        let kind = rng.u8(0..32);
        acts.extend(pattern(&mut rng, protocol.focus.unwrap_or(kind), machines));
        acts.sort_by_key(|act| act.at);
        let rest = acts.iter().map(|act| act.at + lasts(act.deed)).max();
        Schedule {
            seed,
            protocol,
            ppm,
            leases,
            poll: Duration::from_secs(rng.choice([1, 5, 10, 10, 10, 10, 10]).expect("a choice")),
            least_margins: rng.bool(),
            deaf: rng.choice([0, 30, 100]).expect("a choice"),
            lives: (rng.u8(0..4) == 0).then(|| rng.u64(1..40) * SECOND),
            staleness: rng.choice([0, 0, 5, 60]).expect("a choice") * SECOND,
            acts,
            rest: rest.unwrap_or(length) + LONGEST + 5 * SECOND,
        }
    }
}

fn lease(rng: &mut Rng) -> Duration {
    Duration::from_secs(rng.choice([10, 10, 12, 15, 20, 30, 60]).expect("a choice"))
}

fn lasts(deed: Deed) -> Time {
    match deed {
        Deed::Net(_, _, span) | Deed::Stop(_, span) | Deed::Torn(span) => span,
        Deed::Suspend(_, span, after) => span + after,
        Deed::Stale(_, _, span) => span,
        Deed::RestartServer(true) => GRACE + 2 * SECOND,
        Deed::RestartServer(false) | Deed::Kill(..) | Deed::Break | Deed::Signal(_) => 0,
    }
}

fn span(rng: &mut Rng, longest: u64) -> Time {
    match rng.u8(0..3) {
        0 => rng.u64(10..3000) * MILLI,
        1 => rng.u64(1000..15_000) * MILLI,
        _ => rng.u64(1000..longest * 1000) * MILLI,
    }
}

fn deed(rng: &mut Rng, machines: usize) -> Deed {
    let machine = rng.usize(0..machines);
    match rng.u8(0..100) {
        0..38 => {
            let weather = match rng.u8(0..6) {
                0 | 1 => Weather::Slow(span(rng, 30).min(LONGEST)),
                2 | 3 => Weather::LosesAnswers,
                4 => Weather::Errors,
                _ => Weather::Frozen,
            };
            Deed::Net(rng.bool().then_some(machine), weather, span(rng, 50))
        }
        38..48 => Deed::Stop(machine, span(rng, 60)),
        48..62 => {
            let who = [
                Who::Supervisor,
                Who::Supervisor,
                Who::Guardian,
                Who::Machine,
            ];
            Deed::Kill(machine, rng.choice(who).expect("a choice"))
        }
        62..70 => Deed::Suspend(machine, span(rng, 60), span(rng, 60)),
        70..78 => Deed::Stale(machine, span(rng, 60), span(rng, 60)),
        78..82 => Deed::Torn(span(rng, 60)),
        82..91 => Deed::RestartServer(rng.bool()),
        91..94 => Deed::Break,
        _ => Deed::Signal(machine),
    }
}

/// What hardly ever meets by chance.
fn pattern(rng: &mut Rng, kind: u8, machines: usize) -> Vec<Act> {
    let machine = rng.usize(0..machines);
    let at = rng.u64(3..40) * SECOND + rng.u64(0..1000) * MILLI;
    let act = |at, deed| Act { at, deed };
    match kind {
        // A view that is older than what is kept; and the network is not what it was, either.
        0 => {
            let gone = rng.u64(60..200) * SECOND;
            let back = rng.u64(5..120) * SECOND;
            let at = rng.u64(300..6000) * MILLI;
            let mut acts = vec![act(at, Deed::Suspend(machine, gone, back))];
            if rng.bool() {
                let weather = [
                    Weather::Slow(6 * SECOND),
                    Weather::LosesAnswers,
                    Weather::Errors,
                ];
                let weather = rng.choice(weather).expect("a choice");
                let late = rng.u64(0..8000) * MILLI;
                let net = Deed::Net(Some(machine), weather, span(rng, 20));
                acts.push(act(at + gone + late, net));
            }
            if rng.u8(0..3) == 0 {
                let late = rng.u64(0..4000) * MILLI;
                acts.push(act(at + gone + late, Deed::RestartServer(rng.bool())));
            }
            acts
        }
        // The holder loses answers, then dies; its heir may have seen any of it.
        1 => vec![
            act(
                at,
                Deed::Net(Some(machine), Weather::LosesAnswers, span(rng, 20)),
            ),
            act(
                at + rng.u64(0..12_000) * MILLI,
                Deed::Kill(machine, Who::Supervisor),
            ),
        ],
        // The server comes back while a machine has just been given control.
        2 => vec![
            act(at, Deed::Kill(machine, Who::Machine)),
            act(
                at + rng.u64(8..70) * SECOND,
                Deed::RestartServer(rng.bool()),
            ),
        ],
        // The way is slow from the beginning.
        3 => vec![act(
            0,
            Deed::Net(None, Weather::Slow(8 * SECOND), 20 * SECOND),
        )],
        // Answers come late, or are errors; then nothing comes any more.
        4 | 5 => {
            let weather = if kind == 4 {
                Weather::Slow(rng.u64(1000..6000) * MILLI)
            } else {
                Weather::Errors
            };
            let ill = rng.u64(2000..20_000) * MILLI;
            let cut = at + ill + rng.u64(0..3000) * MILLI;
            vec![
                act(at, Deed::Net(Some(machine), weather, ill)),
                act(cut, Deed::Net(Some(machine), Weather::Frozen, 75 * SECOND)),
            ]
        }
        // A holder is cut off.
        6 => vec![act(
            at,
            Deed::Net(Some(machine), Weather::Frozen, 75 * SECOND),
        )],
        // A holder comes back when another has taken over, whose record is not written yet.
        7 => vec![
            act(at, Deed::RestartServer(true)),
            act(
                at + rng.u64(0..20_000) * MILLI,
                Deed::Net(
                    Some(machine),
                    Weather::Errors,
                    rng.u64(6000..25_000) * MILLI,
                ),
            ),
        ],
        _ => Vec::new(),
    }
}
