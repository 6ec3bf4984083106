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

use std::time::Duration;

use crate::clock::Instant;
use crate::core::habits::History;
use crate::core::{After, Exit, Failed, Restart};
use crate::supervise::News;

/// What a drain of what is not the command sends first.
const TERM: i32 = libc::SIGTERM;

/// A standby command that failed is started again as a command of `--restart on-failure` is, but
/// for ever.
const AGAIN: Restart = Restart {
    after: After::Failure,
    limit: u32::MAX,
    window: Duration::ZERO,
};

/// What can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs while we wait for control.
    Standby,
    /// Has to succeed before the command is started.
    OnAcquire,
    /// Runs while we are in control.
    Command,
}

/// Who is there to play, besides the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// There is a standby command.
    pub standby: bool,
    /// There is something that has to succeed before the command is started.
    pub on_acquire: bool,
    /// From SIGTERM to SIGKILL for the standby command.
    pub grace: Duration,
}

/// Control, as the core has it when it orders the command to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When everything under it is drained without being told.
    pub term_at: Instant,
    /// When it is killed without being told.
    pub kill_at: Instant,
    /// Nothing is started later than this: the store's last word would be too old.
    pub fresh_until: Instant,
    /// The fencing token.
    pub token: u64,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Order the guardian to start this.
    Launch {
        /// What.
        role: Role,
        /// When the guardian drains it on its own.
        term_at: Instant,
        /// When the guardian kills it on its own.
        kill_at: Instant,
    },
    /// Move the deadlines of what runs.
    Extend {
        /// See [`Act::Launch`].
        term_at: Instant,
        /// See [`Act::Launch`].
        kill_at: Instant,
    },
    /// Drain what runs.
    Drain {
        /// What is sent first.
        signal: i32,
        /// When SIGKILL follows at the latest.
        end_of_grace: Instant,
    },
    /// Kill what runs.
    Kill,
    /// Entrust the guardian with giving the lease back, should we die.
    Entrust,
    /// Tell the core (and people).
    Tell(News),
    /// Tell people.
    Say(Remark),
}

/// What people are told of a role that the core does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
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
                acts.push(Act::Entrust);
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

    // --- what the guardian tells ---

    /// The guardian told this.
    pub fn heard(&mut self, now: Instant, news: News) -> Vec<Act> {
        let mut acts = Vec::new();
        if news == News::ClockJumped {
            acts.push(Act::Tell(news));
            return acts;
        }
        match self.tree {
            Tree::None | Tree::Never => {
                if news == News::Lost {
                    self.orphan(now, false, &mut acts);
                }
            }
            Tree::Standby { .. } => self.heard_of_standby(now, &news, &mut acts),
            Tree::OnAcquire { .. } => self.heard_of_hook(now, news, &mut acts),
            Tree::Command => self.heard_of_command(now, news, &mut acts),
            Tree::Orphaned { awaited } => {
                if matches!(news, News::TreeEmpty { .. } | News::TreeStuck) {
                    self.tree = Tree::Never;
                    self.term = None;
                    if awaited {
                        acts.push(Act::Tell(news));
                    }
                }
            }
        }
        acts
    }

    fn heard_of_standby(&mut self, now: Instant, news: &News, acts: &mut Vec<Act>) {
        let Tree::Standby { since, exit, asked } = &mut self.tree else {
            return;
        };
        match news {
            News::Started { pid } => acts.push(Act::Tell(News::Standby(Some(*pid)))),
            News::Exited(how) => {
                *exit = Some(*how);
                acts.push(Act::Tell(News::Standby(None)));
            }
            News::LeftBehind if !*asked => acts.push(Act::Say(Remark::LeftBehind(Role::Standby))),
            News::NotStarted { errno } => {
                let (since, asked) = (*since, *asked);
                let failed = Failed::NotStarted(*errno);
                self.standby_gone(now, since, (!asked).then_some(failed), acts);
            }
            News::TreeEmpty { .. } => {
                let (since, asked) = (*since, *asked);
                let failed = exit.filter(|_| !asked).map(Failed::Exited);
                self.standby_gone(now, since, failed, acts);
            }
            News::Lost => self.orphan(now, false, acts),
            News::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Say(Remark::StandbyStuck));
                if self.term.is_some() {
                    self.refuse(acts);
                }
            }
            News::LeftBehind
            | News::Stopped
            | News::Acting
            | News::ClockJumped
            | News::Unprepared { .. }
            | News::Standby(_) => {}
        }
    }

    /// The standby's tree is empty; by itself, if it is told how.
    fn standby_gone(
        &mut self,
        now: Instant,
        since: Instant,
        by_itself: Option<Failed>,
        acts: &mut Vec<Act>,
    ) {
        self.tree = Tree::None;
        if self.term.is_some() {
            return self.proceed(now, acts);
        }
        if !self.standing {
            return;
        }
        match by_itself {
            // It ended because of a tenure that is over already.
            None => self.launch_standby(now, acts),
            Some(Failed::Exited(Exit::Code(0))) => acts.push(Act::Say(Remark::StandbyDone)),
            Some(how) => {
                if let Some((wait, _)) = self.history.next(&AGAIN, now.since(since), now) {
                    self.due = Some(now + wait);
                    acts.push(Act::Say(Remark::StandbyFailed(how, wait)));
                }
            }
        }
    }

    fn heard_of_hook(&mut self, now: Instant, news: News, acts: &mut Vec<Act>) {
        let (
            Tree::OnAcquire {
                since,
                exit,
                asked_at,
                acting,
            },
            Some(term),
        ) = (&mut self.tree, self.term)
        else {
            return;
        };
        match news {
            News::Exited(how) => *exit = Some(how),
            News::Acting => *acting = true,
            News::LeftBehind => acts.push(Act::Say(Remark::LeftBehind(Role::OnAcquire))),
            News::NotStarted { errno: libc::ETIME } => {
                self.tree = Tree::None;
                self.tell_empty(term.term_at, acts);
            }
            News::NotStarted { errno } => {
                let (at, how) = (*since, Failed::NotStarted(errno));
                self.unprepared(at, how, acts);
            }
            News::TreeEmpty { at } => {
                // For the core it ended because of its deadline, or because it was asked to: not
                // before that.
                let ended_by = if *acting {
                    Some(term.term_at)
                } else {
                    asked_at.map(|asked_at| asked_by(term, asked_at))
                };
                let exit = *exit;
                self.tree = Tree::None;
                match (ended_by, exit) {
                    (Some(earliest), _) => self.tell_empty(at.max(earliest), acts),
                    (None, Some(Exit::Code(0))) => {
                        self.prepared = Some(term.token);
                        self.proceed(now, acts);
                    }
                    // Without a word of how it ended nothing can be claimed for it.
                    (None, how) => {
                        let how = Failed::Exited(how.unwrap_or(Exit::Signal(libc::SIGKILL)));
                        self.unprepared(at, how, acts);
                    }
                }
            }
            News::Lost => self.orphan(now, true, acts),
            News::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Tell(news));
            }
            News::Started { .. }
            | News::Stopped
            | News::ClockJumped
            | News::Unprepared { .. }
            | News::Standby(_) => {}
        }
    }

    fn unprepared(&mut self, at: Instant, how: Failed, acts: &mut Vec<Act>) {
        self.tree = Tree::None;
        self.term = None;
        acts.push(Act::Tell(News::Unprepared { at, how }));
    }

    fn heard_of_command(&mut self, now: Instant, news: News, acts: &mut Vec<Act>) {
        match news {
            News::NotStarted { errno: libc::ETIME } if self.term.is_some() => {
                // The deadline came first: that is doubt, and not a command that cannot be run.
                self.tree = Tree::None;
                let at = self.term.map_or(now, |term| term.term_at);
                self.tell_empty(at, acts);
            }
            News::NotStarted { .. } | News::TreeEmpty { .. } => {
                self.tree = Tree::None;
                self.term = None;
                acts.push(Act::Tell(news));
            }
            News::Lost => self.orphan(now, true, acts),
            News::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Tell(news));
            }
            News::Started { .. }
            | News::Stopped
            | News::Exited(_)
            | News::LeftBehind
            | News::Acting
            | News::ClockJumped
            | News::Unprepared { .. }
            | News::Standby(_) => acts.push(Act::Tell(news)),
        }
    }

    /// The guardian is dead, and what it had is being killed: `awaited` where that is the lease's.
    fn orphan(&mut self, now: Instant, awaited: bool, acts: &mut Vec<Act>) {
        self.tree = Tree::Orphaned { awaited };
        acts.push(Act::Tell(News::Lost));
        if let Some(term) = self.term.filter(|_| !awaited) {
            self.tell_empty(asked_by(term, now), acts);
        }
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
        acts.push(Act::Tell(News::TreeEmpty { at }));
    }

    /// Nothing can be started.
    fn refuse(&mut self, acts: &mut Vec<Act>) {
        self.term = None;
        acts.push(Act::Tell(News::NotStarted { errno: libc::EBUSY }));
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
