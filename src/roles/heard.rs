//! What follows from what the guardian tells, by what it has.
//!
//! Part of [`Stage`]. It must never tell the core that a tree is empty which the guardian has not
//! called empty, nor start anything before that.

use std::time::Duration;

use super::{Act, Remark, Role, Stage, Tree, asked_by};
use crate::clock::Instant;
use crate::core::{After, Exit, Failed, Restart};
use crate::guardian::WorkloadEvent;

/// A standby command that failed is started again as a command of `--restart on-failure` is, but
/// for ever.
const AGAIN: Restart = Restart {
    after: After::Failure,
    limit: u32::MAX,
    window: Duration::ZERO,
};

impl Stage {
    /// The guardian told this.
    pub fn heard(&mut self, now: Instant, news: WorkloadEvent) -> Vec<Act> {
        let mut acts = Vec::new();
        if news == WorkloadEvent::ClockJumped {
            acts.push(Act::Tell(news));
            return acts;
        }
        match self.tree {
            Tree::None | Tree::Never => {
                if news == WorkloadEvent::Lost {
                    self.orphan(now, false, &mut acts);
                }
            }
            Tree::Standby { .. } => self.heard_of_standby(now, &news, &mut acts),
            Tree::OnAcquire { .. } => self.heard_of_hook(now, news, &mut acts),
            Tree::Command => self.heard_of_command(now, news, &mut acts),
            Tree::Orphaned { awaited } => {
                if matches!(
                    news,
                    WorkloadEvent::TreeEmpty { .. } | WorkloadEvent::TreeStuck
                ) {
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

    fn heard_of_standby(&mut self, now: Instant, news: &WorkloadEvent, acts: &mut Vec<Act>) {
        let Tree::Standby { since, exit, asked } = &mut self.tree else {
            return;
        };
        match news {
            WorkloadEvent::Started { pid } => {
                acts.push(Act::Tell(WorkloadEvent::Standby(Some(*pid))))
            }
            WorkloadEvent::Exited(how) => {
                *exit = Some(*how);
                acts.push(Act::Tell(WorkloadEvent::Standby(None)));
            }
            WorkloadEvent::LeftBehind if !*asked => {
                acts.push(Act::Say(Remark::LeftBehind(Role::Standby)))
            }
            WorkloadEvent::NotStarted { errno } => {
                let (since, asked) = (*since, *asked);
                let failed = Failed::NotStarted(*errno);
                self.standby_gone(now, since, (!asked).then_some(failed), acts);
            }
            WorkloadEvent::TreeEmpty { .. } => {
                let (since, asked) = (*since, *asked);
                let failed = exit.filter(|_| !asked).map(Failed::Exited);
                self.standby_gone(now, since, failed, acts);
            }
            WorkloadEvent::Lost => self.orphan(now, false, acts),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Say(Remark::StandbyStuck));
                if self.term.is_some() {
                    self.refuse(acts);
                }
            }
            WorkloadEvent::LeftBehind
            | WorkloadEvent::Stopped
            | WorkloadEvent::Acting
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::Unprepared { .. }
            | WorkloadEvent::Standby(_) => {}
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

    fn heard_of_hook(&mut self, now: Instant, news: WorkloadEvent, acts: &mut Vec<Act>) {
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
            WorkloadEvent::Exited(how) => *exit = Some(how),
            WorkloadEvent::Acting => *acting = true,
            WorkloadEvent::LeftBehind => acts.push(Act::Say(Remark::LeftBehind(Role::OnAcquire))),
            WorkloadEvent::NotStarted { errno: libc::ETIME } => {
                self.tree = Tree::None;
                self.tell_empty(term.term_at, acts);
            }
            WorkloadEvent::NotStarted { errno } => {
                let (at, how) = (*since, Failed::NotStarted(errno));
                self.unprepared(at, how, acts);
            }
            WorkloadEvent::TreeEmpty { at } => {
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
            WorkloadEvent::Lost => self.orphan(now, true, acts),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Tell(news));
            }
            WorkloadEvent::Started { .. }
            | WorkloadEvent::Stopped
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::Unprepared { .. }
            | WorkloadEvent::Standby(_) => {}
        }
    }

    fn unprepared(&mut self, at: Instant, how: Failed, acts: &mut Vec<Act>) {
        self.tree = Tree::None;
        self.term = None;
        acts.push(Act::Tell(WorkloadEvent::Unprepared { at, how }));
    }

    fn heard_of_command(&mut self, now: Instant, news: WorkloadEvent, acts: &mut Vec<Act>) {
        match news {
            WorkloadEvent::NotStarted { errno: libc::ETIME } if self.term.is_some() => {
                // The deadline came first: that is doubt, and not a command that cannot be run.
                self.tree = Tree::None;
                let at = self.term.map_or(now, |term| term.term_at);
                self.tell_empty(at, acts);
            }
            WorkloadEvent::NotStarted { .. } | WorkloadEvent::TreeEmpty { .. } => {
                self.tree = Tree::None;
                self.term = None;
                acts.push(Act::Tell(news));
            }
            WorkloadEvent::Lost => self.orphan(now, true, acts),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                acts.push(Act::Tell(news));
            }
            WorkloadEvent::Started { .. }
            | WorkloadEvent::Stopped
            | WorkloadEvent::Exited(_)
            | WorkloadEvent::LeftBehind
            | WorkloadEvent::Acting
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::Unprepared { .. }
            | WorkloadEvent::Standby(_) => acts.push(Act::Tell(news)),
        }
    }

    /// The guardian is dead, and what it had is being killed: `awaited` where that is the lease's.
    fn orphan(&mut self, now: Instant, awaited: bool, acts: &mut Vec<Act>) {
        self.tree = Tree::Orphaned { awaited };
        acts.push(Act::Tell(WorkloadEvent::Lost));
        if let Some(term) = self.term.filter(|_| !awaited) {
            self.tell_empty(asked_by(term, now), acts);
        }
    }
}
