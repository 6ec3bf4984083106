use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::{Deadlines, Exit, WorkloadEvent};
use trafficcop_guardian::state::{Input, Step};

use super::{Due, Id, Order, World};
use crate::alone::plan::ms;

pub(crate) struct Tree {
    pub(crate) generation: u64,
    pub(crate) id: Id,
    pub(crate) main: bool,
    pub(crate) rest: bool,
    deaf: bool,
    exit_told: bool,
    silent: bool,
}

impl World {
    /// Draws the delay of a frame; none where events shall meet.
    pub(super) fn lag(&mut self) -> Duration {
        let lag = ms(self.rng.u64(0..3));
        lag * u32::from(!self.plan.way.is_zero())
    }

    pub(super) fn order(&mut self, order: Order) {
        let way = self.lag();
        self.order_at = self.order_at.max(self.now + way);
        self.due(self.order_at, Due::Ordered(order));
    }

    pub(super) fn news(&mut self, event: WorkloadEvent) {
        let way = self.lag();
        self.news_at = self.news_at.max(self.now + way);
        self.due(self.news_at, Due::News(event));
    }

    pub(super) fn ordered(&mut self, order: Order) {
        if !self.guardian_lives {
            return;
        }
        match order {
            Order::Start(deadlines) => self.starts(deadlines),
            Order::Extend(deadlines) => self.feed(Input::Extended(deadlines)),
            Order::Drain(signal, end_of_grace) => {
                self.feed(Input::DrainAsked {
                    signal,
                    end_of_grace,
                });
            }
            Order::Kill => self.feed(Input::KillAsked),
        }
    }

    pub(super) fn starts(&mut self, deadlines: Deadlines) {
        let at = self.now;
        let habit = self.plan.habit.clone();
        let percent = |rng: &mut Rng, of: u8| rng.u8(0..100) < of;
        if percent(&mut self.rng, habit.hook_failed) {
            let span = ms(self.rng.choice([0, 100, 2500, 40_000]).expect("a choice"));
            return self.due(at + span, Due::HookFails);
        }
        if at >= deadlines.first() || percent(&mut self.rng, habit.not_started) {
            return self.news(WorkloadEvent::NotStarted { errno: 2 });
        }
        self.generations += 1;
        let generation = self.generations;
        self.tree = Some(Tree {
            generation,
            id: self.held,
            main: true,
            rest: percent(&mut self.rng, habit.daemon),
            deaf: percent(&mut self.rng, habit.deaf),
            exit_told: false,
            silent: percent(&mut self.rng, habit.silent),
        });
        self.judge_birth();
        let stop_signal = self.plan.rules.stop_signal;
        self.feed(Input::Forked {
            deadlines,
            stop_signal,
            pid: 1,
        });
        self.feed(Input::Executed);
        self.speaks(generation, 0);
        if let Some(lives) = habit
            .lives
            .filter(|_| !self.rests || !generation.is_multiple_of(3))
        {
            let exit = habit.exits[(generation % 8) as usize];
            self.due(at + lives, Due::MainEnds(generation, exit));
        }
    }

    pub(super) fn feed(&mut self, input: Input) {
        if !self.guardian_lives {
            return;
        }
        let steps = self.guardian.step(self.now, input);
        let ends_within = self.plan.habit.ends_within;
        for step in steps.iter() {
            match step {
                Step::Tell(event) => self.news(event),
                Step::SignalGroup(signal) | Step::SignalMain(signal) => {
                    if let Some(tree) = self.tree.as_ref().filter(|tree| !tree.deaf) {
                        let ends = Due::MainEnds(tree.generation, Exit::Signal(signal));
                        self.due(self.now + ends_within, ends);
                    }
                }
                Step::TermRest => {
                    if let Some(tree) = self.tree.as_ref().filter(|tree| !tree.deaf) {
                        let ends = Due::RestEnds(tree.generation);
                        self.due(self.now + ends_within, ends);
                    }
                }
                Step::Kill if self.stuck && self.dies_within.is_none() => {}
                Step::Kill => {
                    if let Some(tree) = &self.tree {
                        let generation = tree.generation;
                        let soon = ms(self.rng.u64(0..100));
                        let at = self.now + self.dies_within.unwrap_or(soon);
                        self.due(at, Due::MainEnds(generation, Exit::Signal(9)));
                        self.due(at, Due::RestEnds(generation));
                    }
                }
                Step::Depart => {}
            }
        }
        let next = self.guardian.next();
        if next < Instant::FOREVER {
            self.due(next, Due::Guardian);
        }
    }

    pub(super) fn children(&mut self, exit: Exit) {
        let Some(tree) = &mut self.tree else { return };
        if tree.main {
            return;
        }
        let (told, rest) = (std::mem::replace(&mut tree.exit_told, true), tree.rest);
        let silent = tree.silent;
        if !told && (!silent || rest) {
            self.feed(Input::MainExited(exit));
        }
        if rest {
            self.feed(Input::OthersLive);
        } else {
            self.tree = None;
            self.feed(Input::Emptied);
        }
    }
}
