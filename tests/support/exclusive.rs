//! The promise of `work` for any queue: several workers, hundreds of messages, a service and
//! machines that fail at random. No two runs of a message overlap, none is lost, each ends
//! completed or dead-lettered, and none is run more often than allowed.
//!
//! TRAFFICCOP_TEST_SEED=7 gives another course, TRAFFICCOP_TEST_MESSAGES=3000 a longer one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::instance::{Instance, Run};
use super::journal::{Line, What};
use super::programs;
use super::scene::Scene;
use trafficcop::Instant;

pub(crate) const WORKERS: usize = 3;
pub(crate) const MAX_ATTEMPTS: u64 = 6;
const TROUBLE: Duration = Duration::from_secs(18);
/// Limit of the whole test on a slow machine.
const LIMIT: Duration = Duration::from_secs(420);

pub(crate) trait Stand: Sync {
    /// Length of a lock; commands take up to three times as long.
    const LOCK: Duration;
    /// Whether every run of a message counts as another attempt.
    const COUNTS_EVERY_RUN: bool;

    fn put(&self, text: &str);
    /// Counts the messages that are neither completed nor dead-lettered.
    fn left(&self) -> usize;
    fn aside(&self) -> Vec<String>;
    /// Prepares a worker without a command and settings for failures.
    fn worker<'a>(&self, scene: &'a Scene, which: usize) -> Run<'a>;
    /// Kinds of trouble between a worker and the queue.
    const TROUBLES: u32;
    fn go_wrong(&self, rng: &mut fastrand::Rng, what: u32, which: usize);
    fn calm(&self);
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

fn start<S: Stand>(stand: &S, scene: &Scene, which: usize) -> Instance {
    // The body says how long the command takes and how it ends.
    let script = "read tag beats status; export TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT \
                  TRAFFICCOP_HOLDER=w; \
                  exec \"$0\" \"$1\" $tag --every 50 --beats $beats --status $status";
    let program = programs::journalist().to_str().expect("a path");
    let journal = scene.journal.path().to_str().expect("a path");
    stand
        .worker(scene, which)
        .args(["-j", "30", "--retry-delay", "1s..2s", "--quiet"])
        .args(["--max-attempts", &MAX_ATTEMPTS.to_string()])
        .command(["sh", "-c", script, program, journal])
        .start()
}

fn go_wrong<S: Stand>(
    stand: &S,
    scene: &Scene,
    rng: &mut fastrand::Rng,
    worker: &mut Instance,
    which: usize,
) {
    match rng.u32(0..S::TROUBLES + 2) {
        0 => {
            worker.signal(Signal::SIGKILL);
            worker.wait();
            *worker = start(stand, scene, which);
        }
        1 => {
            worker.freeze();
            std::thread::sleep(S::LOCK + Duration::from_millis(rng.u64(0..2000)));
            worker.signal(Signal::SIGCONT);
        }
        what => stand.go_wrong(rng, what - 2, which),
    }
}

/// A run of a message: its attempt, its span, and whether it ended by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    attempt: u64,
    first: u64,
    last: u64,
    pub(crate) ended: bool,
}

/// Returns the runs of each message, in order.
pub(crate) fn judge(lines: &[Line], counts_every_run: bool) -> BTreeMap<String, Vec<Life>> {
    let mut runs: BTreeMap<(String, u64, i32), Life> = BTreeMap::new();
    for line in lines {
        let key = (line.tag.clone(), line.token, line.pid);
        let run = runs.entry(key).or_insert(Life {
            attempt: line.token,
            first: line.at,
            last: line.at,
            ended: false,
        });
        run.first = run.first.min(line.at);
        run.last = run.last.max(line.at);
        run.ended |= line.what == What::End;
    }
    let mut messages: BTreeMap<String, Vec<Life>> = BTreeMap::new();
    for ((tag, ..), run) in runs {
        messages.entry(tag).or_default().push(run);
    }
    for (tag, runs) in &mut messages {
        runs.sort_by_key(|run| run.first);
        for pair in runs.windows(2) {
            let (one, other) = (pair[0], pair[1]);
            assert!(
                !counts_every_run || one.attempt != other.attempt,
                "attempt {} of {tag} was run twice",
                one.attempt
            );
            assert!(
                other.attempt >= one.attempt,
                "{tag}: attempt {} after {}",
                other.attempt,
                one.attempt
            );
            assert!(
                other.first > one.last,
                "attempts {} and {} of message {tag} were alive at the same time, for {} us",
                one.attempt,
                other.attempt,
                (one.last - other.first) / 1000
            );
        }
        let most = runs.iter().map(|run| run.attempt).max().unwrap_or(0);
        assert!(most <= MAX_ATTEMPTS, "{tag}: attempt {most}");
    }
    messages
}

pub(crate) fn prove<S: Stand>(stand: &S, messages: u64) {
    let seed = number("TRAFFICCOP_TEST_SEED", 1);
    let count = number("TRAFFICCOP_TEST_MESSAGES", messages);
    let mut rng = fastrand::Rng::with_seed(seed);
    let scene = Scene::new();
    let mut fails = Vec::new();
    for tag in 0..count {
        // From nothing to three locks, at 50 ms a beat. One in ten always fails, and is short: it
        // is run as often as allowed.
        let status = if rng.u32(0..10) == 0 { 1 } else { 0 };
        let longest = if status == 0 {
            3 * S::LOCK.as_millis() as u64
        } else {
            1000
        };
        let beats = rng.u64(0..=longest / 50);
        fails.push(status != 0);
        stand.put(&format!("m{tag} {beats} {status}"));
    }
    let mut workers: Vec<Instance> = (0..WORKERS)
        .map(|which| start(stand, &scene, which))
        .collect();
    let begin = Instant::now();
    // Each worker has a thread, which lives as long as the workers it starts, because they die with
    // it.
    let over = AtomicBool::new(false);
    let (left, troubles) = std::thread::scope(|scope_of_threads| {
        let threads: Vec<_> = workers
            .iter_mut()
            .enumerate()
            .map(|(which, worker)| {
                let (scene, over, mut rng) = (&scene, &over, rng.fork());
                scope_of_threads.spawn(move || {
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        if Instant::now().since(begin) < TROUBLE {
                            go_wrong(stand, scene, &mut rng, worker, which);
                            count += 1;
                        } else if worker.ended().is_some() {
                            // The queue was unreachable at its start: a service manager would
                            // restart it.
                            *worker = start(stand, scene, which);
                        }
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    worker.signal(Signal::SIGTERM);
                    worker.wait();
                    count
                })
            })
            .collect();
        let (mut left, mut calm) = (stand.left(), false);
        while left > 0 && Instant::now().since(begin) < LIMIT {
            std::thread::sleep(Duration::from_millis(200));
            if !calm && Instant::now().since(begin) > TROUBLE + 2 * S::LOCK {
                stand.calm();
                calm = true;
            }
            left = stand.left();
        }
        over.store(true, Ordering::Relaxed);
        let counts = threads.into_iter().map(|thread| thread.join());
        let troubles: u32 = counts.map(|count| count.expect("no panic")).sum();
        (left, troubles)
    });
    assert_eq!(
        left,
        0,
        "seed {seed}: so many messages are left\n{}",
        workers.iter().map(Instance::stderr).collect::<String>()
    );
    scene.await_nobody();
    let messages = judge(&scene.journal.lines(), S::COUNTS_EVERY_RUN);
    let aside = stand.aside();
    let tag_of = |text: &String| text.split(' ').next().unwrap_or_default().to_owned();
    let aside: BTreeSet<String> = aside.iter().map(tag_of).collect();
    let mut runs = 0;
    for (tag, fails) in fails.into_iter().enumerate() {
        let tag = format!("m{tag}");
        let history = messages.get(&tag).map_or(&[][..], Vec::as_slice);
        runs += history.len();
        let ended = history.iter().any(|run| run.ended);
        let put_aside = aside.contains(&tag);
        assert!(
            put_aside || (ended && !fails),
            "seed {seed}: message {tag} is lost: {history:?}"
        );
    }
    eprintln!(
        "judge: {count} messages, {runs} runs, {} dead-lettered, {troubles} troubles, {} s, seed {seed}: no overlap, \
         none lost",
        aside.len(),
        Instant::now().since(begin).as_secs()
    );
}
