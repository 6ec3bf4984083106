//! Random rows from a seed: round after round, the instance in control meets one or two faults at
//! once, none of which is beyond the promise.
//!
//! A row is a function of the seed and its number, so that a failure can be played again; the
//! machine's own timing is not.

use std::collections::BTreeSet;

use fastrand::Rng;
use nix::sys::signal::Signal;

use super::acts;
use super::gate::Gate;
use super::judge::{Verdict, judge};
use super::stage::{Stage, signal};
use super::support::proxy::Mode;
use super::table::{CONTAINS, Contain, LOCKS, Lock, SHAPES, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Nothing,
    KillSupervisor,
    KillGuardian,
    StopSupervisor,
    StopGuardian,
    StopThenKillSupervisor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    Freeze,
    Cut,
    Busy,
    Delay(u64),
}

#[derive(Clone, Copy, Debug)]
struct Round {
    shape: Shape,
    weather: Weather,
    blow: Blow,
}

#[derive(Clone, Debug)]
pub(crate) struct Made {
    number: usize,
    lock: Lock,
    pub(crate) contain: Contain,
    rounds: Vec<Round>,
}

impl Made {
    pub(crate) fn by(seed: u64, number: usize) -> Made {
        let mut jitter = Rng::with_seed(seed.wrapping_add((number as u64) << 32));
        let lock = LOCKS[number % LOCKS.len()];
        let contain = CONTAINS[jitter.usize(..CONTAINS.len())];
        let count = if lock == Lock::Blob { 2 } else { 3 };
        let rounds = (0..count).map(|_| Round::by(&mut jitter, lock)).collect();
        Made {
            number,
            lock,
            contain,
            rounds,
        }
    }

    pub(crate) fn name(&self) -> String {
        let mut text = format!(
            "random {}/{:?}/{}",
            self.number,
            self.lock,
            self.contain.word()
        );
        for round in &self.rounds {
            text += &format!("/{:?}", round.shape);
            if round.weather != Weather::Fair {
                text += &format!("+{:?}", round.weather);
            }
            if round.blow != Blow::Nothing {
                text += &format!("+{:?}", round.blow);
            }
        }
        text
    }

    pub(crate) fn faults(&self) -> usize {
        let of = |round: &Round| {
            usize::from(round.weather != Weather::Fair) + usize::from(round.blow != Blow::Nothing)
        };
        self.rounds.iter().map(of).sum()
    }
}

impl Round {
    fn by(jitter: &mut Rng, lock: Lock) -> Round {
        let blows = [
            Blow::KillSupervisor,
            Blow::KillGuardian,
            Blow::StopGuardian,
            Blow::StopThenKillSupervisor,
            Blow::StopSupervisor,
            Blow::Nothing,
        ];
        let weathers = [
            Weather::Fair,
            Weather::Freeze,
            Weather::Cut,
            Weather::Busy,
            Weather::Delay(jitter.u64(100..20_000)),
        ];
        let shape = SHAPES[jitter.usize(..SHAPES.len())];
        let mut weather = Weather::Fair;
        let mut blow = blows[jitter.usize(..blows.len())];
        if lock == Lock::Blob {
            weather = weathers[jitter.usize(..weathers.len())];
        }
        // Every round is to end with another holder, and some holders stop only for one of the two
        // faults.
        let harmless = match weather {
            Weather::Fair => true,
            Weather::Delay(ms) => ms < 16_000,
            Weather::Freeze | Weather::Cut | Weather::Busy => false,
        };
        if harmless
            && (blow == Blow::Nothing || (blow == Blow::StopSupervisor && lock == Lock::File))
        {
            blow = Blow::KillSupervisor;
        }
        Round {
            shape,
            weather,
            blow,
        }
    }
}

/// Plays a random row. Panics if something that must happen does not.
pub(crate) fn play(made: &Made, seed: u64, gate: &Gate) -> Verdict {
    let place = format!("random-{seed}-{}", made.number);
    let mut stage = Stage::new(
        &place,
        made.lock,
        made.contain,
        match made.lock {
            Lock::Blob => "15s",
            Lock::File | Lock::Shared | Lock::Store => "12s",
        },
    );
    let mut touched = BTreeSet::new();
    let mut shapes: Vec<(String, Shape)> = Vec::new();
    let mut token = 0;
    for (number, round) in made.rounds.iter().enumerate() {
        // One newcomer a round replaces what has ended.
        let newcomers: &[&str] = if number == 0 {
            &["0", "1", "2"]
        } else {
            &["n"]
        };
        let pass = gate.enter();
        for newcomer in newcomers {
            let name = format!("i{number}{newcomer}");
            if made.lock == Lock::Blob {
                stage.put_proxy(&name);
            }
            stage.start(&name, round.shape);
            shapes.push((name, round.shape));
        }
        let (next, holder) = stage.await_tenure_after(token);
        let shape = shapes.iter().find(|(name, _)| *name == holder);
        let shape = shape.expect("one of ours").1;
        stage.await_tree(&holder, shape, next);
        stage.guardian(&holder);
        drop(pass);
        token = next;
        touched.insert((token, holder.clone()));
        befall(&mut stage, &holder, round, token);
    }
    stage.await_tenure_after(token);
    stage.let_end();
    stage.await_end();
    let verdict = judge(&mut stage, &touched);
    if !verdict.is_clean() {
        eprintln!("{}: {verdict:?}\n{}", made.name(), stage.story());
    }
    verdict
}

fn befall(stage: &mut Stage, holder: &str, round: &Round, token: u64) {
    // The guardian must be found before its supervisor is stopped.
    let guardian = stage.guardian(holder);
    match round.weather {
        Weather::Fair => {}
        Weather::Freeze => stage.proxy(holder).set(Mode::Freeze),
        Weather::Cut => stage.proxy(holder).set(Mode::Cut),
        Weather::Busy => {
            stage
                .proxy(holder)
                .set(Mode::Answer(503, "text/html", "<html>503</html>"))
        }
        Weather::Delay(ms) => stage
            .proxy(holder)
            .set(Mode::Delay(std::time::Duration::from_millis(ms))),
    }
    match round.blow {
        Blow::Nothing => {}
        Blow::KillSupervisor => acts::kill_supervisor(stage, holder),
        Blow::KillGuardian => signal(guardian, Signal::SIGKILL),
        Blow::StopSupervisor => acts::stop_supervisor(stage, holder, token),
        Blow::StopGuardian => signal(guardian, Signal::SIGSTOP),
        Blow::StopThenKillSupervisor => {
            let supervisor = stage.supervisor(holder);
            stage.stop(supervisor);
            signal(supervisor, Signal::SIGKILL);
        }
    }
    stage.await_tenure_after(token);
    if round.weather != Weather::Fair {
        stage.proxy(holder).set(Mode::Pass);
    }
}
