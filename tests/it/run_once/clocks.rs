//! One run in each slot of the store's clock, whatever the machines' clocks say.
//!
//! Every instance has a clock up to two hours wrong: a preloaded library shifts it, and each test
//! checks that in the log. The proxy sets the clock of the blob's store; a file's is the kernel's.

use std::collections::BTreeSet;

use super::{DONE, Stage, assert_was_served};
use crate::support::azurite::azurite;
use crate::support::instance::{Finished, Run};
use crate::support::journal::What;
use crate::support::programs::wrong_clock;
use crate::support::proxy::Proxy;

const NOON: i64 = 1_893_499_200;

fn errors() -> impl Iterator<Item = i64> {
    (0..10).map(|number| (number - 5) * 1440 - 7)
}

fn with_wrong_clock<'a>(run: Run<'a>, by: i64) -> Run<'a> {
    run.env("LD_PRELOAD", wrong_clock())
        .env("WRONG_BY", by.to_string())
        .args(["--log", "json"])
}

/// Returns the time in the log, in seconds of the Unix epoch.
fn log_time(finished: &Finished) -> i64 {
    let line = finished.stderr.lines().next().expect("a log");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let ts = line["ts"].as_str().expect("a time").to_owned();
    seconds(&ts)
}

/// Runs ten cron lines, each on a machine whose clock has its own error; returns the periods in
/// which a command ran.
fn ten_cron_lines(stage: &Stage, port: u16, per: &str, round: usize) -> Vec<String> {
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    let started: Vec<_> = errors()
        .enumerate()
        .map(|(number, by)| {
            let run = stage
                .run_by(port)
                .args([
                    "--once-per",
                    per,
                    "--identity",
                    &format!("{round}-{number}"),
                ])
                .shell("echo $TRAFFICCOP_PERIOD; sleep 0.3");
            (by, with_wrong_clock(run, by).start())
        })
        .collect();
    let mut periods = Vec::new();
    for (by, instance) in started {
        let finished = instance.finish();
        assert_eq!(finished.ended, DONE, "{}", finished.stderr);
        let wrong = log_time(&finished) - now;
        assert!(
            (by - 2..by + 600).contains(&wrong),
            "its clock is right: {wrong}"
        );
        periods.extend(finished.stdout.lines().map(str::to_owned));
    }
    periods
}

#[test]
fn ten_cron_lines_with_wrong_clocks_run_once_in_each_minute_of_the_service() {
    let stage = Stage::on_blob("once-minutes");
    let proxy = Proxy::before(azurite().port);
    let mut periods = Vec::new();
    for round in 0..3 {
        // Somewhere in the minute, not at its beginning.
        proxy.set_date(NOON + 60 * i64::try_from(round).unwrap() + 17);
        periods.extend(ten_cron_lines(&stage, proxy.port, "1m", round));
    }
    assert_eq!(
        periods,
        [
            "2030-01-01T12:00:00Z",
            "2030-01-01T12:01:00Z",
            "2030-01-01T12:02:00Z"
        ]
    );
}

#[test]
fn ten_cron_lines_with_wrong_clocks_run_once_in_each_slot_of_the_file_server() {
    let stage = Stage::on_file();
    let per = 10;
    let now = || time::OffsetDateTime::now_utc().unix_timestamp();
    let (begin, mut periods) = (now(), Vec::new());
    // On a slow machine one round may span two slots.
    for round in 0.. {
        let slot = now() / per;
        periods.extend(ten_cron_lines(&stage, 0, "10s", round));
        let served = periods.iter().any(|period| seconds(period) / per >= slot);
        assert!(served, "no command ran in slot {slot}: {periods:?}");
        if periods.len() >= 3 {
            break;
        }
        while now() / per == slot {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let distinct: BTreeSet<&String> = periods.iter().collect();
    assert_eq!(
        distinct.len(),
        periods.len(),
        "one slot, two runs: {periods:?}"
    );
    for period in periods {
        let at = seconds(&period);
        assert!(at % per == 0 && at + per > begin && at <= now(), "{period}");
    }
}

/// Parses a time as the command got it, into seconds of the Unix epoch.
fn seconds(text: &str) -> i64 {
    let format = time::format_description::well_known::Rfc3339;
    let at = time::OffsetDateTime::parse(text, &format).expect("a moment");
    at.unix_timestamp()
}

#[test]
fn waiter_is_served_by_its_period_and_a_later_candidate_runs() {
    let stage = Stage::on_blob("once-across");
    let proxy = Proxy::before(azurite().port);
    proxy.set_date(NOON + 50);
    let per = ["--once-per", "1m"];
    let one = stage.candidate_by(proxy.port, "one", &per);
    stage.scene.journal.await_tag(What::Beat, "one");
    let two = stage.candidate_by(proxy.port, "two", &per);
    two.await_log("standing by");
    proxy.set_date(NOON + 70);
    let three = stage.candidate_by(proxy.port, "three", &per);
    three.await_log("standing by");
    stage.let_end("one");
    assert_eq!(one.finish().ended, DONE);
    let two = two.finish();
    assert_eq!(two.ended, DONE, "{}", two.stderr);
    assert_was_served(&two.stderr, "one");
    stage.scene.journal.await_tag(What::Beat, "three");
    stage.let_end("three");
    let three = three.finish();
    assert_eq!(three.ended, DONE, "{}", three.stderr);
    assert_eq!(stage.scene.journal.judge(), ["one", "three"]);
}

#[test]
fn a_failure_of_one_slot_does_not_count_in_the_next() {
    let stage = Stage::on_blob("once-failing");
    let proxy = Proxy::before(azurite().port);
    let run = |status: &str| {
        stage
            .run_by(proxy.port)
            .args(["--once-per", "1m", "--once-attempts", "1"])
            .shell(&format!("exit {status}"))
            .finish()
            .ended
    };
    proxy.set_date(NOON);
    assert_eq!(run("3"), super::Ended::Code(3));
    assert_eq!(run("0"), super::Ended::Code(3), "over in this slot");
    proxy.set_date(NOON + 60);
    assert_eq!(run("0"), DONE);
    assert_eq!(run("4"), DONE, "done in this slot");
}
