//! Crashes at each step: of the supervisor, or with its guardian.
//!
//! A step is suspended from outside: a stopped guardian starts no command, a stopped supervisor
//! records nothing, and a proxy can withhold a release.

use std::fs;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;
use trafficcop_core::{Exit, Failure, Outcome};
use trafficcop_lease::file::File;
use trafficcop_lease::once::Task;
use trafficcop_lease::record::Candidate;
use trafficcop_lease::{Competitor, LeaseStore, RecordUpdate};

use super::{DONE, Stage, assert_was_served, signal};
use crate::support::azurite::azurite;
use crate::support::instance::Instance;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::{await_for, processes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Supervisor,
    Both,
}

const VICTIMS: [Victim; 2] = [Victim::Supervisor, Victim::Both];

/// Kills them, the guardian first, so that it cannot react.
fn crash(instance: Instance, guardian: i32, victim: Victim) {
    if victim == Victim::Both {
        signal(guardian, Signal::SIGKILL);
    }
    instance.signal(Signal::SIGKILL);
    drop(instance.finish());
    if victim == Victim::Supervisor && processes::Process::read(guardian).is_some() {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(guardian), Signal::SIGCONT);
    }
}

enum Foreign {
    File(fs::File),
    Blob,
}

const STRANGER: &str = "11111111-2222-3333-4444-555555555555";

fn flock(file: &fs::File, kind: i32) {
    let lock = nix::libc::flock {
        l_type: i16::try_from(kind).expect("a kind of lock"),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let request = nix::fcntl::FcntlArg::F_OFD_SETLK(&lock);
    assert!(file.as_raw_fd() >= 0);
    nix::fcntl::fcntl(file, request).expect("the lock is free");
}

impl Foreign {
    fn takes(stage: &Stage) -> Foreign {
        if let Some(blob) = &stage.blob {
            blob.create(&[]);
            blob.acquire(STRANGER, 60);
            return Foreign::Blob;
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(stage.scene.lock()).expect("the lock file");
        flock(&file, nix::libc::F_WRLCK);
        Foreign::File(file)
    }

    fn leaves(self, stage: &Stage) {
        match self {
            Foreign::File(file) => flock(&file, nix::libc::F_UNLCK),
            Foreign::Blob => stage.blob().release(STRANGER),
        }
    }
}

fn await_record_of(stage: &Stage, name: &str) {
    let holder = || match &stage.blob {
        Some(blob) => blob.metadata("trafficcop_holder"),
        None => fs::read_to_string(stage.scene.lock()).ok(),
    };
    await_for(
        "the record of the next holder",
        || holder().filter(|text| text.contains(name)),
        || format!("{:?}", holder()),
    );
}

fn each_victim(container: &str, play: fn(&Stage, Victim)) {
    std::thread::scope(|scope| {
        for victim in VICTIMS {
            let name = format!("{container}-{victim:?}").to_lowercase();
            for stage in Stage::on_both(&name) {
                scope.spawn(move || play(&stage, victim));
            }
        }
    });
}

#[test]
fn before_the_command_another_runs_it() {
    each_victim("crash-before", |stage, victim| {
        let foreign = Foreign::takes(stage);
        let one = stage.candidate("one", &[]);
        one.await_log("standing by");
        let guardian = one.guardian();
        signal(guardian, Signal::SIGSTOP);
        processes::await_stopped(guardian);
        foreign.leaves(stage);
        await_record_of(stage, "one");
        crash(one, guardian, victim);
        let two = stage.late("two", &[]);
        assert_eq!(two.ended, DONE, "{}", two.stderr);
        let runs = stage.scene.journal.judge();
        assert_eq!(runs.last().map(String::as_str), Some("two"), "{runs:?}");
        stage.assert_done_by("two");
    });
}

#[test]
fn during_the_command_another_runs_it() {
    each_victim("crash-during", |stage, victim| {
        let one = stage.candidate("one", &[]);
        stage.scene.journal.await_tag(What::Beat, "one");
        let two = stage.candidate("two", &[]);
        two.await_log("standing by");
        let guardian = one.guardian();
        crash(one, guardian, victim);
        stage.scene.journal.await_tag(What::Beat, "two");
        stage.let_end("two");
        let two = two.finish();
        assert_eq!(two.ended, DONE, "{}", two.stderr);
        assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
        stage.assert_done_by("two");
    });
}

#[test]
fn after_a_success_that_was_not_recorded_another_runs_it_again() {
    each_victim("crash-unrecorded", |stage, victim| {
        let one = stage.candidate("one", &[]);
        stage.scene.journal.await_tag(What::Beat, "one");
        let two = stage.candidate("two", &[]);
        two.await_log("standing by");
        let guardian = one.guardian();
        one.freeze();
        stage.let_end("one");
        stage.await_end_of("one");
        assert!(!two.stderr().contains("already done"), "{}", two.stderr());
        crash(one, guardian, victim);
        stage.scene.journal.await_tag(What::Beat, "two");
        stage.let_end("two");
        let two = two.finish();
        assert_eq!(two.ended, DONE, "{}", two.stderr);
        assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
        stage.assert_done_by("two");
    });
}

#[test]
fn recorded_task_on_a_blob_does_not_run_again_without_a_release() {
    for victim in VICTIMS {
        let stage = Stage::on_blob(&format!("crash-recorded-{victim:?}").to_lowercase());
        let proxy = Proxy::before(azurite().port);
        proxy.next(Call::Release, Fate::Swallow);
        let one = stage.candidate_by(proxy.port, "one", &[]);
        stage.scene.journal.await_tag(What::Beat, "one");
        let two = stage.candidate("two", &[]);
        two.await_log("standing by");
        let guardian = one.guardian();
        stage.let_end("one");
        proxy.await_seen("a release", |seen| seen.call == Call::Release);
        // Its lease still exists: they waited only for the result.
        let two = two.finish();
        assert_eq!(two.ended, DONE, "{}", two.stderr);
        assert_was_served(&two.stderr, "one");
        assert_eq!(stage.blob().lease_state(), "leased");
        crash(one, guardian, victim);
        stage.assert_done_by("one");
        assert_eq!(stage.scene.journal.judge(), ["one"]);
    }
}

fn store(stage: &Stage) -> File {
    let candidate = Candidate {
        identity: "ourselves".into(),
        host: "here".into(),
        pid: std::process::id(),
        command: String::new(),
        bell: None,
    };
    let task = Task {
        key: "once".into(),
        per: None,
    };
    let competitor = Competitor {
        task: Some(task),
        ..Competitor::new(candidate, Duration::ZERO)
    };
    File::open(&stage.scene.lock(), &competitor).expect("a lock file")
}

const SUCCESS: Outcome = Outcome {
    exit: Exit::Code(0),
    over: true,
};

#[tokio::test]
async fn recorded_task_on_a_file_does_not_run_again_without_a_release() {
    let stage = Stage::on_file();
    let late = Instant::now() + Duration::from_secs(60);
    let ours = store(&stage);
    ours.acquire(late).await.expect("control");
    let waiting = stage.candidate("two", &[]);
    waiting.await_log("standing by");
    ours.update_record(RecordUpdate::Outcome(SUCCESS), late)
        .await
        .expect("recorded");
    // As after a crash just now: not released, but the result can be read.
    stage.assert_done_by("ourselves");
    drop(ours.orphan_release().expect("duplicated"));
    ours.release(late).await.expect("released");
    let two = waiting.finish();
    assert_eq!(two.ended, DONE, "{}", two.stderr);
    assert_was_served(&two.stderr, "ourselves");
    assert!(stage.scene.journal.lines().is_empty());
}

#[tokio::test]
async fn a_result_survives_every_later_record_and_a_crash_while_it_is_written() {
    let stage = Stage::on_file();
    let late = Instant::now() + Duration::from_secs(60);
    let ours = store(&stage);
    ours.acquire(late).await.expect("control");
    ours.update_record(RecordUpdate::Outcome(SUCCESS), late)
        .await
        .expect("recorded");
    ours.release(late).await.expect("released");
    let whole = fs::read(stage.scene.lock()).expect("the file");
    // A run without --once keeps the results.
    let plain = stage
        .scene
        .run_on_file()
        .args(["--identity", "an-entirely-different-machine"])
        .command(["true"])
        .finish();
    assert_eq!(plain.ended, DONE, "{}", plain.stderr);
    let next = fs::read(stage.scene.lock()).expect("the file");
    assert_ne!(whole[..2048], next[..2048]);
    assert_eq!(whole[2048..], next[2048..]);
    // Its record, torn at any place, or missing.
    let mut heads: Vec<Vec<u8>> = (0..400)
        .map(|cut| [&next[..cut], &whole[cut..2048]].concat())
        .collect();
    heads.push(vec![0; 2048]);
    for (cut, head) in heads.into_iter().enumerate() {
        let torn = [&head, &whole[2048..]].concat();
        fs::write(stage.scene.lock(), &torn).expect("written");
        match store(&stage).acquire(late).await {
            Err(Failure::AlreadyDone(result)) => assert_eq!(result.holder, "ourselves"),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
    stage.assert_done_by("ourselves");
    // With both lines destroyed the result is unknown, and reported as such.
    let mut destroyed = whole;
    destroyed[4096..].fill(b'x');
    fs::write(stage.scene.lock(), &destroyed).expect("written");
    let refused = stage.late("two", &[]);
    assert_eq!(refused.ended, super::Ended::Code(69), "{}", refused.stderr);
    assert!(refused.stderr.contains("empty it"), "{}", refused.stderr);
    assert!(stage.scene.journal.lines().is_empty());
}
