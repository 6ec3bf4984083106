//! The lifecycle hooks: what one guardian runs, and in which order, so that the core sees one workload.
//!
//! ```text
//! without control      control obtained                                   control gone
//! standby command ──▶ drained until its tree is empty ─▶ on-acquire ─▶ command ─▶ standby command
//! ```
//! Called by `run`, whose workload does what [`HookSequencer`] says and tells it what happened. It is pure: it
//! reads no clock, awaits nothing, sends nothing. What it must never do: start something while a
//! tree is there. The guardian would not do it either, for all of this is run by one guardian, and
//! one guardian has one tree at a time; so the one argument that the command's tree is empty before
//! the lease is given back holds for the standby's tree and the hook's as well.

mod transitions;

use std::time::Duration;

use crate::clock::Instant;
use crate::core::hold_policy::History;
use crate::core::{Deadlines, Exit, Failed, Start, WorkloadEvent};

// --stop-signal is what the command understands; a hook is a shell.
const TERM: i32 = libc::SIGTERM;

/// What can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs while we wait for control.
    Standby,
    /// Has to succeed before the command is started.
    OnAcquire,
    /// Runs while we are in control.
    Command,
}

/// Which hooks there are besides the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookConfig {
    /// There is a standby command.
    pub standby: bool,
    /// There is something that has to succeed before the command is started.
    pub on_acquire: bool,
    /// From SIGTERM to SIGKILL for the standby command.
    pub grace: Duration,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Order the guardian to start this.
    Launch {
        role: Role,
        deadlines: Deadlines,
    },
    Extend(Deadlines),
    Drain {
        signal: i32,
        end_of_grace: Instant,
    },
    Kill,
    /// Tell the guardian how to give the lease back, should we die.
    SetReleaseInfo,
    /// Tell the core (and people).
    Tell(WorkloadEvent),
    Say(HookNotice),
}

/// What people are told of a role that the core does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookNotice {
    /// The standby command did its work, and is not started again before the next time.
    StandbyDone,
    /// The standby command failed, and is started again after this time.
    StandbyFailed(Failed, Duration),
    /// The standby command's tree is drained, because we are in control.
    StandbyDrained,
    /// It left processes behind, which are drained.
    LeftBehind(Role),
    /// The standby command's tree cannot be killed, so nothing can be started here any more.
    StandbyStuck,
}

/// What the guardian has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    None,
    Standby {
        since: Instant,
        exit: Option<Exit>,
        /// It was asked to end.
        asked: bool,
    },
    OnAcquire {
        since: Instant,
        exit: Option<Exit>,
        /// When it was asked to end.
        asked_at: Option<Instant>,
        /// The guardian ends it on its own.
        acting: bool,
    },
    Command,
    /// The guardian is dead, and what it had is being killed; the core waits for the end of that.
    Orphaned {
        awaited: bool,
    },
    /// Nothing can be started any more.
    Never,
}

#[derive(Clone, Debug)]
pub(crate) struct HookSequencer {
    config: HookConfig,
    tree: Tree,
    /// The core has ordered a start, and was not told yet that nothing of it lives.
    term: Option<Start>,
    /// What lies between the last moment to start something and the deadline.
    stale: Duration,
    /// The tenure for which everything has succeeded that has to.
    prepared: Option<u64>,
    /// We wait for control.
    standing: bool,
    /// When a standby command that failed is started again.
    due: Option<Instant>,
    history: History,
}

impl HookSequencer {
    /// Nothing runs yet.
    #[must_use]
    pub(crate) fn new(config: HookConfig) -> HookSequencer {
        HookSequencer {
            config,
            tree: Tree::None,
            term: None,
            stale: Duration::ZERO,
            prepared: None,
            standing: false,
            due: None,
            history: History::default(),
        }
    }

    /// What runs, if the guardian is there to hand it something.
    #[must_use]
    pub(crate) fn on(&self) -> Option<Role> {
        match self.tree {
            Tree::Standby { .. } => Some(Role::Standby),
            Tree::OnAcquire { .. } => Some(Role::OnAcquire),
            Tree::Command => Some(Role::Command),
            Tree::None | Tree::Orphaned { .. } | Tree::Never => None,
        }
    }

    /// Whether nothing is left to wait for at the end.
    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self.tree, Tree::None | Tree::Never)
    }

    /// When to come back with [`HookSequencer::woke`].
    #[must_use]
    pub(crate) fn wake_at(&self) -> Instant {
        self.due.unwrap_or(Instant::FOREVER)
    }

    // --- what the core orders ---

    /// We wait for control.
    pub(crate) fn stand_by(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !std::mem::replace(&mut self.standing, true) {
            self.history = History::default();
            if self.tree == Tree::None {
                self.launch_standby(now, &mut effects);
            }
        }
        effects
    }

    /// We are in control: the command is to be started.
    pub(crate) fn start(&mut self, now: Instant, term: Start) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.term.is_some() || self.tree == (Tree::Orphaned { awaited: true }) {
            // The core starts nothing beside another: what it has is still there, and not replaced.
            return effects;
        }
        // Before anything else: a standby command whose tree becomes empty now must not be started
        // again.
        self.standing = false;
        self.due = None;
        self.stale = term.deadlines.term_at.since(term.fresh_until);
        self.term = Some(term);
        match &mut self.tree {
            Tree::None => self.proceed(now, &mut effects),
            Tree::Standby { asked, .. } => {
                // From here on the lease is the guardian's to give back, should we die.
                effects.push(Effect::SetReleaseInfo);
                // Told before the drain: should we die in between, the guardian ends it in time by
                // itself.
                effects.push(standby_extended(term.deadlines.term_at));
                if !std::mem::replace(asked, true) {
                    effects.push(Effect::Say(HookNotice::StandbyDrained));
                    effects.push(Effect::Drain {
                        signal: TERM,
                        end_of_grace: now + self.config.grace,
                    });
                }
            }
            // Only under a term of theirs, which is ruled out above.
            Tree::OnAcquire { .. } | Tree::Command => {}
            Tree::Orphaned { .. } | Tree::Never => self.refuse(&mut effects),
        }
        effects
    }

    /// The lease's deadlines have moved.
    pub(crate) fn extend(&mut self, now: Instant, deadlines: Deadlines) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(term) = &mut self.term else {
            return effects;
        };
        term.deadlines = deadlines;
        match self.tree {
            Tree::None => self.proceed(now, &mut effects),
            Tree::Standby { .. } => effects.push(standby_extended(deadlines.term_at)),
            Tree::OnAcquire { .. } | Tree::Command => effects.push(Effect::Extend(deadlines)),
            Tree::Orphaned { .. } | Tree::Never => {}
        }
        effects
    }

    /// What is under the lease is to end by `end_of_grace`; the command is sent `signal` first.
    pub(crate) fn drain(
        &mut self,
        now: Instant,
        signal: i32,
        end_of_grace: Instant,
    ) -> Vec<Effect> {
        let signal = match self.tree {
            Tree::Command => signal,
            Tree::None
            | Tree::Standby { .. }
            | Tree::OnAcquire { .. }
            | Tree::Orphaned { .. }
            | Tree::Never => TERM,
        };
        self.end(
            now,
            Effect::Drain {
                signal,
                end_of_grace,
            },
        )
    }

    /// What is under the lease is to end now.
    pub(crate) fn kill(&mut self, now: Instant) -> Vec<Effect> {
        self.end(now, Effect::Kill)
    }

    fn end(&mut self, now: Instant, effect: Effect) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(term) = self.term else {
            return effects;
        };
        match &mut self.tree {
            // Nothing of the tenure has been started. The standby's end goes on, but is no part of it.
            Tree::None | Tree::Standby { .. } => {
                self.tell_empty(asked_by(term, now), &mut effects);
            }
            Tree::OnAcquire { asked_at, .. } => {
                // The first time counts: the core takes the tree for ended by that, and not by a
                // later SIGKILL.
                asked_at.get_or_insert(now);
                effects.push(effect);
            }
            Tree::Command => effects.push(effect),
            Tree::Orphaned { .. } | Tree::Never => {}
        }
        effects
    }

    // --- time, and the end ---

    /// Time has passed.
    pub(crate) fn woke(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.due.is_some_and(|due| now >= due) && self.tree == Tree::None && self.standing {
            self.launch_standby(now, &mut effects);
        }
        effects
    }

    /// The instance leaves: what runs without control has to end, too.
    pub(crate) fn finish(&mut self, end_of_grace: Instant) -> Vec<Effect> {
        self.standing = false;
        self.due = None;
        if let Tree::Standby { asked, .. } = &mut self.tree
            && !std::mem::replace(asked, true)
        {
            return vec![Effect::Drain {
                signal: TERM,
                end_of_grace,
            }];
        }
        Vec::new()
    }

    // --- steps ---

    fn launch_standby(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.due = None;
        if !self.config.standby {
            return;
        }
        self.tree = Tree::Standby {
            since: now,
            exit: None,
            asked: false,
        };
        effects.push(Effect::Launch {
            role: Role::Standby,
            deadlines: Deadlines::NONE,
        });
    }

    /// In control, and nothing runs: the next thing under the lease, if there is time for it.
    fn proceed(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Some(term) = self.term else { return };
        if now >= term.deadlines.term_at {
            // The core will find that out, too; nothing of ours lived longer than this.
            return self.tell_empty(term.deadlines.term_at, effects);
        }
        if now > term.deadlines.term_at - self.stale {
            // The next renewal brings us back.
            return;
        }
        let role = if self.config.on_acquire && self.prepared != Some(term.token) {
            self.tree = Tree::OnAcquire {
                since: now,
                exit: None,
                asked_at: None,
                acting: false,
            };
            Role::OnAcquire
        } else {
            self.tree = Tree::Command;
            Role::Command
        };
        effects.push(Effect::Launch {
            role,
            deadlines: term.deadlines,
        });
    }

    /// The core is told that nothing under the lease lives.
    fn tell_empty(&mut self, at: Instant, effects: &mut Vec<Effect>) {
        self.term = None;
        effects.push(Effect::Tell(WorkloadEvent::TreeEmpty { at }));
    }

    /// Nothing can be started.
    fn refuse(&mut self, effects: &mut Vec<Effect>) {
        self.term = None;
        effects.push(Effect::Tell(WorkloadEvent::NotStarted {
            errno: libc::EBUSY,
        }));
    }
}

/// The standby's tree has no deadline of its own; but it must be gone while there is time left
/// under the lease.
fn standby_extended(term_at: Instant) -> Effect {
    Effect::Extend(Deadlines {
        term_at: Instant::FOREVER,
        kill_at: term_at,
    })
}

/// When the core asked for the end of what it has under this lease: now, but at its deadline where
/// we find that out later.
fn asked_by(term: Start, now: Instant) -> Instant {
    now.min(term.deadlines.term_at)
}

#[cfg(test)]
mod tests;
