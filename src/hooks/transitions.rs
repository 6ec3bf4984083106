//! The core must not hear of an empty tree before the guardian reports it, nor may anything start before.

use std::time::Duration;

use super::{Effect, HookNotice, HookSequencer, Role, Tree, asked_by};
use crate::clock::Instant;
use crate::core::{After, Exit, Failed, Restart, WorkloadEvent};

// As with `--restart on-failure`, but for ever.
const AGAIN: Restart = Restart {
    after: After::Failure,
    limit: u32::MAX,
    window: Duration::ZERO,
};

impl HookSequencer {
    pub(crate) fn on_event(&mut self, now: Instant, event: WorkloadEvent) -> Vec<Effect> {
        let mut effects = Vec::new();
        // The core checks its deadlines, whatever runs.
        if event == WorkloadEvent::ClockJumped {
            effects.push(Effect::Tell(event));
            return effects;
        }
        match self.tree {
            Tree::None | Tree::Never => {
                if event == WorkloadEvent::Lost {
                    self.orphan(now, false, &mut effects);
                }
            }
            Tree::Standby { .. } => self.heard_of_standby(now, &event, &mut effects),
            Tree::OnAcquire { .. } => self.heard_of_hook(now, event, &mut effects),
            Tree::Command => self.heard_of_command(now, event, &mut effects),
            Tree::Orphaned { awaited } => {
                if matches!(
                    event,
                    WorkloadEvent::TreeEmpty { .. } | WorkloadEvent::TreeStuck
                ) {
                    self.tree = Tree::Never;
                    self.term = None;
                    if awaited {
                        effects.push(Effect::Tell(event));
                    }
                }
            }
        }
        effects
    }

    fn heard_of_standby(&mut self, now: Instant, event: &WorkloadEvent, effects: &mut Vec<Effect>) {
        let Tree::Standby { since, exit, asked } = &mut self.tree else {
            return;
        };
        match event {
            WorkloadEvent::Started { pid } => {
                effects.push(Effect::Tell(WorkloadEvent::Standby(Some(*pid))))
            }
            WorkloadEvent::Exited(how) => {
                *exit = Some(*how);
                effects.push(Effect::Tell(WorkloadEvent::Standby(None)));
            }
            WorkloadEvent::LeftBehind if !*asked => {
                effects.push(Effect::Say(HookNotice::LeftBehind(Role::Standby)))
            }
            WorkloadEvent::NotStarted { errno } => {
                let (since, asked) = (*since, *asked);
                let failed = Failed::NotStarted(*errno);
                // It was told to end: no back-off, no message.
                self.standby_gone(now, since, (!asked).then_some(failed), effects);
            }
            WorkloadEvent::TreeEmpty { .. } => {
                let (since, asked) = (*since, *asked);
                let failed = exit.filter(|_| !asked).map(Failed::Exited);
                self.standby_gone(now, since, failed, effects);
            }
            WorkloadEvent::Lost => self.orphan(now, false, effects),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                effects.push(Effect::Say(HookNotice::StandbyStuck));
                if self.term.is_some() {
                    self.refuse(effects);
                }
            }
            // Of no consequence, or not from the guardian.
            _ => {}
        }
    }

    /// `by_itself`: how it ended, unless told to.
    fn standby_gone(
        &mut self,
        now: Instant,
        since: Instant,
        by_itself: Option<Failed>,
        effects: &mut Vec<Effect>,
    ) {
        self.tree = Tree::None;
        if self.term.is_some() {
            return self.proceed(now, effects);
        }
        if !self.standing {
            return;
        }
        match by_itself {
            // It ended for a tenure that is over.
            None => self.launch_standby(now, effects),
            // A new start would be a loop.
            Some(Failed::Exited(Exit::Code(0))) => {
                effects.push(Effect::Say(HookNotice::StandbyDone))
            }
            Some(how) => {
                if let Some((wait, _)) = self.history.next(&AGAIN, now.since(since), now) {
                    self.due = Some(now + wait);
                    effects.push(Effect::Say(HookNotice::StandbyFailed(how, wait)));
                }
            }
        }
    }

    fn heard_of_hook(&mut self, now: Instant, event: WorkloadEvent, effects: &mut Vec<Effect>) {
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
        match event {
            WorkloadEvent::Exited(how) => *exit = Some(how),
            WorkloadEvent::Acting => *acting = true,
            WorkloadEvent::LeftBehind => {
                effects.push(Effect::Say(HookNotice::LeftBehind(Role::OnAcquire)))
            }
            // For the core that is doubt, as without a hook.
            WorkloadEvent::NotStarted { errno: libc::ETIME } => {
                self.tree = Tree::None;
                self.tell_empty(term.deadlines.term_at, effects);
            }
            WorkloadEvent::NotStarted { errno } => {
                let (at, how) = (*since, Failed::NotStarted(errno));
                self.hook_failed(at, how, effects);
            }
            WorkloadEvent::TreeEmpty { at } => {
                // For the core it ended by its deadline or by the request, not earlier.
                let ended_by = if *acting {
                    Some(term.deadlines.term_at)
                } else {
                    asked_at.map(|asked_at| asked_by(term, asked_at))
                };
                let exit = *exit;
                self.tree = Tree::None;
                match (ended_by, exit) {
                    (Some(earliest), _) => self.tell_empty(at.max(earliest), effects),
                    (None, Some(Exit::Code(0))) => {
                        // A restart in this tenure does not run the hook again.
                        self.prepared = Some(term.token);
                        self.proceed(now, effects);
                    }
                    // Without its exit status it counts as killed.
                    (None, how) => {
                        let how = Failed::Exited(how.unwrap_or(Exit::Signal(libc::SIGKILL)));
                        self.hook_failed(at, how, effects);
                    }
                }
            }
            WorkloadEvent::Lost => self.orphan(now, true, effects),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                effects.push(Effect::Tell(event));
            }
            // Of no consequence, or not from the guardian.
            _ => {}
        }
    }

    fn hook_failed(&mut self, at: Instant, how: Failed, effects: &mut Vec<Effect>) {
        self.tree = Tree::None;
        self.term = None;
        effects.push(Effect::Tell(WorkloadEvent::HookFailed { at, how }));
    }

    fn heard_of_command(&mut self, now: Instant, event: WorkloadEvent, effects: &mut Vec<Effect>) {
        match event {
            WorkloadEvent::NotStarted { errno: libc::ETIME } if self.term.is_some() => {
                // That is doubt, not a command that cannot run.
                self.tree = Tree::None;
                let at = self.term.map_or(now, |term| term.deadlines.term_at);
                self.tell_empty(at, effects);
            }
            WorkloadEvent::NotStarted { .. } | WorkloadEvent::TreeEmpty { .. } => {
                self.tree = Tree::None;
                self.term = None;
                effects.push(Effect::Tell(event));
            }
            WorkloadEvent::Lost => self.orphan(now, true, effects),
            WorkloadEvent::TreeStuck => {
                self.tree = Tree::Never;
                effects.push(Effect::Tell(event));
            }
            event => effects.push(Effect::Tell(event)),
        }
    }

    /// `awaited`: its tree is under the lease.
    fn orphan(&mut self, now: Instant, awaited: bool, effects: &mut Vec<Effect>) {
        // The core must not release the lease before the tree is gone.
        self.tree = Tree::Orphaned { awaited };
        effects.push(Effect::Tell(WorkloadEvent::Lost));
        if let Some(term) = self.term.filter(|_| !awaited) {
            self.tell_empty(asked_by(term, now), effects);
        }
    }
}
