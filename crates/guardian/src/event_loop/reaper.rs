//! Signals to the command's tree, and its ends.
//!
//! Only un-reaped children are signalled, so that no id can be another process's. A tree is empty only when the
//! kernel has no child left.

use super::super::state::Input;
use super::super::tree::Change;
use super::super::wire::Event;
use super::{EventLoop, LONGEST_LOOK, System};
use trafficcop_core::{Exit, WorkloadEvent};

impl<S: System> EventLoop<S> {
    pub(super) fn signal_group(&mut self, signal: i32) {
        if let Some(main) = &self.main
            && !main.reaped
        {
            self.system.signal_group(main.pid, signal);
            self.system.resume_group(main.pid);
        }
    }

    pub(super) fn signal_main(&mut self, signal: i32) {
        if let Some(main) = &self.main
            && !main.reaped
        {
            self.system.signal(main.pid, signal);
            self.system.resume_group(main.pid);
        }
    }

    pub(super) fn pass_on(&mut self, signal: i32) {
        let Some(main) = &self.main else { return };
        if main.reaped {
            return;
        }
        match signal {
            // The signal to end must come first, and systemd sends a SIGCONT after it.
            libc::SIGCONT if self.state.is_draining() => self.system.resume_group(main.pid),
            // A job is stopped and continued as a whole.
            libc::SIGTSTP | libc::SIGSTOP | libc::SIGCONT => {
                self.system.signal_group(main.pid, signal)
            }
            _ => self.system.signal(main.pid, signal),
        }
    }

    /// Sends SIGTERM to direct children outside the group, once each; more become direct children as parents
    /// end.
    pub(super) fn term_rest(&mut self) {
        self.system.term_hidden();
        let system = &self.system;
        let Some(main) = &self.main else { return };
        let (leader, reaped) = (main.pid, main.reaped);
        let (told, told_len) = (&mut self.told, &mut self.told_len);
        system.each_child(|pid| {
            let has_had_it = system.is_helper(pid)
                || told[..*told_len].contains(&pid)
                || (!reaped && (pid == leader || system.is_in_group(pid, leader)));
            // Without room it is killed at the end of the grace.
            if !has_had_it && *told_len < told.len() {
                told[*told_len] = pid;
                *told_len += 1;
                system.signal(pid, libc::SIGTERM);
                if system.is_stopped(pid) {
                    system.signal(pid, libc::SIGCONT);
                }
            }
        });
    }

    /// Goes on, wave after wave, until the tree is empty or stops getting smaller.
    pub(super) fn kill_and_reap(&mut self) {
        self.system.kill_contained();
        // A storm of forks must not stop everything else.
        for _ in 0..64 {
            let Some(main) = &self.main else { return };
            if !main.reaped {
                self.system.signal_group(main.pid, libc::SIGKILL);
            }
            let zombie = (main.ended && !main.reaped).then_some(main.pid);
            let mut reaped = false;
            self.system.each_child(|pid| {
                // `kill_contained` has handled helpers: a killed init kills nothing any more.
                if Some(pid) != zombie && !self.system.is_helper(pid) {
                    self.system.signal(pid, libc::SIGKILL);
                }
            });
            self.reap(&mut reaped);
            if !reaped {
                return;
            }
            self.patience = 1;
        }
    }

    pub(super) fn look_after_children(&mut self) {
        let mut reaped = false;
        if self.state.is_killing() {
            self.kill_and_reap();
        } else {
            self.reap(&mut reaped);
        }
        if self.main.as_ref().is_some_and(|main| main.ended) {
            self.look_at_what_is_left();
        }
    }

    pub(super) fn read_exec_result(&mut self) {
        let Some(main) = &mut self.main else { return };
        if !main.executing {
            return;
        }
        let Some(exec_result) = self.system.exec_result() else {
            return;
        };
        main.executing = false;
        self.happened(match exec_result {
            Ok(()) => Input::Executed,
            Err(errno) => Input::NotExecuted { errno },
        });
    }

    fn reap(&mut self, reaped: &mut bool) {
        self.system.look_at_witness();
        if let Some(main) = &self.main
            && !main.ended
        {
            let pid = main.pid;
            let change = self.system.look_at(pid);
            // After the look: an ended process has reported its exec before.
            self.read_exec_result();
            match change {
                None => {}
                // It may have stopped before it could receive the signal to end.
                Some(Change::Stopped) if self.state.is_draining() => self.system.resume_group(pid),
                Some(Change::Stopped) => {
                    self.system.take_terminal_back(pid);
                    self.tell(Event::Workload(WorkloadEvent::Stopped));
                }
                Some(Change::Ended(exit)) => {
                    if let Some(main) = &mut self.main {
                        main.ended = true;
                    }
                    *reaped = true;
                    // The command may have handled it and exited with 0: to the job it is an end by that signal.
                    let exit = self.system.typed().map_or(exit, Exit::Signal);
                    self.system.take_terminal_back(pid);
                    self.happened(Input::MainExited(exit));
                }
            }
        }
        let Some(main) = &self.main else { return };
        if main.ended && !main.reaped {
            // waitid for any child would return the un-reaped main process for ever.
            let leader = main.pid;
            self.system.each_child(|pid| {
                if pid != leader && self.system.reap(pid) {
                    *reaped = true;
                }
            });
        } else {
            let leader = main.pid;
            // An unreapable child comes again: leave it to the next look, so that the deadlines go on.
            let mut last = None;
            while let Some(pid) = self.system.any_ended().filter(|pid| Some(*pid) != last) {
                last = Some(pid);
                if pid == leader && !main.reaped {
                    // It ended just now; its signal brings the next look.
                    break;
                }
                // It may have died since: note its signal before it is reaped.
                self.system.look_at_witness();
                *reaped |= self.system.reap(pid);
            }
        }
        if *reaped {
            self.forget_reaped();
        }
    }

    /// Another child may get a reaped id.
    fn forget_reaped(&mut self) {
        let mut kept = 0;
        for at in 0..self.told_len {
            let pid = self.told[at];
            if self.system.is_child(pid) {
                self.told[kept] = pid;
                kept += 1;
            }
        }
        self.told_len = kept;
    }

    fn look_at_what_is_left(&mut self) {
        let Some(main) = &mut self.main else { return };
        let system = &self.system;
        let mut others = system.hides_some();
        let leader = main.pid;
        system.each_child(|pid| others |= pid != leader && !system.is_helper(pid));
        if !others && !main.reaped {
            main.reaped = system.reap(leader);
            self.patience = 1;
        }
        if others || !main.reaped {
            return self.happened(Input::OthersLive);
        }
        self.system.close();
        // The list may have missed one; this answer is exact.
        if self.system.is_childless() && self.system.is_empty() {
            self.main = None;
            self.system.abandon();
            // Its receiver may want the lock at once.
            if !self.deaf {
                self.lock = None;
            }
            self.happened(Input::Emptied);
        } else if self.system.is_childless() && self.patience >= LONGEST_LOOK {
            // Neither a helper on its way out nor a late count of the kernel.
            self.happened(Input::OthersLive);
        }
    }
}
