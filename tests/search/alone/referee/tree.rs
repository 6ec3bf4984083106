use trafficcop::Instant;
use trafficcop_core::{After, Event, Exit, HealthEvent, WorkloadEvent};

use super::settings::backoff;
use super::window::Window;
use super::{Next, Reason, Why};
use crate::alone::plan::secs;
use crate::alone::world::World;

impl World {
    pub(super) fn is_over_by(&self, event: &Event) -> bool {
        let Some(run) = &self.ledger.run else {
            return false;
        };
        match event {
            Event::Workload(WorkloadEvent::TreeEmpty { at }) => *at >= run.since,
            Event::Workload(WorkloadEvent::HookFailed { at, .. }) => {
                !run.started && *at >= run.since
            }
            Event::Workload(WorkloadEvent::NotStarted { .. }) => !run.started,
            _ => false,
        }
    }

    pub(super) fn hear_of_the_tree(&mut self, event: WorkloadEvent, over: bool) {
        let now = self.now;
        match event {
            WorkloadEvent::Started { .. } => {
                if let Some(run) = &mut self.ledger.run {
                    run.started = true;
                    self.ledger.controlled_before = true;
                }
            }
            WorkloadEvent::Exited(exit) => {
                if let Some(run) = &mut self.ledger.run {
                    run.started = true;
                    run.exit = Some((now, exit));
                    self.is_to_end(Reason::Exited, now);
                }
            }
            WorkloadEvent::Lost => {
                self.ledger.guardian_lost = true;
                self.ledger.corpse = true;
                self.is_to_end(Reason::Guardian, now);
            }
            WorkloadEvent::Acting => {
                self.ledger.acting = true;
                if let Some(run) = &mut self.ledger.run
                    && run.reason.is_none()
                {
                    run.reason = Some((Reason::Doubt, run.since));
                    if let Some(held) = &mut self.ledger.held {
                        held.doubted = true;
                        run.drained = Some((now, held.kill(&self.plan.rules)));
                    }
                }
            }
            WorkloadEvent::Health(HealthEvent::Hung(hung)) => {
                let restarts = self.rules().hold_policy.restart.is_some();
                if let Some(run) = &mut self.ledger.run
                    && run.reason.is_none()
                {
                    (run.reason, run.quiet) = (Some((Reason::Hung, now)), restarts);
                    self.ledger.hung = Some(hung);
                }
            }
            WorkloadEvent::Health(HealthEvent::GuardianLost) => {
                if let Some(run) = &mut self.ledger.run
                    && run.reason.is_none()
                {
                    run.reason = Some((Reason::Unwatched, now));
                    self.ledger.guardian_lost = true;
                }
            }
            WorkloadEvent::TreeStuck => self.ledger.stuck = self.ledger.run.is_some(),
            WorkloadEvent::TreeEmpty { at } if over => self.is_empty(at),
            WorkloadEvent::HookFailed { at, .. } if over => {
                self.ends_at(at);
                let run = self.ledger.run.take();
                let reason = run.and_then(|run| run.reason).map(|(reason, _)| reason);
                self.ledger.hook_failed = reason.is_none();
                self.ledger.controlled = self.ledger.controlled_before;
                self.ledger.expected = Some(reason.map_or(Why::GivenUp, Reason::why));
                self.leaves(None);
            }
            WorkloadEvent::NotStarted { errno } if over => {
                self.ledger.run = None;
                self.ledger.not_started = Some(errno);
                self.leaves(None);
            }
            _ => {}
        }
    }

    fn leaves(&mut self, exit: Option<Exit>) {
        self.ledger.exit = exit;
        self.ledger.next = Some(Next::Leave);
    }

    fn ends_at(&mut self, at: Instant) {
        let lease = self
            .rules()
            .budget
            .map(|budget| budget.lease - budget.lease / 50);
        let end = lease
            .zip(self.ledger.held.as_ref())
            .map(|(lease, held)| held.confirmed + lease);
        self.ledger.outlived = end.is_some_and(|end| at > end);
        self.ledger.empty_at = Some(at);
    }

    /// Notes that the tree is empty since `at`, with the effects.
    fn is_empty(&mut self, at: Instant) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let (Some(run), Some(held)) = (self.ledger.run.take(), self.ledger.held.clone()) else {
            return;
        };
        let exit = run.exit.map(|(_, exit)| exit);
        self.ends_at(at);
        let mut natural = match run.reason {
            None => at < held.term(&rules),
            Some((Reason::Exited, _)) => true,
            Some((Reason::Guardian | Reason::Unwatched, _)) => false,
            Some((_, due)) => at < due,
        };
        if run.reason.is_none()
            && !natural
            && let Some(held) = &mut self.ledger.held
        {
            held.doubted = true;
        }
        natural &= !self.ledger.stuck;
        let policy = &rules.hold_policy;
        self.ledger.natural = natural;
        let stopped = self.ledger.stop.is_some();
        self.ledger.expected = Some(match run.reason {
            _ if natural => Why::Ended,
            None | Some((Reason::Doubt | Reason::Exited, _)) => Why::Doubt,
            Some((reason, _)) => reason.why(),
        });
        let ran = run.exit.map_or(now, |(at, _)| at).since(run.since);
        let hung = !natural && !self.ledger.stuck && matches!(run.reason, Some((Reason::Hung, _)));
        if !hung {
            self.ledger.hung = None;
        }
        let once = rules.once.is_some();
        let exit = match exit {
            Some(Exit::Code(0)) if hung && once => Some(Exit::Signal(rules.stop_signal)),
            exit => exit,
        };
        self.leaves(exit);
        if once {
            let natural = natural || hung;
            if natural && exit.is_some() {
                self.ledger.next = Some(Next::Record);
                self.ledger.record = Some((now, Window::at(now)));
                self.ledger.tired_at = now + secs(300);
                self.ledger.expected = None;
            } else if natural {
                self.ledger.expected = Some(Why::NotRecorded);
            }
            return;
        }
        let ended = exit.filter(|_| natural && !stopped);
        if ended.is_none() && (!hung || stopped) {
            return;
        }
        let again = policy.restart.filter(|rule| {
            hung || rule.after == After::Any || exit.is_some_and(|exit| exit != Exit::Code(0))
        });
        if let Some(rule) = again {
            self.ledger.exit = None;
            let gone = now >= held.term(&rules) || held.safe_until.is_some();
            if self.ledger.guardian_lost || self.ledger.cordon.is_some() || gone {
                self.ledger.expected = Some(if self.ledger.guardian_lost {
                    Why::Guardian
                } else if held.safe_until.is_some() {
                    Why::Lost
                } else if gone {
                    Why::Doubt
                } else {
                    Why::Cordoned
                });
                return;
            }
            let Some(held) = &mut self.ledger.held else {
                return;
            };
            held.restarts.retain(|at| now.since(*at) < rule.window);
            if held.restarts.len() >= rule.limit as usize {
                self.ledger.spent = true;
                self.ledger.expected = Some(Why::GivenUp);
                return;
            }
            held.restarts.push(now);
            if ran >= secs(60) {
                held.in_a_row = 0;
            }
            let until = now + backoff(held.in_a_row);
            held.in_a_row += 1;
            held.hurry(now);
            self.ledger.next = Some(Next::Restart { until });
            self.ledger.expected = None;
        } else if let Some(span) = policy.min_hold
            && !hung
            && now < held.began + span
            && now < held.kill(&rules)
        {
            if let Some(held) = &mut self.ledger.held {
                held.hurry(now);
            }
            self.ledger.next = Some(Next::Keep {
                until: held.began + span,
            });
            self.ledger.expected = Some(Why::Ended);
        }
    }
}
