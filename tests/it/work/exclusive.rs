//! The promise as a property ([`crate::support::exclusive`]), on a storage queue.

use std::time::Duration;

use super::*;
use crate::support::exclusive::{MAX_ATTEMPTS, Stand, WORKERS, judge, prove};
use crate::support::journal::{Line, What};
use crate::support::proxy::{Call, Fate, Mode, Proxy};

/// Each worker has a faulty network.
pub(super) struct OnStorage {
    pub(super) mailbox: Mailbox,
    proxies: Vec<Proxy>,
}

impl OnStorage {
    pub(super) fn fresh() -> OnStorage {
        let mailbox = Mailbox::fresh();
        mailbox.poison().create();
        let proxies = (0..WORKERS).map(|_| Proxy::before(queues().port));
        OnStorage {
            mailbox,
            proxies: proxies.collect(),
        }
    }
}

impl Stand for OnStorage {
    const LOCK: Duration = Duration::from_secs(3);
    const COUNTS_EVERY_RUN: bool = true;
    const TROUBLES: u32 = 6;

    fn put(&self, text: &str) {
        self.mailbox.put(text);
    }

    fn left(&self) -> usize {
        self.mailbox.count() as usize
    }

    fn aside(&self) -> Vec<String> {
        let poison = self.mailbox.poison();
        std::iter::from_fn(|| poison.take(3600).map(|letter| letter.text)).collect()
    }

    fn worker<'a>(&self, scene: &'a Scene, which: usize) -> Run<'a> {
        worker_at(scene, &self.mailbox, self.proxies[which].port).args([
            "--encoding",
            "text",
            "--lock-time",
            "3s",
        ])
    }

    fn go_wrong(&self, rng: &mut fastrand::Rng, what: u32, which: usize) {
        let proxy = &self.proxies[which];
        let pass_after = |mode: Mode, time: Duration| {
            proxy.set(mode);
            std::thread::sleep(time);
            proxy.set(Mode::Pass);
        };
        match what {
            0 => pass_after(Mode::Cut, Duration::from_millis(rng.u64(10..1500))),
            // Beyond the lock.
            1 => pass_after(Mode::Freeze, Duration::from_millis(rng.u64(100..4500))),
            2 => pass_after(
                Mode::Answer(503, "text/plain", "busy"),
                Duration::from_millis(rng.u64(100..1500)),
            ),
            3 => pass_after(
                Mode::Delay(Duration::from_millis(rng.u64(50..1500))),
                Duration::from_millis(1500),
            ),
            4 => {
                for call in [Call::Update, Call::DeleteMessage, Call::Take, Call::Put] {
                    proxy.next(call, Fate::LoseReply);
                }
            }
            _ => {
                for call in [Call::Update, Call::DeleteMessage] {
                    proxy.next(call, Fate::Swallow);
                }
            }
        }
    }

    /// Does nothing: each trouble ends by itself.
    fn calm(&self) {}
}

fn line(what: What, attempt: u64, pid: i32, at: u64) -> Line {
    Line {
        what,
        tag: "m0".into(),
        token: attempt,
        holder: "w".into(),
        pid,
        at,
    }
}

#[test]
#[should_panic(expected = "alive at the same time, for 1 us")]
fn the_judge_sees_an_overlap_of_a_microsecond() {
    let lines = [
        line(What::Start, 1, 10, 1_000),
        line(What::Start, 2, 11, 2_000),
        line(What::Beat, 1, 10, 3_000),
    ];
    judge(&lines, true);
}

#[test]
#[should_panic(expected = "alive at the same time, for 1 us")]
fn the_judge_sees_an_overlap_of_one_attempt_with_itself() {
    let lines = [
        line(What::Start, 1, 10, 1_000),
        line(What::Start, 1, 11, 2_000),
        line(What::Beat, 1, 10, 3_000),
    ];
    judge(&lines, false);
}

#[test]
#[should_panic(expected = "attempt 1 of m0 was run twice")]
fn the_judge_sees_an_attempt_that_was_run_twice() {
    let lines = [
        line(What::Start, 1, 10, 1_000),
        line(What::End, 1, 10, 2_000),
        line(What::Start, 1, 11, 3_000),
    ];
    judge(&lines, true);
}

#[test]
#[should_panic(expected = "m0: attempt 7")]
fn the_judge_sees_an_attempt_too_many() {
    judge(&[line(What::Start, MAX_ATTEMPTS + 1, 10, 1_000)], true);
}

#[test]
fn no_message_is_run_twice_at_a_time_and_none_is_lost() {
    prove(&OnStorage::fresh(), 300);
}
