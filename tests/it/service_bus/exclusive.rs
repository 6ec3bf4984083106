//! The promise as a property ([`crate::support::exclusive`]), with a broker that loses answers,
//! sends them late, twice or for the wrong request, refuses, cuts, freezes, and has a wrong clock.

use service_bus_stand_in::{Act, Fault, On};

use super::*;
use crate::support::exclusive::{Stand, prove};

struct OnServiceBus(Broker);

impl OnServiceBus {
    fn act(rng: &mut fastrand::Rng) -> Act {
        let late = Duration::from_millis(rng.u64(100..3000));
        match rng.u32(0..10) {
            0 => Act::Lose,
            1 => Act::Delay(late),
            2 => Act::Hold(late),
            3 => Act::Duplicate,
            4 => Act::Shift,
            5 => Act::Uncorrelated,
            6 => Act::Ignore,
            7 => Act::Cut,
            8 => Act::CutAfter,
            _ => Act::server_busy(),
        }
    }
}

impl Stand for OnServiceBus {
    const LOCK: Duration = SHORT;
    // Returned unrun, or by a stopped worker, it comes again as the same attempt.
    const COUNTS_EVERY_RUN: bool = false;
    const TROUBLES: u32 = 8;

    fn put(&self, text: &str) {
        self.0.put(JOBS, Message::data(text.as_bytes()));
    }

    fn left(&self) -> usize {
        let counts = self.0.look(|view| view.counts(JOBS));
        counts.ready + counts.locked
    }

    fn aside(&self) -> Vec<String> {
        let letters = self.0.look(|view| view.messages(DEAD));
        let text = |letter: &Waiting| String::from_utf8_lossy(&letter.message.body()).into_owned();
        letters.iter().map(text).collect()
    }

    fn worker<'a>(&self, scene: &'a Scene, _which: usize) -> Run<'a> {
        scene
            .verb("work")
            .args(["--service-bus", JOBS])
            .env(STRING, self.0.connection_string())
    }

    fn go_wrong(&self, rng: &mut fastrand::Rng, what: u32, _which: usize) {
        let broker = &self.0;
        let soon = |rng: &mut fastrand::Rng| Duration::from_millis(rng.u64(50..1500));
        match what {
            0 => broker.cut(),
            1 => {
                broker.refuse_connections(true);
                broker.cut();
                // Unreachable for this long.
                std::thread::sleep(soon(rng));
                broker.refuse_connections(false);
            }
            // Silent for this long, sometimes beyond the lock.
            2 => {
                broker.freeze();
                std::thread::sleep(Duration::from_millis(rng.u64(100..6000)));
                broker.thaw();
            }
            3 => {
                // A clock ahead by less than the longest lock looks like a longer lock: --lock-time
                // is for that, and tested in `keeping`.
                let skews = [-10_000, -3_600_000, 3_600_000, 0];
                broker.skew(skews[rng.usize(0..skews.len())]);
            }
            4 => {
                let condition = "amqp:link:detach-forced";
                broker.detach(JOBS, condition, "The link was idle for too long.");
            }
            _ => {
                for _ in 0..rng.u32(1..6) {
                    let (renew, settle) = (On::RenewLock, On::UpdateDisposition);
                    let occasions = [renew, renew, settle, settle, On::PutToken, On::Attach];
                    let on = occasions[rng.usize(0..occasions.len())];
                    broker.fault(Fault::new(on, Self::act(rng)).after(rng.u32(0..3)));
                }
            }
        }
    }

    fn calm(&self) {
        self.0.clear_faults();
        self.0.thaw();
        self.0.refuse_connections(false);
        self.0.skew(0);
    }
}

#[test]
fn no_message_is_run_twice_at_a_time_and_none_is_lost() {
    let stage = Stage::with(SHORT);
    prove(&OnServiceBus(stage.broker), 200);
}
