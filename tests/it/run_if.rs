//! `--if`: an unfit machine takes no control, and one that has control keeps it.

use std::fs::{self, File};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::Instant;

use crate::listen::client::{address, await_state, get, status};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::What;
use crate::support::processes;
use crate::support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const NOT_FIT: &str = "not fit to take control: the --if command exited with status 1";
const FIT: &str = "fit to take control: competing again";
const QUICK: [&str; 2] = ["--poll", "200ms"];

/// A lock of some kind, in a scene of its own.
struct Place {
    scene: Scene,
    options: Vec<String>,
    blob: Option<Blob>,
}

impl Place {
    fn on_file() -> Place {
        let scene = Scene::new();
        let lock = scene.lock().to_str().unwrap().to_owned();
        Place {
            options: vec!["--file".into(), lock],
            scene,
            blob: None,
        }
    }

    fn on_shared_file() -> Place {
        let mut place = Place::on_file();
        place.options.push("--shared".into());
        place.options.extend(["--lease".into(), "15s".into()]);
        place
    }

    fn on_blob(container: &str) -> Place {
        let blob = Blob::named(&format!("{container}/singleton"));
        Place {
            scene: Scene::new(),
            options: ["--blob", &blob.name, "--lease", "15s"]
                .map(str::to_owned)
                .into(),
            blob: Some(blob),
        }
    }

    fn each(container: &str) -> [Place; 3] {
        [
            Place::on_file(),
            Place::on_shared_file(),
            Place::on_blob(container),
        ]
    }

    fn verb(&self, verb: &str, name: &str) -> Run<'_> {
        let run = self.scene.verb(verb).args(&self.options).args(QUICK);
        let run = run.args(["--identity", name]);
        match &self.blob {
            Some(_) => run.env(
                "AZURE_STORAGE_CONNECTION_STRING",
                connection_string(azurite().port),
            ),
            None => run,
        }
    }

    fn run(&self, name: &str) -> Run<'_> {
        self.verb("run", name)
    }

    /// Starts an instance that competes while [`Place::is_fit`]; its command runs until
    /// [`Place::let_end`].
    fn candidate(&self, name: &str, options: &[&str]) -> Instance {
        let done = self.path(name, "done");
        self.run(name)
            .args(["--if", &self.condition(name)])
            .args(options)
            .journalist(name, &["--until", &done])
            .start()
    }

    fn path(&self, name: &str, what: &str) -> String {
        let path = self.scene.path(&format!("{name}.{what}"));
        path.to_str().unwrap().to_owned()
    }

    /// Returns a condition that adds a line each time it is asked.
    fn condition(&self, name: &str) -> String {
        let (asked, fit) = (self.path(name, "asked"), self.path(name, "fit"));
        format!("echo >> {asked}; test -e {fit}")
    }

    fn asked(&self, name: &str) -> usize {
        let asked = fs::read_to_string(self.path(name, "asked"));
        asked.unwrap_or_default().lines().count()
    }

    fn is_fit(&self, name: &str) {
        File::create(self.path(name, "fit")).unwrap();
    }

    fn is_not_fit(&self, name: &str) {
        fs::remove_file(self.path(name, "fit")).unwrap();
    }

    fn let_end(&self, name: &str) {
        File::create(self.path(name, "done")).unwrap();
    }

    /// Checks that an instance that does not wait gets control.
    fn assert_free(&self) {
        let pass_by = || self.run("passer-by").arg("-n").command(["true"]).finish();
        let mut passer_by = pass_by();
        // It asks for three seconds only, which may be too short on a busy machine.
        for _ in 0..10 {
            if passer_by.ended != Ended::Code(69) {
                break;
            }
            passer_by = pass_by();
        }
        assert_eq!(passer_by.ended, Ended::Code(0), "{}", passer_by.stderr);
    }

    fn assert_never_ran(&self, name: &str) {
        let journal = &self.scene.journal;
        let ran = journal.lines().iter().any(|line| line.tag == name);
        assert!(!ran, "{journal}");
    }

    fn await_asked(&self, name: &str, more: usize) {
        let before = self.asked(name);
        await_for(
            &format!("{name} to be asked {more} times"),
            || (self.asked(name) >= before + more).then_some(()),
            || self.scene.journal.to_string(),
        );
    }
}

#[test]
fn unfit_instance_takes_a_free_lock_only_once_it_is_fit() {
    for place in Place::each("if-takes") {
        place.is_fit("one");
        let one = place.candidate("one", &[]);
        place.scene.journal.await_tag(What::Beat, "one");
        let mut two = place.candidate("two", &[]);
        two.await_log(NOT_FIT);
        place.let_end("one");
        assert_eq!(one.finish().ended, Ended::Code(0));
        place.await_asked("two", 3);
        place.assert_free();
        assert_eq!(
            two.stderr().matches("not fit").count(),
            1,
            "{}",
            two.stderr()
        );
        assert!(!two.stderr().contains("in control"), "{}", two.stderr());
        place.is_fit("two");
        place.scene.journal.await_tag(What::Beat, "two");
        assert!(two.stderr().contains(FIT), "{}", two.stderr());
        two.signal(Signal::SIGTERM);
        assert_eq!(two.wait(), TERM, "{}", two.stderr());
        assert_eq!(place.scene.journal.judge(), ["one", "two"]);
        place.scene.await_nobody();
    }
}

#[test]
fn standby_that_becomes_unfit_does_not_get_the_lock() {
    for place in Place::each("if-waits") {
        let one = place
            .run("one")
            .journalist("one", &["--until", &place.path("one", "done")])
            .start();
        place.scene.journal.await_tag(What::Beat, "one");
        place.is_fit("two");
        let mut two = place.candidate("two", &[]);
        two.await_log("standing by: one is in control");
        place.is_not_fit("two");
        two.await_log(NOT_FIT);
        place.let_end("one");
        assert_eq!(one.finish().ended, Ended::Code(0));
        place.assert_free();
        place.await_asked("two", 2);
        place.assert_free();
        place.is_fit("two");
        place.scene.journal.await_tag(What::Beat, "two");
        place.let_end("two");
        assert_eq!(two.wait(), Ended::Code(0));
        assert_eq!(place.scene.journal.judge(), ["one", "two"]);
    }
}

/// A doorbell without polls while a test lasts.
const BELL: [&str; 4] = ["--doorbell=127.0.0.1", "--poll", "1h", "-v"];
const HEARS: &str = "hears the holder's doorbell, 0 standbys before this one";

#[test]
fn fit_standby_takes_over_at_a_ring_without_another_question() {
    let place = Place::on_blob("if-rung-fit");
    let one = place
        .run("one")
        .args(BELL)
        .journalist("one", &["--until", &place.path("one", "done")])
        .start();
    place.scene.journal.await_tag(What::Beat, "one");
    place.is_fit("two");
    let mut two = place.candidate("two", &BELL);
    two.await_log(HEARS);
    place.let_end("one");
    assert_eq!(one.finish().ended, Ended::Code(0));
    // The answer counts for an hour.
    place.scene.journal.await_tag(What::Beat, "two");
    assert_eq!(place.asked("two"), 1);
    place.let_end("two");
    assert_eq!(two.wait(), Ended::Code(0));
    assert_eq!(place.scene.journal.judge(), ["one", "two"]);
}

#[test]
fn ring_during_the_condition_takes_nothing_before_its_answer() {
    for turns_unfit in [true, false] {
        let place = Place::on_blob("if-rung-asked");
        let one = place
            .run("one")
            .args(BELL)
            .journalist("one", &["--until", &place.path("one", "done")])
            .start();
        place.scene.journal.await_tag(What::Beat, "one");
        place.is_fit("two");
        // The answer waits while this file exists.
        let busy = place.path("two", "busy");
        let condition = format!(
            "echo >> {}; while test -e {busy}; do sleep 0.02; done; test -e {}",
            place.path("two", "asked"),
            place.path("two", "fit")
        );
        let mut two = place
            .run("two")
            .args(["--if", &condition])
            .args(BELL)
            // For the condition; the lock is polled rarely while the bell is heard.
            .args(["--poll", "10s"])
            .journalist("two", &["--until", &place.path("two", "done")])
            .start();
        two.await_log(HEARS);
        File::create(&busy).unwrap();
        place.await_asked("two", 1);
        // It rings while the last answer is still yes.
        place.let_end("one");
        assert_eq!(one.finish().ended, Ended::Code(0));
        place.assert_free();
        place.assert_never_ran("two");
        if turns_unfit {
            place.is_not_fit("two");
            fs::remove_file(&busy).unwrap();
            two.await_log(NOT_FIT);
            place.assert_free();
            place.is_fit("two");
        } else {
            fs::remove_file(&busy).unwrap();
        }
        place.scene.journal.await_tag(What::Beat, "two");
        place.let_end("two");
        assert_eq!(two.wait(), Ended::Code(0));
        assert_eq!(place.scene.journal.judge(), ["one", "two"]);
    }
}

#[test]
fn unfit_standby_ignores_the_doorbell() {
    let place = Place::on_blob("if-rung-unfit");
    let one = place
        .run("one")
        .args(BELL)
        .journalist("one", &["--until", &place.path("one", "done")])
        .start();
    place.scene.journal.await_tag(What::Beat, "one");
    place.is_fit("two");
    let mut two = place.candidate("two", &["--doorbell=127.0.0.1", "-v"]);
    two.await_log(HEARS);
    place.is_not_fit("two");
    two.await_log(NOT_FIT);
    place.let_end("one");
    assert_eq!(one.finish().ended, Ended::Code(0));
    place.await_asked("two", 3);
    place.assert_free();
    place.assert_never_ran("two");
    place.is_fit("two");
    place.scene.journal.await_tag(What::Beat, "two");
    place.let_end("two");
    assert_eq!(two.wait(), Ended::Code(0));
    assert_eq!(place.scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_holder_that_turns_unfit_keeps_control_and_is_not_asked() {
    for place in Place::each("if-keeps") {
        place.is_fit("one");
        let mut one = place.candidate("one", &["--restart", "on-failure"]);
        place.scene.journal.await_tag(What::Beat, "one");
        let asked = place.asked("one");
        place.is_not_fit("one");
        // Many polls, which would take a released lock.
        place.is_fit("two");
        let mut two = place.candidate("two", &[]);
        two.await_log("standing by");
        place.await_asked("two", 10);
        place.scene.journal.await_sign_of_life("one");
        assert_eq!(place.asked("one"), asked);
        assert!(!one.stderr().contains("not fit"), "{}", one.stderr());
        // It competes like any other.
        one.signal(Signal::SIGTERM);
        assert_eq!(one.wait(), TERM);
        place.scene.journal.await_tag(What::Beat, "two");
        let mut one = place.candidate("one", &[]);
        one.await_log(NOT_FIT);
        for instance in [&mut one, &mut two] {
            instance.signal(Signal::SIGTERM);
            assert_eq!(instance.wait(), TERM);
        }
        assert_eq!(place.scene.journal.judge(), ["one", "two"]);
    }
}

#[test]
fn no_wait_with_a_failing_condition_exits_75_in_one_line() {
    for place in Place::each("if-now") {
        let run = |options: &[&str]| {
            let run = place.run("one").arg("-n").args(options);
            run.command(["true"]).finish()
        };
        let refused = run(&["--if", "exit 3"]);
        assert_eq!(refused.ended, Ended::Code(75));
        let line = "control not obtained: the --if command exited with status 3; exit status 75";
        assert!(refused.stderr.contains(line), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        let quiet = run(&["--if", "exit 3", "-E", "0"]);
        assert_eq!(quiet.ended, Ended::Code(0), "{}", quiet.stderr);
        assert_eq!(run(&["--if", "true"]).ended, Ended::Code(0));
        let missing = run(&["--if", "no-such-command-anywhere"]);
        assert_eq!(missing.ended, Ended::Code(75));
        let words = "the --if command exited with status 127";
        assert!(missing.stderr.contains(words), "{}", missing.stderr);
        let killed = run(&["--if", "kill -SEGV $$"]);
        assert!(
            killed.stderr.contains("was killed by SIGSEGV"),
            "{}",
            killed.stderr
        );
    }
}

#[test]
fn condition_counts_against_the_wait() {
    let place = Place::on_file();
    let began = Instant::now();
    let waited = place
        .run("one")
        .args(["-w", "1s", "--if", &place.condition("one")])
        .command(["true"])
        .finish();
    assert_eq!(waited.ended, Ended::Code(75), "{}", waited.stderr);
    assert!(Instant::now().since(began) >= Duration::from_secs(1));
    assert!(
        waited
            .stderr
            .contains("control not obtained: the --if command")
    );
    assert!(place.asked("one") >= 2, "{}", place.asked("one"));
    // An instance that becomes fit meanwhile is in time.
    let mut two = place.candidate("two", &["-w", "1h"]);
    two.await_log(NOT_FIT);
    place.is_fit("two");
    place.scene.journal.await_tag(What::Beat, "two");
    place.let_end("two");
    assert_eq!(two.wait(), Ended::Code(0));
}

#[test]
fn a_task_that_is_done_is_done_for_one_that_is_not_fit() {
    for place in Place::each("if-once") {
        let mut waits = place.candidate("waits", &["--once"]);
        waits.await_log(NOT_FIT);
        place.is_fit("one");
        let one = place.candidate("one", &["--once"]);
        place.scene.journal.await_tag(What::Beat, "one");
        waits.assert_running();
        let early = place.run("early").args(["--once", "-n", "--if", "false"]);
        assert_eq!(early.command(["true"]).finish().ended, Ended::Code(75));
        place.let_end("one");
        assert_eq!(one.finish().ended, Ended::Code(0));
        assert_eq!(waits.wait(), Ended::Code(0), "{}", waits.stderr());
        assert!(waits.stderr().contains("already done by one at "));
        for options in [&["-n"][..], &["-w", "1h"], &[]] {
            let late = place.run("late").args(["--once", "--if", "false"]);
            let late = late.args(options).command(["true"]).finish();
            assert_eq!(late.ended, Ended::Code(0), "{}", late.stderr);
            assert!(
                late.stderr.contains("already done by one at "),
                "{}",
                late.stderr
            );
        }
        assert_eq!(place.scene.journal.judge(), ["one"]);
    }
}

#[test]
fn one_slot_is_left_to_those_who_are_fit() {
    let place = Place::on_file();
    let slots = ["--slots", "2"];
    let mut two = place.candidate("two", &slots);
    two.await_log(NOT_FIT);
    place.is_fit("one");
    let mut one = place.candidate("one", &slots);
    place.scene.journal.await_tag(What::Beat, "one");
    place.await_asked("two", 3);
    let passer_by = place.run("passer-by").args(slots).arg("-n");
    assert_eq!(passer_by.command(["true"]).finish().ended, Ended::Code(0));
    for instance in [&mut one, &mut two] {
        instance.signal(Signal::SIGTERM);
        assert_eq!(instance.wait(), TERM);
    }
    place.scene.await_nobody();
}

#[test]
fn hanging_condition_is_killed_with_its_tree_and_counts_as_no() {
    let place = Place::on_file();
    let hang = [
        "sleep 1000",
        "trap '' TERM; while :; do sleep 1000; done",
        "kill -STOP $$",
        "(trap '' TERM HUP; setsid sleep 1000) & wait",
        // It gets TERM when it is too late.
        "trap 'exit 0' TERM; sleep 1000 & wait",
    ];
    let start = |(number, hang): (usize, &&str)| {
        let name = format!("number-{number}");
        let condition = format!("echo $$ >> {}; {hang}", place.path(&name, "asked"));
        let run = place.run(&name).args(["--if", &condition]);
        (name, run.command(["true"]).start())
    };
    let started: Vec<_> = hang.iter().enumerate().map(start).collect();
    for (name, mut one) in started {
        one.await_log("not fit to take control: the --if command did not end in time");
        // It is asked again, and no process of the first time is left.
        let asked = await_for(
            "the next time",
            || {
                let asked = fs::read_to_string(place.path(&name, "asked")).ok()?;
                (asked.lines().count() > 1).then_some(asked)
            },
            || one.stderr(),
        );
        let first = asked.lines().next().and_then(|pid| pid.parse().ok());
        assert_eq!(processes::Process::read(first.expect("a pid")), None);
        one.signal(Signal::SIGTERM);
        assert_eq!(one.wait(), TERM, "{name}: {}", one.stderr());
    }
    place.scene.await_nobody();
}

#[test]
fn hanging_condition_does_not_outlast_the_wait() {
    let place = Place::on_file();
    let run = place.run("one").args(["-w", "2s", "--if", "sleep 1000"]);
    let late = run.command(["true"]).finish();
    assert_eq!(late.ended, Ended::Code(75), "{}", late.stderr);
    let words = "control not obtained: the --if command did not end in time";
    assert!(late.stderr.contains(words), "{}", late.stderr);
    place.scene.await_nobody();
}

#[test]
fn a_stop_does_not_wait_for_it() {
    let place = Place::on_file();
    let pid = place.path("one", "pid");
    let hang = format!("trap '' TERM; echo $$ > {pid}; while :; do sleep 1000; done");
    let mut one = place
        .run("one")
        .args(["--poll", "1h", "--if", &hang])
        .command(["true"])
        .start();
    await_for(
        "the condition to hang",
        || fs::metadata(&pid).ok(),
        || one.stderr(),
    );
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    place.scene.await_nobody();
}

#[test]
fn condition_does_not_outlive_a_killed_supervisor() {
    let place = Place::on_file();
    let pid = place.path("one", "pid");
    // Deaf to SIGTERM, with minutes for an orderly end while the supervisor lives.
    let hang = format!("trap '' TERM; setsid sleep 1000 & echo $$ > {pid}; sleep 1000");
    let mut one = place
        .run("one")
        .args(["--poll", "1h", "--if", &hang])
        .command(["true"])
        .start();
    await_for(
        "the condition to hang",
        || fs::metadata(&pid).ok(),
        || one.stderr(),
    );
    one.signal(Signal::SIGKILL);
    one.wait();
    place.scene.await_nobody();
}

#[test]
fn leftovers_of_a_condition_are_killed_before_its_answer_counts() {
    let place = Place::on_file();
    let left = place.path("one", "left");
    let daemon = format!(
        "(trap '' TERM HUP; exec setsid sh -c 'echo $$ > {left}; sleep 1000') & \
         while ! test -s {left}; do sleep 0.01; done"
    );
    // The command sees nothing of it.
    let finished = place
        .run("one")
        .args(["--if", &daemon])
        .shell(&format!("! kill -0 $(cat {left})"))
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let words = "the --if command left processes behind";
    assert_eq!(
        finished.stderr.matches(words).count(),
        1,
        "{}",
        finished.stderr
    );
    place.scene.await_nobody();
}

#[test]
fn its_output_goes_to_stderr_however_much_it_is() {
    let place = Place::on_file();
    let flood = "yes flooded | head -c 3000000; yes flooded | head -c 3000000 >&2; echo end";
    let finished = place
        .run("one")
        .args(["--if", flood])
        .shell("echo the command")
        .finish();
    assert_eq!(finished.ended, Ended::Code(0));
    assert_eq!(finished.stdout, "the command\n");
    assert!(finished.stderr.len() > 6_000_000);
}

#[test]
fn condition_has_a_standbys_environment_without_control() {
    let place = Place::on_file();
    let found = place.path("one", "found");
    let program = env!("CARGO_BIN_EXE_trafficcop");
    let look = format!("env > {found}; {program} check; echo check=$? >> {found}; cat >> {found}");
    let finished = place
        .run("one")
        .env("TRAFFICCOP_TOKEN", "9")
        .args(["--if", &look])
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let found = fs::read_to_string(found).unwrap();
    for line in [
        format!("TRAFFICCOP_LOCK={}", place.scene.lock().display()),
        "TRAFFICCOP_ROLE=standby".into(),
        "check=1".into(),
    ] {
        assert!(found.lines().any(|one| one == line), "{line}: {found}");
    }
    assert!(!found.contains("TRAFFICCOP_TOKEN="), "{found}");
}

#[test]
fn the_status_the_pages_and_the_metrics_say_why_it_is_not_ready() {
    let place = Place::on_file();
    let file = place.path("one", "status");
    let mut one = place.candidate("one", &["--listen", "127.0.0.1:0", "--status-file", &file]);
    let at = address(&one);
    let told = await_state(at, "unfit");
    assert_eq!(told["cause"], "the --if command exited with status 1");
    let ready = get(at, "/readyz");
    assert_eq!(ready.status, 503);
    assert_eq!(ready.body, "unfit: the --if command exited with status 1\n");
    assert_eq!(get(at, "/healthz").status, 200);
    let metrics = get(at, "/metrics").body;
    assert!(metrics.contains("trafficcop_fit{lock="), "{metrics}");
    let fit = |metrics: &str| {
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("trafficcop_fit{"));
        line.and_then(|line| line.rsplit(' ').next().map(str::to_owned))
    };
    assert_eq!(fit(&metrics).as_deref(), Some("0"));
    assert!(metrics.contains("state=\"unfit\"} 1"), "{metrics}");
    await_for(
        "the status file to say it too",
        || {
            fs::read_to_string(&file)
                .ok()?
                .contains("\"unfit\"")
                .then_some(())
        },
        String::new,
    );
    place.is_fit("one");
    place.scene.journal.await_tag(What::Beat, "one");
    await_state(at, "holding");
    assert!(status(at)["cause"].is_null());
    assert_eq!(get(at, "/readyz").status, 200);
    assert_eq!(fit(&get(at, "/metrics").body).as_deref(), Some("1"));
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
}

#[test]
fn the_standby_command_runs_while_it_is_not_fit() {
    let place = Place::on_file();
    let stands = place.path("one", "stands");
    let standby = format!("echo > {stands}; exec sleep 1000");
    let mut one = place.candidate("one", &["--standby", &standby]);
    one.await_log(NOT_FIT);
    await_for(
        "the standby command",
        || fs::metadata(&stands).ok(),
        || one.stderr(),
    );
    place.is_fit("one");
    place.scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    place.scene.await_nobody();
}

#[test]
fn condition_without_a_guardian_counts_as_no() {
    let place = Place::on_file();
    let mut one = place.candidate("one", &[]);
    one.await_log(NOT_FIT);
    // The command's was forked first.
    let guardians = processes::marked(place.scene.directory());
    let mut guardians: Vec<i32> = guardians
        .iter()
        .filter(|process| process.is_ours() && process.parent == one.pid())
        .map(|process| process.pid)
        .collect();
    guardians.retain(|pid| *pid != one.guardian());
    assert_eq!(guardians.len(), 1, "{guardians:?}");
    kill(Pid::from_raw(guardians[0]), Signal::SIGKILL).unwrap();
    place.is_fit("one");
    // The yes may be a moment old.
    if !one.stderr().contains("in control") {
        one.await_log("the --if command cannot run any more");
    }
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    place.scene.await_nobody();
}

#[test]
fn a_reader_of_an_election_is_told_standby_and_hears_nothing_of_the_condition() {
    let place = Place::on_file();
    let condition = format!("echo noise; {}", place.condition("one"));
    let mut one = place
        .verb("elect", "one")
        .args(["--if", &condition])
        .start();
    one.await_log(NOT_FIT);
    await_for(
        "the line",
        || (one.stdout() == "standby unknown\n").then_some(()),
        || one.stdout(),
    );
    place.await_asked("one", 2);
    place.is_fit("one");
    await_for(
        "control",
        || one.stdout().ends_with("holder 1\n").then_some(()),
        || format!("{} {}", one.stdout(), one.stderr()),
    );
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    assert!(!one.stdout().contains("noise"), "{}", one.stdout());
    assert!(one.stderr().contains("noise"));
    place.scene.await_nobody();
}
