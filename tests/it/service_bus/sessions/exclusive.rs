//! Order and exclusivity as a property: three workers, which are killed or stopped past the lock;
//! and a service that loses answers, sends them late or for the wrong request, refuses, cuts,
//! detaches and takes sessions away. No two commands of a session run at a time, none before its
//! predecessor is finished, and no message is lost.
//!
//! `TRAFFICCOP_TEST_SESSIONS=200 TRAFFICCOP_TEST_MESSAGES=10000` gives the figure of the
//! guarantees, `TRAFFICCOP_TEST_SEED=7` another course.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::journal::Line;
use crate::support::programs;

const WORKERS: usize = 3;
/// Limit on a slow machine, for each hundred messages, and at least.
const LIMIT: Duration = Duration::from_secs(30);
const AT_LEAST: Duration = Duration::from_secs(300);

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

/// Returns how long message `n` takes, in steps of 20 ms, and how it ends: one of ten fails at
/// first, and one of seventeen always.
fn course(session: u64, n: u64) -> (u64, u8) {
    let status = match (n % 10, n % 17) {
        (_, 5) => 65,
        (3, _) => 9,
        _ => 0,
    };
    // Some take longer than a lock.
    let beats = if (session * 7 + n) % 97 == 13 {
        300
    } else {
        n % 8
    };
    (beats, status)
}

fn start(stage: &Stage) -> Instance {
    let script = "read tag n beats status
        [ $status = 9 ] && [ $TRAFFICCOP_MESSAGE_ATTEMPT -gt 1 ] && status=0
        export TRAFFICCOP_TOKEN=$n TRAFFICCOP_HOLDER=w
        [ $tag = s$TRAFFICCOP_SESSION_ID ] || exit 99
        printf %s. $n >>$TRAFFICCOP_SESSION_STATE_FILE
        exec \"$0\" \"$1\" $tag --every 20 --beats $beats --status $status";
    let program = programs::journalist().to_str().expect("a path");
    let journal = stage.scene.journal.path().to_str().expect("a path");
    stage
        .worker()
        // As long as the lock, for any pause.
        .args([
            "--sessions",
            "--session-idle",
            "500ms",
            "--lock-delay",
            "5s",
        ])
        .args([
            "-j",
            "10",
            "--retry-delay",
            "0s..100ms",
            "--session-messages",
            "40",
        ])
        .env("TMPDIR", stage.scene.directory())
        .command(["sh", "-c", script, program, journal])
        .start()
}

fn act(rng: &mut fastrand::Rng) -> Act {
    let late = Duration::from_millis(rng.u64(100..3000));
    match rng.u32(0..9) {
        0 => Act::Lose,
        1 => Act::Delay(late),
        2 => Act::Hold(late),
        3 => Act::Duplicate,
        4 => Act::Shift,
        5 => Act::Uncorrelated,
        6 => Act::Ignore,
        7 => Act::CutAfter,
        _ => Act::server_busy(),
    }
}

fn go_wrong(stage: &Stage, rng: &mut fastrand::Rng, workers: &mut [Instance]) {
    let broker = &stage.broker;
    let worker = &mut workers[rng.usize(0..WORKERS)];
    match rng.u32(0..9) {
        0 => {
            worker.signal(Signal::SIGKILL);
            worker.wait();
            *worker = start(stage);
        }
        1 => {
            worker.freeze();
            // Sometimes its connection is cut meanwhile, without its noticing.
            if rng.bool() {
                broker.cut();
            }
            std::thread::sleep(SHORT + Duration::from_millis(rng.u64(0..2000)));
            worker.signal(Signal::SIGCONT);
        }
        2 => broker.cut(),
        3 => {
            broker.freeze();
            std::thread::sleep(Duration::from_millis(rng.u64(100..6000)));
            broker.thaw();
        }
        4 => drop(Some(broker.detach_sessions(JOBS))),
        5 => drop(Some(broker.lose_sessions(JOBS))),
        _ => {
            for _ in 0..rng.u32(1..8) {
                let (renew, settle) = (On::RenewSession, On::Settle);
                let occasions = [
                    renew,
                    settle,
                    settle,
                    On::SetState,
                    On::Attach,
                    On::OtherRequest,
                ];
                let on = occasions[rng.usize(0..occasions.len())];
                broker.fault(Fault::new(on, act(rng)).after(rng.u32(0..3)));
            }
        }
    }
}

/// Returns which messages of each session were run.
fn judge(lines: &[Line]) -> BTreeMap<String, BTreeSet<u64>> {
    // By process, from first to last line.
    let mut runs: BTreeMap<(&str, i32, u64), (u64, u64)> = BTreeMap::new();
    for line in lines {
        let run = runs.entry((&line.tag, line.pid, line.token));
        let (first, last) = run.or_insert((line.at, line.at));
        (*first, *last) = ((*first).min(line.at), (*last).max(line.at));
    }
    let mut sessions: BTreeMap<&str, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for ((tag, _, number), (first, last)) in runs {
        sessions.entry(tag).or_default().push((first, last, number));
    }
    let mut ran = BTreeMap::new();
    for (session, mut runs) in sessions {
        runs.sort_unstable();
        for pair in runs.windows(2) {
            let ((_, last, one), (first, _, other)) = (pair[0], pair[1]);
            assert!(
                first > last,
                "messages {one} and {other} of {session} were run at the same time, for {} us",
                (last - first) / 1000
            );
            assert!(
                other == one || other == one + 1,
                "message {other} of {session} was run after {one}"
            );
        }
        let numbers: BTreeSet<u64> = runs.iter().map(|run| run.2).collect();
        eprintln!("{session}: {} messages, {} runs", numbers.len(), runs.len());
        ran.insert(session.to_owned(), numbers);
    }
    ran
}

#[test]
fn no_session_is_at_two_workers_its_order_is_kept_and_no_message_is_lost() {
    let sessions = number("TRAFFICCOP_TEST_SESSIONS", 12);
    let messages = number("TRAFFICCOP_TEST_MESSAGES", 240);
    let seed = number("TRAFFICCOP_TEST_SEED", 1);
    let each = messages / sessions;
    let stage = Stage::of(
        Settings::default(),
        QueueSettings {
            lock: SHORT,
            sessions: true,
            // Every loss of a session counts as a delivery, but is no failure of the message.
            max_delivery_count: u32::MAX,
            ..QueueSettings::default()
        },
    );
    stage
        .scene
        .excuse_confession("connections are cut while workers are stopped");
    let mut rejected = 0;
    for n in 0..each {
        for session in 0..sessions {
            let (beats, status) = course(session, n);
            rejected += usize::from(status == 65);
            let text = format!("s{session} {n} {beats} {status}\n");
            let message = Message::data(text.as_bytes());
            let message = message.in_session(&session.to_string(), &format!("{session}-{n}"));
            stage.broker.put(JOBS, message);
        }
    }
    let begin = trafficcop::Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut workers: Vec<Instance> = (0..WORKERS).map(|_| start(&stage)).collect();
    let limit = AT_LEAST.max(LIMIT * u32::try_from(messages / 100).expect("fewer"));
    let done = AtomicBool::new(false);
    let mut faults = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let seen = stage.broker.wait(limit, |view| {
                let counts = view.counts(JOBS);
                (counts.ready + counts.locked == 0).then_some(())
            });
            done.store(true, Ordering::SeqCst);
            assert!(
                seen.is_some(),
                "not done in {limit:?}: {:?}",
                stage.counts(JOBS)
            );
        });
        while !done.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(rng.u64(200..1500)));
            // The last quarter of the time is for the rest of the work.
            let now = stage.counts(JOBS);
            let left = (now.ready + now.locked) as u64;
            if left > messages / 4 {
                go_wrong(&stage, &mut rng, &mut workers);
                faults += 1;
            } else {
                stage.broker.clear_faults();
            }
        }
    });
    let took = trafficcop::Instant::now().since(begin);
    for worker in workers {
        worker.signal(Signal::SIGTERM);
        let _ended = worker.finish();
    }
    stage.scene.await_nobody();
    let ran = judge(&stage.scene.journal.lines());
    assert_eq!(ran.len() as u64, sessions);
    let all: BTreeSet<u64> = (0..each).collect();
    for (session, numbers) in &ran {
        assert_eq!(*numbers, all, "of {session} some were not run");
    }
    assert_eq!(stage.counts(DEAD).ready, rejected);
    eprintln!(
        "seed {seed}: {messages} messages of {sessions} sessions, {faults} faults, {} acceptances, {took:?}",
        stage.accepted()
    );
}
