//! Lifecycle hooks: one guardian runs them in an order in which the core sees one workload.
//!
//! ```text
//! without control      control obtained                                   control gone
//! standby command ──▶ drained until its tree is empty ─▶ on-acquire ─▶ command ─▶ standby command
//! ```
//! [`HookSequencer`] must never start anything while a tree exists. So the standby command and the hook, too,
//! have an empty tree before the lease is released.

mod transitions;

use std::time::Duration;

use crate::clock::Instant;
use crate::core::hold_policy::History;
use crate::core::{Deadlines, Exit, Failed, Start, WorkloadEvent};

// --stop-signal is for the command; a hook is a shell.
const TERM: i32 = libc::SIGTERM;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Standby,
    /// Must succeed before the command.
    OnAcquire,
    Command,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookConfig {
    pub standby: bool,
    pub on_acquire: bool,
    /// Time from SIGTERM to SIGKILL for the standby command.
    pub grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
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
    /// Tell the guardian how to release the lease if the supervisor dies.
    SetReleaseInfo,
    Tell(WorkloadEvent),
    Say(HookNotice),
}

/// News that the core does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookNotice {
    /// The standby command starts again with the next wait.
    StandbyDone,
    /// The standby command starts again after this time.
    StandbyFailed(Failed, Duration),
    StandbyDrained,
    LeftBehind(Role),
    StandbyStuck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    None,
    Standby {
        since: Instant,
        exit: Option<Exit>,
        asked: bool,
    },
    OnAcquire {
        since: Instant,
        exit: Option<Exit>,
        asked_at: Option<Instant>,
        /// The guardian ends it by itself.
        acting: bool,
    },
    Command,
    /// The guardian is dead; the core may wait for its tree.
    Orphaned {
        awaited: bool,
    },
    /// No program can start any more.
    Never,
}

#[derive(Clone, Debug)]
pub(crate) struct HookSequencer {
    config: HookConfig,
    tree: Tree,
    /// Kept until the core learns that no process of it lives.
    term: Option<Start>,
    /// Time between the last moment to start something and the deadline.
    stale: Duration,
    prepared: Option<u64>,
    standing: bool,
    due: Option<Instant>,
    history: History,
}

impl HookSequencer {
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

    #[must_use]
    pub(crate) fn on(&self) -> Option<Role> {
        match self.tree {
            Tree::Standby { .. } => Some(Role::Standby),
            Tree::OnAcquire { .. } => Some(Role::OnAcquire),
            Tree::Command => Some(Role::Command),
            Tree::None | Tree::Orphaned { .. } | Tree::Never => None,
        }
    }

    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self.tree, Tree::None | Tree::Never)
    }

    #[must_use]
    pub(crate) fn wake_at(&self) -> Instant {
        self.due.unwrap_or(Instant::FOREVER)
    }

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

    /// Drains the standby command first.
    pub(crate) fn start(&mut self, now: Instant, term: Start) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.term.is_some() || self.tree == (Tree::Orphaned { awaited: true }) {
            // The core replaces nothing.
            return effects;
        }
        // First: a standby command that ends now must not start again.
        self.standing = false;
        self.due = None;
        self.stale = term.deadlines.term_at.since(term.fresh_until);
        self.term = Some(term);
        match &mut self.tree {
            Tree::None => self.proceed(now, &mut effects),
            Tree::Standby { asked, .. } => {
                // From here on the guardian releases the lease if the supervisor dies.
                effects.push(Effect::SetReleaseInfo);
                // Before the drain: if the supervisor dies in between, the guardian ends it.
                effects.push(standby_extended(term.deadlines.term_at));
                if !std::mem::replace(asked, true) {
                    effects.push(Effect::Say(HookNotice::StandbyDrained));
                    effects.push(Effect::Drain {
                        signal: TERM,
                        end_of_grace: now + self.config.grace,
                    });
                }
            }
            Tree::OnAcquire { .. } | Tree::Command => {}
            Tree::Orphaned { .. } | Tree::Never => self.refuse(&mut effects),
        }
        effects
    }

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

    /// Ends what runs under the lease; only the command gets `signal`.
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

    pub(crate) fn kill(&mut self, now: Instant) -> Vec<Effect> {
        self.end(now, Effect::Kill)
    }

    fn end(&mut self, now: Instant, effect: Effect) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(term) = self.term else {
            return effects;
        };
        match &mut self.tree {
            // The standby command's end continues outside the tenure.
            Tree::None | Tree::Standby { .. } => {
                self.tell_empty(asked_by(term, now), &mut effects);
            }
            Tree::OnAcquire { asked_at, .. } => {
                // For the core it ended by the first request, not by a later SIGKILL.
                asked_at.get_or_insert(now);
                effects.push(effect);
            }
            Tree::Command => effects.push(effect),
            Tree::Orphaned { .. } | Tree::Never => {}
        }
        effects
    }

    pub(crate) fn woke(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.due.is_some_and(|due| now >= due) && self.tree == Tree::None && self.standing {
            self.launch_standby(now, &mut effects);
        }
        effects
    }

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

    fn proceed(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Some(term) = self.term else { return };
        if now >= term.deadlines.term_at {
            // The core will find that out, too.
            return self.tell_empty(term.deadlines.term_at, effects);
        }
        if now > term.deadlines.term_at - self.stale {
            // The next renewal calls this again.
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

    fn tell_empty(&mut self, at: Instant, effects: &mut Vec<Effect>) {
        self.term = None;
        effects.push(Effect::Tell(WorkloadEvent::TreeEmpty { at }));
    }

    fn refuse(&mut self, effects: &mut Vec<Effect>) {
        self.term = None;
        effects.push(Effect::Tell(WorkloadEvent::NotStarted {
            errno: libc::EBUSY,
        }));
    }
}

/// Returns the deadline of the standby command: it must be gone while the lease has time left.
fn standby_extended(term_at: Instant) -> Effect {
    Effect::Extend(Deadlines {
        term_at: Instant::FOREVER,
        kill_at: term_at,
    })
}

/// Returns when the core asked for the end: now, or at its passed deadline.
fn asked_by(term: Start, now: Instant) -> Instant {
    now.min(term.deadlines.term_at)
}

#[cfg(test)]
mod tests;
