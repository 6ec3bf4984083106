//! The promise, as a property: three workers, three hundred messages, a network and machines that
//! fail by chance. No two runs of one message overlap, nothing is lost, each ends completed or put
//! aside, and none is run more often than it may.
//!
//! TRAFFICCOP_TEST_SEED=7 another course; TRAFFICCOP_TEST_MESSAGES=3000 a longer one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::*;
use support::instance::Instance;
use support::journal::{Line, What};
use support::proxy::{Call, Fate, Mode, Proxy};
use trafficcop::clock::Instant;

const WORKERS: usize = 3;
const MAX_ATTEMPTS: u64 = 6;
/// The lock of a message; commands take up to three times as long.
const LOCK: Duration = Duration::from_secs(3);
/// For how long things go wrong with each worker.
const TROUBLE: Duration = Duration::from_secs(18);
/// How long all of it may take on a machine that is slow.
const LIMIT: Duration = Duration::from_secs(420);

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

fn start(scene: &Scene, mailbox: &Mailbox, proxy: &Proxy) -> Instance {
    // The body says how long it takes and how it ends.
    let script = "read tag beats status; export TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT \
                  TRAFFICCOP_HOLDER=w; \
                  exec \"$0\" \"$1\" $tag --every 50 --beats $beats --status $status";
    let program = support::programs::journalist().to_str().unwrap();
    let journal = scene.journal.path().to_str().unwrap();
    worker_at(scene, mailbox, proxy.port)
        .args([
            "-j",
            "30",
            "--encoding",
            "text",
            "--retry-delay",
            "1s..2s",
            "--quiet",
        ])
        .args([
            "--lock-time",
            "3s",
            "--max-attempts",
            &MAX_ATTEMPTS.to_string(),
        ])
        .command(["sh", "-c", script, program, journal])
        .start()
}

/// One thing that goes wrong with one of the workers.
fn go_wrong(
    rng: &mut fastrand::Rng,
    worker: &mut Instance,
    proxy: &Proxy,
    again: impl FnOnce() -> Instance,
) {
    let pass_after = |mode: Mode, time: Duration| {
        proxy.set(mode);
        std::thread::sleep(time);
        proxy.set(Mode::Pass);
    };
    match rng.u32(0..8) {
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
        5 => {
            for call in [Call::Update, Call::DeleteMessage] {
                proxy.next(call, Fate::Swallow);
            }
        }
        6 => {
            worker.signal(Signal::SIGKILL);
            worker.wait();
            *worker = again();
        }
        _ => {
            worker.freeze();
            std::thread::sleep(LOCK + Duration::from_millis(rng.u64(0..2000)));
            worker.signal(Signal::SIGCONT);
        }
    }
}

/// The judgement: per message its runs, in order.
fn judge(lines: &[Line]) -> BTreeMap<String, Vec<(u64, u64, u64, bool)>> {
    let mut runs: BTreeMap<(String, u64), (i32, u64, u64, bool)> = BTreeMap::new();
    for line in lines {
        let key = (line.tag.clone(), line.token);
        let run = runs
            .entry(key)
            .or_insert((line.pid, line.at, line.at, false));
        assert_eq!(
            run.0, line.pid,
            "attempt {} of {} was run twice",
            line.token, line.tag
        );
        run.2 = run.2.max(line.at);
        run.3 |= line.what == What::End;
    }
    let mut messages: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for ((tag, attempt), (_, first, last, ended)) in runs {
        messages
            .entry(tag)
            .or_default()
            .push((attempt, first, last, ended));
    }
    for (tag, runs) in &messages {
        for pair in runs.windows(2) {
            let ((one, _, last, _), (other, first, _, _)) = (pair[0], pair[1]);
            assert!(
                first > last,
                "attempts {one} and {other} of message {tag} were alive at the same time, for {} us",
                (last - first) / 1000
            );
        }
        let most = runs.iter().map(|run| run.0).max().unwrap_or(0);
        assert!(most <= MAX_ATTEMPTS, "{tag}: attempt {most}");
    }
    messages
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
    judge(&[
        line(What::Start, 1, 10, 1_000),
        line(What::Start, 2, 11, 2_000),
        line(What::Beat, 1, 10, 3_000),
    ]);
}

#[test]
#[should_panic(expected = "attempt 1 of m0 was run twice")]
fn the_judge_sees_an_attempt_that_was_run_twice() {
    judge(&[
        line(What::Start, 1, 10, 1_000),
        line(What::End, 1, 10, 2_000),
        line(What::Start, 1, 11, 3_000),
    ]);
}

#[test]
#[should_panic(expected = "m0: attempt 7")]
fn the_judge_sees_an_attempt_too_many() {
    judge(&[line(What::Start, MAX_ATTEMPTS + 1, 10, 1_000)]);
}

#[test]
fn no_message_is_run_twice_at_a_time_and_none_is_lost() {
    let seed = number("TRAFFICCOP_TEST_SEED", 1);
    let count = number("TRAFFICCOP_TEST_MESSAGES", 300);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    mailbox.poison().create();
    let mut fails = Vec::new();
    for tag in 0..count {
        // From nothing to three locks, at 50 ms a beat; one in ten never succeeds, and is shorter: it
        // is run as often as it may, one run after another.
        let status = if rng.u32(0..10) == 0 { 1 } else { 0 };
        let locks = if status == 0 { 3 } else { 1 };
        let beats = rng.u64(0..=locks * LOCK.as_millis() as u64 / 50);
        fails.push(status != 0);
        mailbox.put(&format!("m{tag} {beats} {status}"));
    }
    let proxies: Vec<Proxy> = (0..WORKERS).map(|_| Proxy::before(queues().port)).collect();
    let mut workers: Vec<Instance> = proxies
        .iter()
        .map(|proxy| start(&scene, &mailbox, proxy))
        .collect();
    let begin = Instant::now();
    // Each has its own troubles, at the same time as the others, and a thread that lives as long as the
    // workers that it starts: they die with it.
    let over = AtomicBool::new(false);
    let (left, troubles) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(&proxies)
            .map(|(worker, proxy)| {
                let (scene, mailbox, over, mut rng) = (&scene, &mailbox, &over, rng.fork());
                scope.spawn(move || {
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        if Instant::now().since(begin) < TROUBLE {
                            go_wrong(&mut rng, worker, proxy, || start(scene, mailbox, proxy));
                            count += 1;
                        }
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    worker.signal(Signal::SIGTERM);
                    worker.wait();
                    count
                })
            })
            .collect();
        let mut left = mailbox.count();
        while left > 0 && Instant::now().since(begin) < LIMIT {
            std::thread::sleep(Duration::from_millis(200));
            left = mailbox.count();
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
    let messages = judge(&scene.journal.lines());
    let mut aside = std::collections::BTreeSet::new();
    let poison = mailbox.poison();
    while let Some(letter) = poison.take(3600) {
        aside.insert(letter.text.split(' ').next().unwrap().to_owned());
    }
    let mut runs = 0;
    for (tag, fails) in fails.into_iter().enumerate() {
        let tag = format!("m{tag}");
        let history = messages.get(&tag).map_or(&[][..], Vec::as_slice);
        runs += history.len();
        let ended = history.iter().any(|run| run.3);
        let put_aside = aside.contains(&tag);
        assert!(
            put_aside || (ended && !fails),
            "seed {seed}: message {tag} is lost: {history:?}"
        );
    }
    eprintln!(
        "judge: {count} messages, {runs} runs, {} put aside, {troubles} troubles, {} s, seed {seed}: no overlap, none lost",
        aside.len(),
        Instant::now().since(begin).as_secs()
    );
}
