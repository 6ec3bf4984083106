//! Decisions of the guardian: deadlines, drains and kills, as a function of time and events.
//!
//! This module is pure: it reads no clock, sends no signal, and never allocates.
//!
//! ```text
//! Idle ──▶ Running ──▶ Draining ──▶ Killing ──▶ Idle
//!              └───────────┴── the tree is empty ─▲
//! ```
//! Only the end of the tree leaves `Killing`.

use std::time::Duration;

use trafficcop_core::clock::Instant;
use trafficcop_core::{Deadlines, Exit, WorkloadEvent};

/// Time that a killed tree may take before it counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Event that the guardian decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Ticked,
    /// The command was forked.
    Forked {
        deadlines: Deadlines,
        stop_signal: i32,
        pid: i32,
    },
    /// The exec succeeded.
    Executed,
    /// The exec failed; the process is about to exit.
    NotExecuted { errno: i32 },
    /// New deadlines hold.
    Extended(Deadlines),
    /// Order to drain.
    DrainAsked { signal: i32, end_of_grace: Instant },
    /// Order to kill the tree.
    KillAsked,
    /// The supervisor is dead, or sends nonsense.
    Orphaned,
    /// The main process ended.
    MainExited(Exit),
    /// Others outlive the main process. Repeated at each look.
    OthersLive,
    /// No process of the tree is alive or to be reaped.
    Emptied,
}

/// Content of a control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlState {
    /// Time until which the command may believe in its control, or [`Instant::ZERO`].
    pub until: Instant,
    /// Time of the kill after a stop signal, or [`Instant::ZERO`].
    pub drain: Instant,
}

impl ControlState {
    /// No control, and nothing to stop.
    pub const NONE: ControlState = ControlState::until(Instant::ZERO);

    /// Control until this moment.
    #[must_use]
    pub const fn until(until: Instant) -> ControlState {
        let drain = Instant::ZERO;
        ControlState { until, drain }
    }
}

/// Processes of a command that get its stop signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum StopTo {
    /// The command's process group.
    #[default]
    Group,
    /// The command's main process alone.
    Main,
}

/// Action for the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tell(WorkloadEvent),
    /// Then continue its stopped processes.
    SignalGroup(i32),
    /// Then continue the stopped processes of its group.
    SignalMain(i32),
    /// Send SIGTERM, and SIGCONT if stopped, to new direct children outside the group.
    TermRest,
    Kill,
    /// Give the dead supervisor's lease back, and go.
    Depart,
}

/// Steps after one event, at most eight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps {
    steps: [Option<Step>; 8],
    len: usize,
}

impl Steps {
    fn push(&mut self, step: Step) {
        self.steps[self.len] = Some(step);
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = Step> + '_ {
        self.steps.iter().flatten().copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No tree.
    Idle,
    /// No signal was sent.
    Running,
    /// Kill at the earlier of `end` and `kill_at`.
    Draining { end: Instant },
    /// The tree is being killed.
    Killing { since: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Main {
    /// The result of the exec is unknown.
    Starting {
        pid: i32,
    },
    Runs,
    NotExecuted {
        errno: i32,
    },
    Ended,
}

/// State of the guardian.
#[derive(Clone, Copy, Debug)]
pub struct GuardianState {
    phase: Phase,
    main: Main,
    deadlines: Deadlines,
    /// 0: the command is not signalled, it asks.
    stop_signal: i32,
    stop_to: StopTo,
    /// For a drain that no deadline gives a grace to.
    grace: Duration,
    /// For what a command left behind, while the supervisor lives: it grants that much, or less.
    left_behind: Option<Duration>,
    sent: i32,
    sent_to_main: bool,
    orphaned: bool,
    /// Longest time from the supervisor's death to the kill.
    orphan_grace: Option<Duration>,
    told_acting: bool,
    told_left_behind: bool,
    told_stuck: bool,
}

impl GuardianState {
    /// Makes one with this grace for drains without deadlines.
    pub fn with_grace(grace: Duration) -> GuardianState {
        GuardianState {
            phase: Phase::Idle,
            main: Main::Ended,
            deadlines: Deadlines::NONE,
            stop_signal: 0,
            stop_to: StopTo::Group,
            grace,
            left_behind: None,
            sent: 0,
            sent_to_main: false,
            orphaned: false,
            orphan_grace: None,
            told_acting: false,
            told_left_behind: false,
            told_stuck: false,
        }
    }

    /// Sets the grace for what a command leaves behind.
    #[must_use]
    pub fn leaving(self, left_behind: Option<Duration>) -> GuardianState {
        GuardianState {
            left_behind,
            ..self
        }
    }

    /// Limits the grace after the supervisor's death.
    #[must_use]
    pub fn orphaned_for(self, orphan_grace: Option<Duration>) -> GuardianState {
        GuardianState {
            orphan_grace,
            ..self
        }
    }

    pub(super) fn stops(&mut self, stop_to: StopTo) {
        self.stop_to = stop_to;
    }

    /// Whether there is no tree to watch.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether the tree is being killed.
    pub fn is_killing(&self) -> bool {
        matches!(self.phase, Phase::Killing { .. })
    }

    pub(super) fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. })
    }

    /// A command that was asked to end because control is in doubt must not believe in it any more.
    pub(super) fn control(&self) -> ControlState {
        let kill_at = self.deadlines.kill_at;
        match self.phase {
            Phase::Idle => ControlState::NONE,
            Phase::Running => ControlState::until(kill_at),
            Phase::Draining { end } => ControlState {
                until: if self.told_acting {
                    Instant::ZERO
                } else {
                    kill_at
                },
                drain: end.min(kill_at),
            },
            Phase::Killing { since } => ControlState {
                until: Instant::ZERO,
                drain: since,
            },
        }
    }

    /// Time at which [`Input::Ticked`] has a consequence.
    pub fn next(&self) -> Instant {
        match self.phase {
            Phase::Idle => Instant::FOREVER,
            Phase::Running => self.deadlines.first(),
            Phase::Draining { end } => end.min(self.deadlines.kill_at),
            Phase::Killing { .. } if self.told_stuck => Instant::FOREVER,
            Phase::Killing { since } => since + STUCK_AFTER,
        }
    }

    /// Handles one event at `now`, and returns what to do.
    pub fn step(&mut self, now: Instant, event: Input) -> Steps {
        let mut steps = Steps::default();
        // The clock goes first: a deadline that has passed is not undone by what arrives late.
        self.look_at_the_clock(now, &mut steps);
        match event {
            Input::Ticked => {}
            Input::Forked {
                deadlines,
                stop_signal,
                pid,
            } => {
                *self = GuardianState {
                    phase: Phase::Running,
                    main: Main::Starting { pid },
                    deadlines,
                    stop_signal,
                    orphaned: self.orphaned,
                    orphan_grace: self.orphan_grace,
                    ..GuardianState::with_grace(self.grace).leaving(self.left_behind)
                };
            }
            Input::Executed => {
                if let Main::Starting { pid } = self.main {
                    self.main = Main::Runs;
                    steps.push(Step::Tell(WorkloadEvent::Started { pid }));
                }
            }
            Input::NotExecuted { errno } => self.main = Main::NotExecuted { errno },
            Input::Extended(deadlines) => match self.phase {
                // Absolute, so what is told last holds, be it shorter or longer.
                Phase::Running | Phase::Draining { .. } => {
                    self.deadlines = deadlines;
                }
                Phase::Idle | Phase::Killing { .. } => {}
            },
            Input::DrainAsked {
                signal,
                end_of_grace,
            } => self.drain(signal, end_of_grace, &mut steps),
            Input::KillAsked => self.kill(now, &mut steps),
            Input::Orphaned => {
                self.orphaned = true;
                let most = self.orphan_grace;
                let latest = most.map_or(Instant::FOREVER, |most| now + most);
                let end = latest.min(now + self.grace());
                match self.phase {
                    Phase::Idle => steps.push(Step::Depart),
                    Phase::Running => self.drain(self.stop_signal, end, &mut steps),
                    // A granted grace stays, but it must end.
                    Phase::Draining {
                        end: Instant::FOREVER,
                    } => self.phase = Phase::Draining { end },
                    // Other instances do not wait: the lock died with the supervisor.
                    Phase::Draining { end: before } => {
                        self.phase = Phase::Draining {
                            end: before.min(latest),
                        };
                    }
                    Phase::Killing { .. } => {}
                }
            }
            Input::MainExited(exit) => match self.main {
                Main::NotExecuted { .. } | Main::Ended => {}
                Main::Starting { .. } | Main::Runs => {
                    self.main = Main::Ended;
                    steps.push(Step::Tell(WorkloadEvent::Exited(exit)));
                }
            },
            Input::OthersLive => self.others_live(now, &mut steps),
            Input::Emptied => self.emptied(now, &mut steps),
        }
        // New deadlines may have passed already.
        self.look_at_the_clock(now, &mut steps);
        steps
    }

    fn grace(&self) -> Duration {
        let Deadlines { term_at, kill_at } = self.deadlines;
        if kill_at == Instant::FOREVER || term_at == Instant::FOREVER {
            self.grace
        } else {
            kill_at.since(term_at)
        }
    }

    fn look_at_the_clock(&mut self, now: Instant, steps: &mut Steps) {
        match self.phase {
            Phase::Idle => {}
            Phase::Running => {
                if now >= self.deadlines.kill_at {
                    self.act(steps);
                    self.kill(now, steps);
                } else if now >= self.deadlines.term_at {
                    self.act(steps);
                    // Until kill_at as it is now: a renewal that was still in the socket moves kill_at on,
                    // and who was asked to end would otherwise never have to.
                    self.drain(self.stop_signal, self.deadlines.kill_at, steps);
                }
            }
            Phase::Draining { end } => {
                if now >= self.deadlines.kill_at {
                    self.act(steps);
                    self.kill(now, steps);
                } else if now >= end {
                    self.kill(now, steps);
                }
            }
            Phase::Killing { since } => {
                if !self.told_stuck && now >= since + STUCK_AFTER {
                    self.told_stuck = true;
                    steps.push(Step::Tell(WorkloadEvent::TreeStuck));
                }
            }
        }
    }

    fn act(&mut self, steps: &mut Steps) {
        if !self.told_acting {
            self.told_acting = true;
            steps.push(Step::Tell(WorkloadEvent::Acting));
        }
    }

    fn drain(&mut self, signal: i32, end: Instant, steps: &mut Steps) {
        match self.phase {
            Phase::Idle | Phase::Killing { .. } => {}
            Phase::Running => {
                self.phase = Phase::Draining { end };
                self.signal(signal, steps);
            }
            Phase::Draining { end: before } => {
                // A begun grace can be cut, not lengthened.
                self.phase = Phase::Draining {
                    end: before.min(end),
                };
                // After the main process, the rest has got its signal. Do not repeat one, either: at a deadline
                // supervisor and guardian both act, and often a second signal means "at once".
                if self.main != Main::Ended && self.sent != signal {
                    self.signal(signal, steps);
                }
            }
        }
    }

    fn signal(&mut self, signal: i32, steps: &mut Steps) {
        self.sent = signal;
        self.sent_to_main = self.stop_to == StopTo::Main && self.main != Main::Ended;
        match (signal, self.sent_to_main) {
            (0, _) => {}
            (_, true) => steps.push(Step::SignalMain(signal)),
            (_, false) => steps.push(Step::SignalGroup(signal)),
        }
    }

    fn kill(&mut self, now: Instant, steps: &mut Steps) {
        match self.phase {
            Phase::Idle | Phase::Killing { .. } => {}
            Phase::Running | Phase::Draining { .. } => {
                self.phase = Phase::Killing { since: now };
                steps.push(Step::Kill);
            }
        }
    }

    fn others_live(&mut self, now: Instant, steps: &mut Steps) {
        match self.phase {
            Phase::Idle | Phase::Killing { .. } => return,
            Phase::Running | Phase::Draining { .. } => {}
        }
        if !self.told_left_behind {
            self.told_left_behind = true;
            steps.push(Step::Tell(WorkloadEvent::LeftBehind));
        }
        let signal = if self.stop_signal == 0 {
            0
        } else {
            libc::SIGTERM
        };
        if self.phase == Phase::Running {
            let grace = self.left_behind.filter(|_| !self.orphaned);
            let end = now + grace.unwrap_or_else(|| self.grace());
            self.drain(signal, end, steps);
        } else if self.sent != signal || self.sent_to_main {
            // Background jobs of a shell ignore SIGINT and SIGQUIT.
            self.signal(signal, steps);
        }
        if signal != 0 {
            steps.push(Step::TermRest);
        }
    }

    fn emptied(&mut self, now: Instant, steps: &mut Steps) {
        if self.phase == Phase::Idle {
            return;
        }
        self.phase = Phase::Idle;
        match self.main {
            Main::NotExecuted { errno } => {
                steps.push(Step::Tell(WorkloadEvent::NotStarted { errno }))
            }
            // "Nothing follows" was part of saying that the tree is stuck.
            Main::Starting { .. } | Main::Runs | Main::Ended if self.told_stuck => {}
            Main::Starting { .. } | Main::Runs | Main::Ended => {
                steps.push(Step::Tell(WorkloadEvent::TreeEmpty { at: now }));
            }
        }
        if self.orphaned {
            steps.push(Step::Depart);
        }
    }
}

#[cfg(test)]
mod tests;
