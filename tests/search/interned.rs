//! Each possible state of the real [`Tenure`] and `GuardianState` once. Neither can be compared,
//! and a tenure cannot be copied: so its events are kept, and passed to a new one.
//!
//! Everything happens on the grid of [`TICK`]s, so two tenures are equal if they differ only in
//! moments between the same two ticks. So their randomness has no effect: a poll or retry of 2 s, a
//! fifth more or less, is due at the next tick.

use std::collections::HashMap;
use std::time::Duration;

use super::explore::Quickly;
use trafficcop::Instant;
use trafficcop_core::{
    Action, Budget, Deadlines, Event, Exit, Failure, Grant, HoldPolicy, HolderInfo, IfLost, Rules,
    Tenure, WorkloadEvent,
};
use trafficcop_guardian::state::{GuardianState, Input, Step};

pub(crate) const TICK: Duration = Duration::from_secs(3);
/// Ticks of the lease: renewal after 2, SIGTERM after 4, SIGKILL after 5.
pub(crate) const LEASE: u8 = 6;
/// Ticks from SIGKILL to the end of the lease.
pub(crate) const MARGIN: u8 = 1;
pub(crate) const NEVER: u8 = u8::MAX;

const STOP: i32 = 15;
const ESRCH: i32 = 3;
const ETIME: i32 = 62;

pub(crate) fn rules(seed: u64, attempt: Duration) -> Rules {
    let budget = Budget {
        lease: TICK * u32::from(LEASE),
        renew_every: TICK * 2,
        grace_on_loss: TICK,
        margin: TICK * u32::from(MARGIN),
        attempt,
    };
    budget.validate().expect("a division that is not refused");
    Rules {
        budget: Some(budget),
        poll: Some(Duration::from_secs(2)),
        wait: None,
        patience: Duration::from_secs(3600),
        auth_patience: std::time::Duration::from_secs(300),
        grace: TICK,
        stop_signal: STOP,
        if_lost: IfLost::Compete,
        hold_policy: HoldPolicy::default(),
        once: None,
        on_terminal: false,
        seed,
    }
}

pub(crate) fn at(tick: u8) -> Instant {
    match tick {
        NEVER => Instant::FOREVER,
        tick => Instant::ZERO + TICK * (1000 + u32::from(tick)),
    }
}

/// Returns the first tick that is not before this.
pub(crate) fn tick_of(instant: Instant) -> u8 {
    if instant == Instant::FOREVER {
        return NEVER;
    }
    let ticks = instant.as_nanos().div_ceil(nanos_of_a_tick());
    u8::try_from(ticks.saturating_sub(1000)).unwrap_or(NEVER)
}

fn nanos_of_a_tick() -> u64 {
    u64::try_from(TICK.as_nanos()).expect("a short tick")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum News {
    Started,
    NotStarted,
    /// Refused, because its deadline had passed.
    TooLate,
    Exited,
    LeftBehind,
    TreeEmpty(u8),
    Acting,
    Lost,
    Stuck,
}

impl News {
    fn event(self) -> WorkloadEvent {
        match self {
            News::Started => WorkloadEvent::Started { pid: 1 },
            News::NotStarted => WorkloadEvent::NotStarted { errno: ESRCH },
            News::TooLate => WorkloadEvent::NotStarted { errno: ETIME },
            News::Exited => WorkloadEvent::Exited(Exit::Signal(STOP)),
            News::LeftBehind => WorkloadEvent::LeftBehind,
            News::TreeEmpty(tick) => WorkloadEvent::TreeEmpty { at: at(tick) },
            News::Acting => WorkloadEvent::Acting,
            News::Lost => WorkloadEvent::Lost,
            News::Stuck => WorkloadEvent::TreeStuck,
        }
    }

    fn of(event: WorkloadEvent) -> News {
        match event {
            WorkloadEvent::Started { .. } => News::Started,
            WorkloadEvent::NotStarted { errno: ETIME } => News::TooLate,
            WorkloadEvent::Exited(_) => News::Exited,
            WorkloadEvent::LeftBehind => News::LeftBehind,
            WorkloadEvent::TreeEmpty { at } => News::TreeEmpty(tick_of(at)),
            WorkloadEvent::Acting => News::Acting,
            WorkloadEvent::TreeStuck => News::Stuck,
            other => unreachable!("no guardian of the search says {other:?}"),
        }
    }
}

/// An answer to a request, or silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// The token, for an acquire.
    Done(u8),
    Held,
    Lost,
    Silence,
}

impl Reply {
    fn result(self) -> Result<(), Failure> {
        match self {
            Reply::Done(_) => Ok(()),
            Reply::Held => Err(Failure::Held(HolderInfo::default())),
            Reply::Lost => Err(Failure::Lost {
                until: None,
                why: String::new(),
            }),
            Reply::Silence => Err(Failure::Transient {
                why: String::new(),
                retry_after: None,
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Told {
    New,
    Ticked,
    Acquired(u8, Reply),
    Renewed(u8, Reply),
    Released(Reply),
    Workload(News),
    StopAsked,
}

impl Told {
    fn event(self) -> Event {
        match self {
            Told::New | Told::Ticked => Event::Ticked,
            Told::Acquired(t0, reply) => Event::Acquired(reply.result().map(|()| {
                let Reply::Done(token) = reply else {
                    unreachable!("it was granted")
                };
                Grant {
                    t0: at(t0),
                    token: u64::from(token),
                    failed: 0,
                }
            })),
            Told::Renewed(t0, reply) => Event::Renewed {
                t0: at(t0),
                reply: reply.result(),
            },
            Told::Released(reply) => Event::Released(reply.result()),
            Told::Workload(news) => Event::Workload(news.event()),
            Told::StopAsked => Event::StopAsked(STOP),
        }
    }
}

/// Wanted effect of a core, as far as the search needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Acquire { give_up: u8 },
    Withdraw { give_up: u8 },
    Renew { give_up: u8 },
    Release { give_up: u8 },
    Abandon,
    Start { term: u8, kill: u8, token: u8 },
    Extend { term: u8, kill: u8 },
    Drain { end: u8 },
    Kill,
}

fn effect(action: &Action) -> Option<Effect> {
    let ticks = |deadlines: &Deadlines| (tick_of(deadlines.term_at), tick_of(deadlines.kill_at));
    Some(match action {
        Action::Acquire { give_up_at } => Effect::Acquire {
            give_up: tick_of(*give_up_at),
        },
        Action::Withdraw { give_up_at } => Effect::Withdraw {
            give_up: tick_of(*give_up_at),
        },
        Action::Renew { give_up_at } => Effect::Renew {
            give_up: tick_of(*give_up_at),
        },
        Action::Release { give_up_at } => Effect::Release {
            give_up: tick_of(*give_up_at),
        },
        Action::Abandon => Effect::Abandon,
        Action::Start(start) => {
            let (term, kill) = ticks(&start.deadlines);
            Effect::Start {
                term,
                kill,
                token: u8::try_from(start.token).expect("few tenures"),
            }
        }
        Action::Extend(deadlines) => {
            let (term, kill) = ticks(deadlines);
            Effect::Extend { term, kill }
        }
        Action::Drain { end_of_grace, .. } => Effect::Drain {
            end: tick_of(*end_of_grace),
        },
        Action::Kill => Effect::Kill,
        // For people, for standbys that would look sooner, and for commands without control.
        Action::Announce
        | Action::Attend { .. }
        | Action::StandBy
        | Action::TenureOver { .. }
        | Action::Notify(_) => return None,
        Action::Record { .. } | Action::Ask { .. } | Action::Look { .. } => {
            unreachable!("no task here, and no condition")
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fed {
    Ticked,
    Forked { term: u8, kill: u8 },
    Executed,
    Extended { term: u8, kill: u8 },
    DrainAsked { end: u8 },
    KillAsked,
    Orphaned,
    MainExited,
    OthersLive,
    Emptied,
}

impl Fed {
    fn input(self) -> Input {
        let deadlines = |term, kill| Deadlines {
            term_at: at(term),
            kill_at: at(kill),
        };
        match self {
            Fed::Ticked => Input::Ticked,
            Fed::Forked { term, kill } => Input::Forked {
                deadlines: deadlines(term, kill),
                stop_signal: STOP,
                pid: 1,
            },
            Fed::Executed => Input::Executed,
            Fed::Extended { term, kill } => Input::Extended(deadlines(term, kill)),
            Fed::DrainAsked { end } => Input::DrainAsked {
                signal: STOP,
                end_of_grace: at(end),
            },
            Fed::KillAsked => Input::KillAsked,
            Fed::Orphaned => Input::Orphaned,
            Fed::MainExited => Input::MainExited(Exit::Signal(STOP)),
            Fed::OthersLive => Input::OthersLive,
            Fed::Emptied => Input::Emptied,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Tell(News),
    SignalGroup,
    TermRest,
    Kill,
    Depart,
}

struct Core {
    before: u32,
    tick: u8,
    told: Told,
    wake: u8,
    ended: bool,
}

/// Result of each event at a tick.
type Known<Id, Told, Wanted> = HashMap<(Id, u8, Told), (Id, Vec<Wanted>), Quickly>;

pub(crate) struct Interned {
    seed: u64,
    attempt: Duration,
    cores: Vec<Core>,
    cores_by_text: HashMap<String, u32>,
    steps: Known<u32, Told, Effect>,
    guardians: Vec<GuardianState>,
    guardians_by_text: HashMap<String, u16>,
    turns: Known<u16, Fed, Act>,
}

impl Interned {
    /// Makes a collection with a new guardian's state, which is the first.
    pub(crate) fn new(seed: u64, attempt: Duration) -> Interned {
        let guardian = GuardianState::with_grace(TICK);
        Interned {
            seed,
            attempt,
            cores: Vec::new(),
            cores_by_text: HashMap::new(),
            steps: HashMap::default(),
            guardians: vec![guardian],
            guardians_by_text: HashMap::from([(format!("{guardian:?}"), 0)]),
            turns: HashMap::default(),
        }
    }

    pub(crate) fn begin(&mut self, tick: u8) -> u32 {
        let core = Tenure::new(rules(self.seed, self.attempt), at(tick));
        self.keep(&core, u32::MAX, tick, Told::New)
    }

    pub(crate) fn step(&mut self, core: u32, tick: u8, told: Told) -> (u32, Vec<Effect>) {
        if let Some(known) = self.steps.get(&(core, tick, told)) {
            return known.clone();
        }
        let mut real = self.rebuild(core);
        let actions = real.step(at(tick), told.event());
        let effects: Vec<Effect> = actions.iter().filter_map(effect).collect();
        let next = self.keep(&real, core, tick, told);
        self.steps
            .insert((core, tick, told), (next, effects.clone()));
        (next, effects)
    }

    pub(crate) fn wake(&self, core: u32) -> u8 {
        self.cores[core as usize].wake
    }

    pub(crate) fn has_ended(&self, core: u32) -> bool {
        self.cores[core as usize].ended
    }

    fn keep(&mut self, real: &Tenure, before: u32, tick: u8, told: Told) -> u32 {
        let next = u32::try_from(self.cores.len()).expect("fewer cores");
        let id = *self.cores_by_text.entry(text(real)).or_insert(next);
        if id == next {
            self.cores.push(Core {
                before,
                tick,
                told,
                wake: tick_of(real.wake_at()),
                ended: real.ending().is_some(),
            });
        }
        id
    }

    fn rebuild(&self, core: u32) -> Tenure {
        let mut way = Vec::new();
        let mut at_core = core;
        loop {
            let core = &self.cores[at_core as usize];
            if core.told == Told::New {
                let mut real = Tenure::new(rules(self.seed, self.attempt), at(core.tick));
                for (tick, told) in way.into_iter().rev() {
                    real.step(at(tick), Told::event(told));
                }
                return real;
            }
            way.push((core.tick, core.told));
            at_core = core.before;
        }
    }

    pub(crate) fn turn(&mut self, guardian: u16, tick: u8, fed: Fed) -> (u16, Vec<Act>) {
        if let Some(known) = self.turns.get(&(guardian, tick, fed)) {
            return known.clone();
        }
        let mut real = self.guardians[usize::from(guardian)];
        let steps = real.step(at(tick), fed.input());
        let acts: Vec<Act> = steps
            .iter()
            .map(|step| match step {
                Step::Tell(event) => Act::Tell(News::of(event)),
                Step::SignalGroup(_) | Step::SignalMain(_) => Act::SignalGroup,
                Step::TermRest => Act::TermRest,
                Step::Kill => Act::Kill,
                Step::Depart => Act::Depart,
            })
            .collect();
        let next = u16::try_from(self.guardians.len()).expect("fewer guardians");
        let id = *self
            .guardians_by_text
            .entry(format!("{real:?}"))
            .or_insert(next);
        if id == next {
            self.guardians.push(real);
        }
        self.turns.insert((guardian, tick, fed), (id, acts.clone()));
        (id, acts)
    }

    pub(crate) fn timer(&self, guardian: u16) -> u8 {
        tick_of(self.guardians[usize::from(guardian)].next())
    }

    pub(crate) fn count(&self) -> (usize, usize) {
        (self.cores.len(), self.guardians.len())
    }
}

/// Formats a core without its randomness, every moment moved to its tick.
fn text(core: &Tenure) -> String {
    let whole = format!("{core:?}");
    let mut text = String::with_capacity(whole.len());
    let mut rest = whole.as_str();
    while let Some(from) = rest.find(|c: char| c.is_ascii_digit()) {
        text.push_str(&rest[..from]);
        let tail = &rest[from..];
        let length = tail
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(tail.len());
        let number = &tail[..length];
        rest = &tail[length..];
        if text.ends_with("Jitter(") {
            continue;
        }
        match number.split_once('.') {
            Some((seconds, nanos)) if nanos.len() == 9 && rest.starts_with('s') => {
                let seconds: u64 = seconds.parse().expect("digits");
                let nanos: u64 = nanos.parse().expect("digits");
                let instant = Instant::from_nanos(seconds * 1_000_000_000 + nanos);
                text.push_str(&tick_of(instant).to_string());
            }
            _ => text.push_str(number),
        }
    }
    text.push_str(rest);
    text
}
