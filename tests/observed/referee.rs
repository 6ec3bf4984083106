//! What must hold in every schedule. Knows when commands live, what was made on the share and by
//! whom, and what the adversary did; nothing of what the instances believe.

use trafficcop::internals::core::{Event, Failure};

use super::clock::{MILLI, SECOND, Time, nanos};
use super::schedule::Deed;
use super::share::GRACE;
use super::world::World;

impl World {
    /// The machine of an instance sleeps, or has just woken: what it runs is stopped at once.
    fn is_asleep(&self, p: usize) -> bool {
        let machine = &self.machines[self.instances[p].machine];
        machine.suspended.is_some()
            || machine.resumed > 0 && self.now < machine.resumed + 300 * MILLI
    }

    /// A command has come to life.
    pub(crate) fn judge_birth(&mut self, p: usize, token: u64) {
        self.tally.tenures += 1;
        if self.last_holder.replace(p).is_some_and(|last| last != p) {
            self.tally.handovers += 1;
        }
        let beside = (0..self.instances.len())
            .find(|q| *q != p && self.instances[*q].command.is_some() && !self.is_asleep(*q));
        if let Some(q) = beside {
            return self.violate(format!("overlap: #{p} starts while #{q} runs"));
        }
        if token <= self.last_token {
            let last = self.last_token;
            return self.violate(format!("#{p} has token {token} after {last}"));
        }
        self.last_token = token;
    }

    /// A machine has been up again for a moment: whatever it may not run is gone.
    pub(crate) fn judge_resumed(&mut self, m: usize) {
        let runs = |p: &usize| self.instances[*p].command.is_some() && !self.is_asleep(*p);
        let all = (0..self.instances.len()).filter(runs);
        let (here, there): (Vec<_>, Vec<_>) = all.partition(|p| self.instances[*p].machine == m);
        if let (Some(p), Some(q)) = (here.first(), there.first()) {
            self.violate(format!("overlap: #{p} still runs beside #{q}"));
        }
    }

    /// Somebody runs, and its lease was confirmed since the last fault was over.
    pub(crate) fn is_confirmed(&self) -> bool {
        let rest = self.schedule.rest;
        let mut all = self.instances.iter();
        all.any(|instance| instance.command.is_some() && instance.told_at > rest)
    }

    /// Somebody runs.
    pub(crate) fn judge_liveness(&mut self) {
        if self
            .instances
            .iter()
            .all(|instance| instance.command.is_none())
        {
            self.violate("nobody runs though the adversary has rested".to_owned());
        }
    }

    /// What a supervisor is told: is it true?
    pub(crate) fn judge_news(&mut self, p: usize, event: &Event) {
        let Event::Renewed { reply, .. } = event else {
            return;
        };
        if !matches!(reply, Err(Failure::Lost { .. })) || self.instances[p].command.is_none() {
            return;
        }
        let greatest = self.share.greatest;
        if self.share.maker(greatest) == Some(p) && self.broken.is_none() {
            self.violate(format!("#{p} is told that it lost what is its own"));
        }
    }

    /// The command is about to be stopped: was there a need?
    pub(crate) fn judge_need(&mut self, p: usize) {
        let now = self.clock(p);
        let instance = &self.instances[p];
        let Some(command) = instance.command.filter(|command| !command.killed) else {
            return;
        };
        let asked = instance.stop_asked || instance.orphaned || !instance.guardian;
        if command.termed || asked || now < instance.term_at {
            return;
        }
        self.tally.stops += 1;
        if self.broken.is_some() || self.share.is_made_by_another(self.share.greatest, p) {
            return;
        }
        if let Some(why) = self.nothing_kept_it(p, command.born) {
            self.violate(format!("#{p} is stopped without need: {why}"));
        }
    }

    /// Whether a renewal could have come through in time: it is due at a known moment, what hangs is
    /// answered soon after the weather is over, and the next attempt follows within 2.4 s.
    fn nothing_kept_it(&self, p: usize, born: Time) -> Option<String> {
        let instance = &self.instances[p];
        let budget = &instance.budget;
        let clock = self.machines[instance.machine].clock;
        let term_after = budget.lease - budget.margin - budget.grace_on_loss;
        let due = clock.when(instance.term_at - term_after + budget.renew_every);
        let due = due.max(born).max(instance.told_at);
        let mut faults: Vec<(Time, Time)> = Vec::new();
        for act in &self.schedule.acts {
            let (from, until) = match act.deed {
                Deed::Net(whom, _, span) if whom.is_none_or(|m| m == instance.machine) => {
                    // What was sent late in it can be late by as much.
                    (
                        act.at.saturating_sub(200 * MILLI),
                        act.at + span + slowness(act.deed),
                    )
                }
                Deed::Stop(m, span) | Deed::Suspend(m, span, _) if m == instance.machine => {
                    (act.at, act.at + span + 300 * MILLI)
                }
                // What is opened waits for the end of the grace: nothing that a renewal needs.
                Deed::RestartServer(_) => (act.at.saturating_sub(200 * MILLI), act.at + 5 * SECOND),
                _ => continue,
            };
            if until > due && from < self.now {
                faults.push((from, until));
            }
        }
        faults.sort_unstable();
        let mut free_since = due;
        let mut gaps = Vec::new();
        for (from, until) in faults {
            if from > free_since {
                gaps.push((free_since, from));
            }
            free_since = free_since.max(until);
        }
        if self.now > free_since {
            gaps.push((free_since, self.now));
        }
        let seconds = |at: Time| at as f64 / 1e9;
        gaps.into_iter().find_map(|(from, until)| {
            let long = until - from;
            let first = from == due && long > 800 * MILLI;
            let middle = long > 5 * SECOND + nanos(budget.lease) / 50 + 2800 * MILLI;
            (first || middle).then(|| {
                let (from, until) = (seconds(from), seconds(until));
                format!("nothing kept it from renewing from {from:.3} to {until:.3} s")
            })
        })
    }
}

fn slowness(deed: Deed) -> Time {
    match deed {
        Deed::Net(_, super::schedule::Weather::Slow(longest), _) => 2 * longest + 3 * SECOND,
        Deed::Net(..) => 5 * SECOND,
        Deed::RestartServer(true) => GRACE,
        _ => 0,
    }
}
