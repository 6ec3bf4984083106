//! The way between the machines and the server, and what the weather of the schedule does to it. A
//! client asks again until it is answered; a server that was restarted, or remembers no answers,
//! then does what it has done before once more.

use super::clock::{MILLI, Time};
use super::instance::Lane;
use super::schedule::{Deed, Weather};
use super::share::{Reply, Request, Share};
use super::world::{Happening, World};

/// Whose request it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) process: usize,
    pub(crate) machine: usize,
    pub(crate) lane: Lane,
    pub(crate) sequence: u64,
}

/// What becomes of the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Calm,
    Late(Time),
    /// It is lost; it is asked again at this moment.
    Lost(Time),
    /// Nobody waits for it any more.
    Nobody,
}

impl Weather {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Weather::Slow(_) => "slow",
            Weather::Frozen => "frozen",
            Weather::LosesAnswers => "loses answers",
            Weather::Errors => "errors",
        }
    }
}

impl Reply {
    /// What was only read may be answered late; what was done is done again.
    pub(crate) fn may_differ_when_repeated(&self) -> bool {
        matches!(
            self,
            Reply::Made | Reply::Exists | Reply::Missing | Reply::Done
        )
    }
}

impl World {
    fn weather(&self, machine: usize) -> Option<(Weather, Time)> {
        let now = self.now;
        let mut acts = self.schedule.acts.iter().rev();
        acts.find_map(|act| match act.deed {
            Deed::Net(whom, weather, span)
                if whom.is_none_or(|whom| whom == machine)
                    && (act.at..act.at + span).contains(&now) =>
            {
                Some((weather, act.at + span))
            }
            _ => None,
        })
    }

    fn travel(&mut self) -> Time {
        self.rng.u64(1..25) * MILLI
    }

    /// Sends the request of a thread.
    pub(crate) fn send(&mut self, process: usize, lane: Lane, request: Request) {
        let machine = self.instances[process].machine;
        let thread = self.instances[process].thread(lane);
        thread.sequence += 1;
        let wire = Wire {
            process,
            machine,
            lane,
            sequence: thread.sequence,
        };
        let soon = self.now + self.travel();
        let again = self.rng.u64(0..3000) * MILLI;
        let (arrives, mode) = match self.weather(machine) {
            None => (soon, Mode::Calm),
            Some((Weather::Slow(longest), _)) => (
                soon + self.rng.u64(0..=longest),
                Mode::Late(self.rng.u64(0..=longest)),
            ),
            Some((Weather::Frozen, until)) => (until + again, Mode::Calm),
            Some((Weather::LosesAnswers, until)) => (soon, Mode::Lost(until + again)),
            Some((Weather::Errors, _)) => {
                let told = self.now + self.rng.u64(1..5000) * MILLI;
                let epoch = self.share.epoch;
                self.plan(
                    told,
                    Happening::Answered(wire, request, Reply::Error, epoch),
                );
                match self.rng.u8(0..3) {
                    0 => return,
                    1 => (soon, Mode::Nobody),
                    _ => (soon + self.rng.u64(0..20_000) * MILLI, Mode::Nobody),
                }
            }
        };
        self.plan(arrives, Happening::Arrives(wire, request, mode));
    }

    /// As of when a machine is shown what it reads.
    fn view(&mut self, machine: usize) -> Time {
        let (since, until) = self.machines[machine].view;
        if self.now < until {
            return since;
        }
        let staleness = self.schedule.staleness;
        if staleness == 0 || self.rng.bool() {
            return self.now;
        }
        self.now.saturating_sub(self.rng.u64(0..staleness))
    }

    pub(crate) fn arrives(&mut self, wire: Wire, request: Request, mode: Mode) {
        if self.now < self.share.grace_until && Share::waits_for_grace(request) {
            let at = self.share.grace_until + self.rng.u64(0..2000) * MILLI;
            return self.plan(at, Happening::Arrives(wire, request, mode));
        }
        let view = self.view(wire.machine);
        let mut reply = self.share.handle(self.now, view, wire.process, request);
        if matches!(reply, Reply::Hint(_)) && (self.now < self.torn_until || self.rng.u8(..) < 3) {
            reply = Reply::Hint(None);
        }
        let Wire { process, lane, .. } = wire;
        self.say(|| format!("share: {request:?} of #{process} ({lane:?}) -> {reply:?}"));
        let epoch = self.share.epoch;
        let at = match mode {
            Mode::Calm if !reply.may_differ_when_repeated() => {
                // Late answers to what is only read make no stamp earlier.
                let answered = Happening::Answered(wire, request, reply, epoch);
                return self.happen(answered);
            }
            Mode::Calm => self.now + self.travel(),
            Mode::Late(span) => self.now + span,
            Mode::Lost(again) if self.rng.bool() => again,
            Mode::Lost(again) => {
                return self.plan(again, Happening::Arrives(wire, request, Mode::Calm));
            }
            Mode::Nobody => return,
        };
        self.plan(at, Happening::Answered(wire, request, reply, epoch));
    }

    /// An answer has come to the machine of whoever asked.
    pub(crate) fn delivers(&mut self, wire: Wire, reply: Reply) {
        let instance = &mut self.instances[wire.process];
        let dead = match wire.lane {
            Lane::Worker | Lane::Writer => !instance.lives,
            Lane::Guardian => !instance.guardian,
        };
        let thread = instance.thread(wire.lane);
        if dead || thread.sequence != wire.sequence {
            return;
        }
        thread.answered(reply);
        self.go_on(wire.process, wire.lane);
    }
}
