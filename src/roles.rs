//! Who is on stage: what one guardian runs, and in which order, so that the core sees one charge.
//!
//! ```text
//! without control      control obtained                                   control gone
//! standby command ──▶ drained until its tree is empty ─▶ on-acquire ─▶ command ─▶ standby command
//! ```
//! Called by `run`, whose charge does what [`Stage`] says and tells it what happened. It is pure: it
//! reads no clock, awaits nothing, sends nothing. What it must never do: start something while a
//! tree is there. The guardian would not do it either, for all of this is run by one guardian, and
//! one guardian has one tree at a time; so the one argument that the command's tree is empty before
//! the lease is given back holds for the standby's tree and the hook's as well.

mod heard;
mod words;

use std::time::Duration;

use crate::clock::Instant;
use crate::core::Exit;
use crate::core::habits::History;
use crate::guardian::WorkloadEvent;
pub use words::{Act, Cast, Remark, Role, Term};

/// What a drain of what is not the command sends first.
const TERM: i32 = libc::SIGTERM;

/// What the guardian has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    /// Nothing.
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

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Stage {
    cast: Cast,
    tree: Tree,
    /// The core has ordered a start, and was not told yet that nothing of it lives.
    term: Option<Term>,
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

impl Stage {
    /// An empty stage.
    #[must_use]
    pub fn new(cast: Cast) -> Stage {
        Stage {
            cast,
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
    pub fn on(&self) -> Option<Role> {
        match self.tree {
            Tree::Standby { .. } => Some(Role::Standby),
            Tree::OnAcquire { .. } => Some(Role::OnAcquire),
            Tree::Command => Some(Role::Command),
            Tree::None | Tree::Orphaned { .. } | Tree::Never => None,
        }
    }

    /// Whether nothing is left to wait for at the end.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        matches!(self.tree, Tree::None | Tree::Never)
    }

    /// When to come back with [`Stage::woke`].
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        self.due.unwrap_or(Instant::FOREVER)
    }

    // --- what the core orders ---

    /// We wait for control.
    pub fn stand_by(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        if !std::mem::replace(&mut self.standing, true) {
            self.history = History::default();
            if self.tree == Tree::None {
                self.launch_standby(now, &mut acts);
            }
        }
        acts
    }

    /// We are in control: the command is to be started.
    pub fn start(&mut self, now: Instant, term: Term) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.term.is_some() || self.tree == (Tree::Orphaned { awaited: true }) {
            // The core starts nothing beside another: what it has is still there, and not replaced.
            return acts;
        }
        self.standing = false;
        self.due = None;
        self.stale = term.term_at.since(term.fresh_until);
        self.term = Some(term);
        match &mut self.tree {
            Tree::None => self.proceed(now, &mut acts),
            Tree::Standby { asked, .. } => {
                // From here on the lease is the guardian's to give back, should we die.
                acts.push(Act::SetReleaseInfo);
                acts.push(standby_extended(term.term_at));
                if !std::mem::replace(asked, true) {
                    acts.push(Act::Say(Remark::StandbyDrained));
                    acts.push(Act::Drain {
                        signal: TERM,
                        end_of_grace: now + self.cast.grace,
                    });
                }
            }
            // Only under a term of theirs, which is ruled out above.
            Tree::OnAcquire { .. } | Tree::Command => {}
            Tree::Orphaned { .. } | Tree::Never => self.refuse(&mut acts),
        }
        acts
    }

    /// The lease's deadlines have moved.
    pub fn extend(&mut self, now: Instant, term_at: Instant, kill_at: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        let Some(term) = &mut self.term else {
            return acts;
        };
        (term.term_at, term.kill_at) = (term_at, kill_at);
        match self.tree {
            Tree::None => self.proceed(now, &mut acts),
            Tree::Standby { .. } => acts.push(standby_extended(term_at)),
            Tree::OnAcquire { .. } | Tree::Command => acts.push(Act::Extend { term_at, kill_at }),
            Tree::Orphaned { .. } | Tree::Never => {}
        }
        acts
    }

    /// What is under the lease is to end by `end_of_grace`; the command is sent `signal` first.
    pub fn drain(&mut self, now: Instant, signal: i32, end_of_grace: Instant) -> Vec<Act> {
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
            Act::Drain {
                signal,
                end_of_grace,
            },
        )
    }

    /// What is under the lease is to end now.
    pub fn kill(&mut self, now: Instant) -> Vec<Act> {
        self.end(now, Act::Kill)
    }

    fn end(&mut self, now: Instant, act: Act) -> Vec<Act> {
        let mut acts = Vec::new();
        let Some(term) = self.term else {
            return acts;
        };
        match &mut self.tree {
            // Nothing of the tenure has been started. The standby's end goes on, but is no part of it.
            Tree::None | Tree::Standby { .. } => {
                self.tell_empty(asked_by(term, now), &mut acts);
            }
            Tree::OnAcquire { asked_at, .. } => {
                asked_at.get_or_insert(now);
                acts.push(act);
            }
            Tree::Command => acts.push(act),
            Tree::Orphaned { .. } | Tree::Never => {}
        }
        acts
    }

    // --- time, and the end ---

    /// Time has passed.
    pub fn woke(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.due.is_some_and(|due| now >= due) && self.tree == Tree::None && self.standing {
            self.launch_standby(now, &mut acts);
        }
        acts
    }

    /// The campaign is over: what runs without control has to end, too.
    pub fn finish(&mut self, end_of_grace: Instant) -> Vec<Act> {
        self.standing = false;
        self.due = None;
        if let Tree::Standby { asked, .. } = &mut self.tree
            && !std::mem::replace(asked, true)
        {
            return vec![Act::Drain {
                signal: TERM,
                end_of_grace,
            }];
        }
        Vec::new()
    }

    // --- steps ---

    fn launch_standby(&mut self, now: Instant, acts: &mut Vec<Act>) {
        self.due = None;
        if !self.cast.standby {
            return;
        }
        self.tree = Tree::Standby {
            since: now,
            exit: None,
            asked: false,
        };
        acts.push(Act::Launch {
            role: Role::Standby,
            term_at: Instant::FOREVER,
            kill_at: Instant::FOREVER,
        });
    }

    /// In control, and nothing runs: the next thing under the lease, if there is time for it.
    fn proceed(&mut self, now: Instant, acts: &mut Vec<Act>) {
        let Some(term) = self.term else { return };
        if now >= term.term_at {
            // The core will find that out, too; nothing of ours lived longer than this.
            return self.tell_empty(term.term_at, acts);
        }
        if now > term.term_at - self.stale {
            // The next renewal brings us back.
            return;
        }
        let role = if self.cast.on_acquire && self.prepared != Some(term.token) {
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
        acts.push(Act::Launch {
            role,
            term_at: term.term_at,
            kill_at: term.kill_at,
        });
    }

    /// The core is told that nothing under the lease lives.
    fn tell_empty(&mut self, at: Instant, acts: &mut Vec<Act>) {
        self.term = None;
        acts.push(Act::Tell(WorkloadEvent::TreeEmpty { at }));
    }

    /// Nothing can be started.
    fn refuse(&mut self, acts: &mut Vec<Act>) {
        self.term = None;
        acts.push(Act::Tell(WorkloadEvent::NotStarted { errno: libc::EBUSY }));
    }
}

/// The standby's tree has no deadline of its own; but it must be gone while there is time left
/// under the lease.
fn standby_extended(term_at: Instant) -> Act {
    Act::Extend {
        term_at: Instant::FOREVER,
        kill_at: term_at,
    }
}

/// When the core asked for the end of what it has under this lease: now, but at its deadline where
/// we find that out later.
fn asked_by(term: Term, now: Instant) -> Instant {
    now.min(term.term_at)
}

#[cfg(test)]
mod tests;
