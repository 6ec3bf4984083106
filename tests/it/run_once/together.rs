//! Many candidates at once, or during a run.

use super::{DONE, KILL, Stage, TERM, assert_was_served};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use nix::sys::signal::Signal;

fn ten_at_once(stage: &Stage) {
    let started: Vec<(String, Instance)> = (0..10)
        .map(|number| {
            let name = format!("web{number}");
            let run = stage
                .run()
                .args(["--once", "--identity", &name])
                .journalist(&name, &["--beats", "100"]);
            (name, run.start())
        })
        .collect();
    let ended: Vec<_> = started
        .into_iter()
        .map(|(name, instance)| (name, instance.finish()))
        .collect();
    let runs = stage.scene.journal.judge();
    assert_eq!(runs.len(), 1, "{}", stage.scene.journal);
    for (name, finished) in &ended {
        assert_eq!(finished.ended, DONE, "{name}: {}", finished.stderr);
        if *name != runs[0] {
            assert_was_served(&finished.stderr, &runs[0]);
        }
    }
    stage.assert_done_by(&runs[0]);
}

#[test]
fn ten_instances_started_at_once_on_a_file_run_it_once() {
    ten_at_once(&Stage::on_file());
}

#[test]
fn ten_instances_started_at_once_on_a_blob_run_it_once() {
    ten_at_once(&Stage::on_blob("once-ten"));
}

#[test]
fn waiter_gets_the_result_and_no_wait_exits_75() {
    for stage in Stage::on_both("once-wait") {
        let one = stage.candidate("one", &[]);
        stage.scene.journal.await_tag(What::Beat, "one");
        let mut two = stage.candidate("two", &[]);
        two.await_log("standing by");
        let look = stage.late("three", &["-n"]);
        assert_eq!(look.ended, Ended::Code(75), "{}", look.stderr);
        let wait = stage.late("four", &["-w", "1s"]);
        assert_eq!(wait.ended, Ended::Code(75), "{}", wait.stderr);
        two.assert_running();
        stage.let_end("one");
        assert_eq!(one.finish().ended, DONE);
        let two = two.finish();
        assert_eq!(two.ended, DONE, "{}", two.stderr);
        assert_was_served(&two.stderr, "one");
        for option in [&["-n"][..], &["-w", "1s"], &[]] {
            assert_eq!(stage.late("late", option).ended, DONE);
        }
        let quiet = stage.late("late", &["-q"]);
        assert_eq!((quiet.ended, &*quiet.stderr), (DONE, ""));
        assert_eq!(stage.scene.journal.judge(), ["one"]);
    }
}

#[test]
fn a_failed_run_is_for_the_next_candidate() {
    for stage in Stage::on_both("once-retry") {
        let done = stage.scene.path("one.done");
        let words = ["--until", done.to_str().unwrap(), "--status", "3"];
        let one = stage
            .run()
            .args(["--once", "--identity", "one"])
            .journalist("one", &words)
            .start();
        stage.scene.journal.await_tag(What::Beat, "one");
        let two = stage.candidate("two", &[]);
        two.await_log("standing by");
        stage.let_end("one");
        one.await_log("attempt 1 failed");
        stage.scene.journal.await_tag(What::Beat, "two");
        stage.let_end("two");
        assert_eq!(two.finish().ended, DONE);
        let one = one.finish();
        assert_eq!(
            one.ended, DONE,
            "it failed, and then another did it: {}",
            one.stderr
        );
        assert_was_served(&one.stderr, "two");
        assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
    }
}

#[test]
fn hung_command_has_failed_and_the_next_candidate_runs_it() {
    for stage in Stage::on_both("once-hung") {
        // It does not feed its watchdog, and exits 0 after TERM.
        let hung = stage.scene.path("hung");
        let script = format!(
            "trap 'exit 0' TERM; : > '{}'; while :; do sleep 0.05; done",
            hung.display()
        );
        let one = stage
            .run()
            .args(["--once", "--identity", "one"])
            .args(["--watchdog", "2s", "--watchdog-start", "2s"])
            .shell(&script)
            .start();
        await_for("it to run", || hung.exists().then_some(()), || one.stderr());
        let two = stage.candidate("two", &[]);
        two.await_log("standing by");
        one.await_log("stopping the command: hung: neither READY=1 nor WATCHDOG=1 within 2s");
        one.await_log("attempt 1 failed");
        stage.scene.journal.await_tag(What::Beat, "two");
        // The record during the second's run.
        let mut status = stage.scene.verb("status").arg("--json");
        status = match &stage.blob {
            Some(blob) => status
                .env(
                    "AZURE_STORAGE_CONNECTION_STRING",
                    connection_string(azurite().port),
                )
                .args(["--blob", &blob.name]),
            None => status.arg("--file").arg(stage.scene.lock()),
        };
        let told: serde_json::Value = serde_json::from_str(&status.finish().stdout).expect("JSON");
        assert_eq!(told["once"][0]["failed"], 1, "{told}");
        assert_eq!(told["once"][0]["exit"], serde_json::Value::Null, "{told}");
        // The first's health is gone, and the second's command works.
        assert_eq!(told["health"], serde_json::Value::Null, "{told}");
        stage.let_end("two");
        assert_eq!(two.finish().ended, DONE);
        let one = one.finish();
        assert_eq!(one.ended, DONE, "another did it: {}", one.stderr);
        assert_was_served(&one.stderr, "two");
    }
}

#[test]
fn a_command_that_hangs_in_its_last_attempt_has_failed_for_good() {
    for stage in Stage::on_both("once-hung-last") {
        let run = || {
            stage
                .run()
                .args(["--once", "--once-attempts", "1"])
                .args(["--watchdog", "1s", "--watchdog-start", "1s"])
                .shell("trap 'exit 0' TERM; while :; do sleep 0.05; done")
                .finish()
        };
        // As after the stop signal.
        let finished = run();
        assert_eq!(finished.ended, TERM, "{}", finished.stderr);
        let late = run();
        assert!(late.stderr.contains("failed for good"), "{}", late.stderr);
        assert!(!late.stderr.contains("in control"), "{}", late.stderr);
    }
}

#[test]
fn candidates_exit_with_the_last_status_at_the_limit_of_failures() {
    for stage in Stage::on_both("once-attempts") {
        let run = |name: &str| {
            stage
                .run()
                .args(["--once-attempts", "3", "--once", "--identity", name])
                .journalist(name, &["--beats", "2", "--status", "7"])
        };
        let both = [run("one").start(), run("two").start()];
        for instance in both {
            let finished = instance.finish();
            assert_eq!(finished.ended, Ended::Code(7), "{}", finished.stderr);
        }
        assert_eq!(
            stage.scene.journal.judge().len(),
            3,
            "{}",
            stage.scene.journal
        );
        let late = run("late").finish();
        assert_eq!(late.ended, Ended::Code(7), "{}", late.stderr);
        assert!(late.stderr.contains("failed for good"), "{}", late.stderr);
        assert_eq!(
            stage.scene.journal.judge().len(),
            3,
            "{}",
            stage.scene.journal
        );
    }
}

#[test]
fn smallest_number_of_attempts_that_is_reached_ends_the_task_for_all_instances() {
    for stage in Stage::on_both("once-other-attempts") {
        let run = |name: &str, attempts: &str| {
            stage
                .run()
                .args(["--once", "--once-attempts", attempts, "--identity", name])
                .args(["--cooldown", "20s"])
                .journalist(name, &["--beats", "2", "--status", "7"])
        };
        let more = run("more", "9").start();
        more.await_log("attempt 1 failed");
        let fewer = run("fewer", "2").finish();
        assert_eq!(fewer.ended, Ended::Code(7), "{}", fewer.stderr);
        let more = more.finish();
        assert_eq!(more.ended, Ended::Code(7), "{}", more.stderr);
        assert!(more.stderr.contains("failed for good"), "{}", more.stderr);
        assert_eq!(stage.scene.journal.judge(), ["more", "fewer"]);
    }
}

#[test]
fn first_failure_is_final_for_all_with_on_failure_stop() {
    for stage in Stage::on_both("once-stop") {
        let stop = ["--once", "--once-on-failure", "stop"];
        let one = stage.run().args(stop).shell("kill -9 $$").finish();
        assert_eq!(one.ended, KILL, "{}", one.stderr);
        let two = stage.run().args(stop).shell("touch marker").finish();
        assert_eq!(two.ended, Ended::Code(137), "{}", two.stderr);
        // The failure is final, whatever the settings of later candidates.
        let three = stage.run().args(["--once"]).command(["true"]).finish();
        assert_eq!(three.ended, Ended::Code(137), "{}", three.stderr);
    }
}

#[test]
fn a_run_that_was_stopped_is_not_done_though_its_command_exits_0() {
    for stage in Stage::on_both("once-stopped") {
        let one = stage
            .run()
            .args(["--once", "--identity", "one"])
            .journalist("one", &["--term", "0:0"])
            .start();
        stage.scene.journal.await_tag(What::Beat, "one");
        one.signal(Signal::SIGTERM);
        let one = one.finish();
        assert_eq!(one.ended, TERM, "{}", one.stderr);
        assert!(
            one.stderr.contains("the task is not done"),
            "{}",
            one.stderr
        );
        assert_eq!(stage.late("two", &[]).ended, DONE);
        assert_eq!(stage.scene.journal.judge(), ["one", "two"]);
        stage.assert_done_by("two");
    }
}

#[test]
fn a_command_that_cannot_be_run_here_is_no_attempt_and_another_runs_it() {
    for stage in Stage::on_both("once-missing") {
        let one = stage
            .run()
            .args(["--once", "--once-on-failure", "stop"])
            .command(["no-such-command-here"])
            .finish();
        assert_eq!(one.ended, Ended::Code(127), "{}", one.stderr);
        assert_eq!(stage.late("two", &[]).ended, DONE);
        stage.assert_done_by("two");
    }
}

#[test]
fn the_command_knows_its_task_and_its_slot() {
    let stage = Stage::on_file();
    let say = "echo $TRAFFICCOP_TASK ${TRAFFICCOP_PERIOD-none}";
    let plain = stage.run().args(["--once-key", "v 7"]).shell(say).finish();
    assert_eq!((plain.ended, &*plain.stdout), (DONE, "v 7 none\n"));
    let daily = stage.run().args(["--once-per", "1d"]).shell(say).finish();
    assert_eq!(daily.ended, DONE, "{}", daily.stderr);
    let midnight = daily.stdout.trim_end();
    assert!(
        midnight.starts_with("once 20") && midnight.ends_with("T00:00:00Z"),
        "{midnight}"
    );
    let none = stage.run().shell("echo ${TRAFFICCOP_TASK-none}").finish();
    assert_eq!(none.stdout, "none\n");
}
