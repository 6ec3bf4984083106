//! Locks in a helper's store (`--store HELPER:NAME`): the contract, and faults of the helper.

use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use crate::support::instance::{Ended, Run, assert_ended};
use crate::support::journal::What;
use crate::support::scene::Scene;
use crate::support::{await_for, processes};

/// A scene with a helper whose store is the scene's directory.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.helper();
    scene
}

fn store(scene: &Scene) -> String {
    format!("{}:job", scene.path("helper").display())
}

fn verb<'a>(scene: &'a Scene, verb: &str) -> Run<'a> {
    let run = scene.verb(verb).env("STORE", scene.directory());
    run.env("XDG_RUNTIME_DIR", scene.directory())
        .args(["--store", &store(scene)])
}

fn run<'a>(scene: &'a Scene, name: &str) -> Run<'a> {
    verb(scene, "run").args(["--identity", name, "--lease", "10s", "--poll", "500ms"])
}

/// Has every call run this shell code before it is answered, or after.
fn fault(scene: &Scene, when: &str, code: &str) {
    std::fs::write(scene.path("new"), code).expect("a file in the scene");
    std::fs::rename(scene.path("new"), scene.path(when)).expect("it is there");
}

fn forever(scene: &Scene, name: &str) -> crate::support::instance::Instance {
    run(scene, name)
        .journalist(name, &["--every", "50"])
        .start()
}

/// Starts an instance with the longest lease, which nothing may wait for.
fn patient(scene: &Scene, name: &str) -> crate::support::instance::Instance {
    run(scene, name)
        .args(["--lease", "60s"])
        .journalist(name, &["--every", "50"])
        .start()
}

#[test]
fn command_finds_its_lock_and_a_token_that_grows() {
    let scene = scene();
    let print = "echo \"$TRAFFICCOP_TOKEN $TRAFFICCOP_LOCK $TRAFFICCOP_SLOT\"; exit 3";
    let mut last = 0;
    for _ in 0..3 {
        let finished = run(&scene, "one").shell(print).finish();
        assert_eq!(finished.ended, Ended::Code(3), "{finished:?}");
        let words: Vec<&str> = finished.stdout.split_whitespace().collect();
        assert_eq!(words[1..], [&*store(&scene), "0"]);
        let token: u64 = words[0].parse().expect("a number");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

#[test]
fn standby_takes_over_at_once_from_a_stopped_and_from_a_killed_supervisor() {
    let scene = scene();
    let journal = &scene.journal;
    let mut one = forever(&scene, "one");
    journal.await_tag(What::Beat, "one");
    let mut two = patient(&scene, "two");
    two.await_log("standing by: one is in control");
    one.signal(Signal::SIGTERM);
    one.wait();
    journal.await_tag(What::Beat, "two");
    let mut three = forever(&scene, "three");
    three.await_log("standing by: two is in control");
    // The guardian releases by the same helper.
    two.signal(Signal::SIGKILL);
    two.wait();
    let killed = Instant::now();
    journal.await_tag(What::Beat, "three");
    assert!(
        Instant::now().since(killed) < Duration::from_secs(30),
        "it waited for the lease"
    );
    three.signal(Signal::SIGTERM);
    three.wait();
    journal.judge();
    scene.await_nobody();
}

#[test]
fn store_that_hangs_for_its_holder_costs_control_before_another_gets_it() {
    let scene = scene();
    let journal = &scene.journal;
    let mut one = run(&scene, "one")
        .env("HANGS", "yes")
        .args(["--if-lost", "exit"])
        .journalist("one", &["--every", "50", "--term", "200:9"])
        .start();
    journal.await_tag(What::Beat, "one");
    let mut two = forever(&scene, "two");
    two.await_log("standing by: one is in control");
    fault(&scene, "before", "[ -z \"$HANGS\" ] || sleep 600");
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    journal.await_tag(What::Beat, "two");
    two.signal(Signal::SIGTERM);
    two.wait();
    journal.judge();
    scene.await_nobody();
}

#[test]
fn helper_of_a_killed_supervisor_is_killed_with_what_it_started() {
    let scene = scene();
    let mut one = forever(&scene, "one");
    scene.journal.await_tag(What::Beat, "one");
    fault(&scene, "before", "sleep 600 & wait");
    await_for(
        "a helper that hangs",
        || {
            let all = processes::marked(scene.directory());
            all.iter().any(|one| one.program == "sleep").then_some(())
        },
        || one.stderr(),
    );
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
}

#[test]
fn helper_that_ignores_tags_is_refused_before_the_command_starts() {
    for (ignores, code) in [
        (
            "every tag",
            "[ \"$1\" = get ] || set -- \"$1\" \"$2\" \"$(tag)\"",
        ),
        (
            "made-up tags",
            "[ \"$3\" = - ] || set -- \"$1\" \"$2\" \"$(tag)\"",
        ),
        (
            "the tag of no entry",
            "[ \"$3\" != - ] || set -- \"$1\" \"$2\" \"$(tag)\"",
        ),
    ] {
        let scene = scene();
        assert_eq!(
            run(&scene, "one").shell("true").finish().ended,
            Ended::Code(0)
        );
        fault(&scene, "before", code);
        let finished = run(&scene, "two").shell("echo ran").finish();
        assert_ended(&finished, 69, "which does not hold");
        assert_eq!(finished.stdout, "", "it ignores {ignores}");
    }
}

#[test]
fn missing_helper_is_refused_with_the_places_that_were_searched() {
    let scene = Scene::new();
    for (store, words) in [
        (
            "nosuch:job",
            "trafficcop-store-nosuch in PATH or in /usr/share/trafficcop/stores",
        ),
        ("./nosuch:job", "./nosuch is not an executable file"),
        ("/etc/passwd:job", "/etc/passwd is not an executable file"),
    ] {
        let finished = scene.run().args(["--store", store]).shell("true").finish();
        assert_ended(&finished, 69, words);
    }
    for (store, words) in [
        ("etcd", "name a helper and its entry"),
        (":x", "name a helper and its entry"),
        ("x:", "name a helper and its entry"),
    ] {
        let finished = scene.run().args(["--store", store]).shell("true").finish();
        assert_ended(&finished, 64, words);
    }
}

#[test]
fn answers_that_break_the_contract_are_doubt_and_name_the_helper() {
    for (code, words) in [
        ("yes; exit 0", "prints more than 64 KiB"),
        ("exit 7", "exit status 7"),
        (
            "echo broken pipe to the store >&2; exit 7",
            "broken pipe to the store",
        ),
        ("kill -9 $$", "killed by signal 9"),
        ("exit 0", "its first line is no tag"),
    ] {
        let scene = scene();
        fault(&scene, "before", code);
        let waits = ["--connect-timeout", "1s"];
        let finished = run(&scene, "one").args(waits).shell("echo ran").finish();
        assert_ended(&finished, 69, words);
        assert_eq!(finished.stdout, "");
        scene.await_nobody();
    }
}

#[test]
fn noise_on_stderr_and_a_daemon_with_open_pipes_delay_nothing() {
    let scene = scene();
    fault(
        &scene,
        "before",
        "head -c 200000 /dev/zero | tr '\\0' 'x' >&2; sleep 600 &",
    );
    let begun = Instant::now();
    let finished = run(&scene, "one").shell("echo ran").finish();
    assert_eq!(finished.stdout, "ran\n", "{finished:?}");
    assert!(Instant::now().since(begun) < Duration::from_secs(60));
    scene.await_nobody();
}

#[test]
fn lost_answer_of_a_write_ends_no_tenure_and_no_attempt() {
    let scene = scene();
    // Each write is made; every other one is said to be refused or failed.
    let code = "if [ \"$1\" = put ] && [ $status = 0 ]; then n=$(cat \"$STORE/n\" 2>/dev/null || echo 0); \
                echo $((n + 1)) >\"$STORE/n\"; case $((n % 4)) in 1) status=4 ;; 3) status=1 ;; esac; fi";
    fault(&scene, "after", code);
    let until = scene.path("done");
    let mut one = run(&scene, "one")
        .args(["--if-lost", "exit"])
        .journalist(
            "one",
            &["--every", "50", "--until", until.to_str().expect("text")],
        )
        .start();
    scene.journal.await_tag(What::Beat, "one");
    let calls = || {
        let n = std::fs::read_to_string(scene.path("n")).unwrap_or_default();
        n.trim().parse::<u32>().unwrap_or(0)
    };
    let before = calls();
    await_for(
        "renewals",
        || (calls() > before + 4).then_some(()),
        || one.stderr(),
    );
    std::fs::write(until, "").expect("a file in the scene");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    scene.journal.judge();
}

#[test]
fn deleted_entry_ends_the_tenure_and_is_not_begun_anew() {
    let scene = scene();
    scene.excuse_confession("the entry is deleted under its holder");
    let mut one = run(&scene, "one")
        .journalist("one", &["--every", "50"])
        .start();
    scene.journal.await_tag(What::Beat, "one");
    std::fs::remove_file(scene.path("db").join("job")).expect("it is there");
    one.await_log("deleted, or forgotten by the store");
    one.signal(Signal::SIGTERM);
    one.wait();
    assert!(!scene.path("db").join("job").exists());
    scene.await_nobody();
}

#[test]
fn text_that_cannot_be_read_is_held() {
    let scene = scene();
    assert_eq!(
        run(&scene, "one").shell("true").finish().ended,
        Ended::Code(0)
    );
    std::fs::write(scene.path("db").join("job"), "no record\n").expect("it is there");
    let finished = run(&scene, "two").arg("-n").shell("echo ran").finish();
    assert_eq!(finished.ended, Ended::Code(75), "{finished:?}");
    let status = verb(&scene, "status").finish();
    assert!(status.stdout.contains("held for 60 s"), "{status:?}");
}

#[test]
fn task_is_done_once_by_one_of_five_and_again_after_a_reset() {
    let scene = scene();
    let all: Vec<_> = (0..5)
        .map(|number| {
            let run =
                run(&scene, &format!("n{number}")).args(["--once-key", "v1", "--once-per", "1h"]);
            run.journalist("task", &["--beats", "4"]).start()
        })
        .collect();
    for one in all {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    }
    let runs = || {
        let lines = scene.journal.lines();
        lines.iter().filter(|line| line.what == What::Start).count()
    };
    assert_eq!(runs(), 1);
    let reset = verb(&scene, "reset")
        .args(["--once-key", "v1", "-y"])
        .finish();
    assert_ended(&reset, 0, "");
    let again = run(&scene, "n6").args(["--once-key", "v1", "--once-per", "1h"]);
    assert_eq!(
        again.journalist("task", &["--beats", "1"]).finish().ended,
        Ended::Code(0)
    );
    assert_eq!(runs(), 2);
}

#[test]
fn two_of_three_instances_get_one_of_two_slots() {
    let scene = scene();
    let slots = |name: &str| run(&scene, name).args(["--slots", "2"]);
    let mut one = slots("one").journalist("one", &["--every", "50"]).start();
    scene.journal.await_tag(What::Beat, "one");
    let mut two = slots("two").journalist("two", &["--every", "50"]).start();
    scene.journal.await_tag(What::Beat, "two");
    let third = slots("three").arg("-n").shell("echo ran").finish();
    assert_eq!((third.ended, &*third.stdout), (Ended::Code(75), ""));
    let listed = scene.verb("list").env("STORE", scene.directory());
    let listed = listed.args(["--store", &store(&scene)]).finish();
    for word in ["job.0", "job.1", "one", "two"] {
        assert!(listed.stdout.contains(word), "{listed:?}");
    }
    for one in [&mut one, &mut two] {
        one.signal(Signal::SIGTERM);
        one.wait();
    }
}

#[test]
fn break_by_an_operator_ends_the_command_within_its_period() {
    let scene = scene();
    let mut one = run(&scene, "one")
        .args(["--lease", "30s", "--if-lost", "exit"])
        .journalist("one", &["--every", "50"])
        .start();
    scene.journal.await_tag(What::Beat, "one");
    let status = verb(&scene, "status").finish();
    assert_eq!(status.ended, Ended::Code(0), "{status:?}");
    assert!(status.stdout.contains("one"), "{status:?}");
    let broken = verb(&scene, "break")
        .args(["--period", "20", "-y"])
        .finish();
    assert_ended(&broken, 0, "");
    assert!(broken.stdout.contains("in 20 seconds"), "{broken:?}");
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn credentials_of_the_helper_are_kept_from_the_command() {
    let scene = scene();
    let secret = |run: Run<'_>| {
        let run = run.env("STORE_SECRET", "s3cret");
        run.shell("echo \"${STORE_SECRET-none}\"").finish().stdout
    };
    assert_eq!(secret(run(&scene, "one")), "s3cret\n");
    assert_eq!(secret(run(&scene, "one").arg("--no-credentials")), "none\n");
}

#[test]
fn cron_line_follows_a_dead_holder_once_its_lease_has_been_seen_to_pass() {
    let scene = scene();
    assert_eq!(
        run(&scene, "one").shell("true").finish().ended,
        Ended::Code(0)
    );
    // As a holder leaves it whose machine is gone.
    let path = scene.path("db").join("job");
    let mut one = forever(&scene, "one");
    scene.journal.await_tag(What::Beat, "one");
    let held = std::fs::read(&path).expect("it is there");
    one.signal(Signal::SIGTERM);
    one.wait();
    std::fs::write(&path, held).expect("it is there");
    let look = || run(&scene, "two").arg("-n").shell("echo ran").finish();
    let begun = Instant::now();
    await_for(
        "control after the lease",
        || {
            let finished = look();
            let ended = finished.ended == Ended::Code(0);
            assert!(ended || finished.ended == Ended::Code(75), "{finished:?}");
            std::thread::sleep(Duration::from_millis(500));
            ended.then_some(())
        },
        || "still held".to_owned(),
    );
    assert!(
        Instant::now().since(begun) >= Duration::from_secs(9),
        "too early"
    );
}

#[test]
fn doctor_races_writers_and_tells_what_a_helper_lacks() {
    let scene = scene();
    let good = verb(&scene, "doctor").finish();
    assert_eq!(good.ended, Ended::Code(0), "{good:?}");
    assert!(
        good.stdout
            .contains("10 races of 8 writers with one tag had one winner each"),
        "{good:?}"
    );
    // Writes when another has compared, too.
    let code = "if [ \"$1\" = put ]; then [ \"$(tag)\" = \"$3\" ] || exit 4; mkdir -p \"$STORE/compared\"; \
                : >\"$STORE/compared/$$\"; n=0; \
                while [ \"$(ls \"$STORE/compared\" | wc -l)\" -lt 2 ] && [ $n -lt 300 ]; do \
                sleep 0.1; n=$((n + 1)); done; \
                cat >\"$entry.$$\"; mv \"$entry.$$\" \"$entry\"; exit 0; fi";
    fault(&scene, "before", code);
    let bad = verb(&scene, "doctor").finish();
    assert_eq!(bad.ended, Ended::Code(1), "{bad:?}");
    assert!(
        bad.stdout.contains("two instances could have control"),
        "{bad:?}"
    );
}

#[test]
fn doctor_finds_a_helper_that_damages_a_text_and_one_that_fails() {
    for (code, found) in [
        (
            "if [ \"$1\" = get ] && [ -e \"$entry\" ]; then tag; tr -d '\\\\' <\"$entry\"; exit 0; fi",
            "gives back another text",
        ),
        (
            "echo 'ERROR: no such table' >&2; echo 'LINE 1: ^' >&2; exit 3",
            "(ERROR: no such table): try its calls by hand",
        ),
    ] {
        let scene = scene();
        fault(&scene, "before", code);
        let finished = verb(&scene, "doctor").finish();
        assert_eq!(finished.ended, Ended::Code(1), "{finished:?}");
        assert!(finished.stdout.contains(found), "{finished:?}");
    }
}

#[test]
fn periods_are_refused_where_the_helper_has_no_clock() {
    let scene = scene();
    fault(&scene, "before", "[ \"$1\" != time ] || exit 2");
    let once = ["--once-per", "1h"];
    let finished = run(&scene, "one").args(once).shell("echo ran").finish();
    assert_eq!(finished.ended, Ended::Code(69), "{finished:?}");
    assert!(finished.stderr.contains("no verb 'time'"), "{finished:?}");
    assert_eq!(finished.stdout, "", "{finished:?}");
}

#[test]
fn clock_of_a_shell_that_fails_for_a_moment_is_asked_again() {
    let scene = scene();
    let code = "[ \"$1\" != time ] || [ -e \"$STORE/failed\" ] || { : >\"$STORE/failed\"; \
                echo 'sh: Cannot fork' >&2; exit 2; }";
    fault(&scene, "before", code);
    let once = ["--once-per", "1h"];
    let finished = run(&scene, "one").args(once).shell("echo ran").finish();
    assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    assert_eq!(finished.stdout, "ran\n", "{finished:?}");
}

#[test]
fn entry_that_was_never_held_is_free_and_a_helper_without_list_still_shows_it() {
    let scene = scene();
    let status = verb(&scene, "status").finish();
    assert_eq!(status.ended, Ended::Code(1), "{status:?}");
    assert!(
        !scene.path("db").join("job").exists(),
        "a look writes nothing"
    );
    fault(&scene, "before", "[ \"$1\" != list ] || exit 2");
    let status = verb(&scene, "status").finish();
    assert_eq!(status.ended, Ended::Code(1), "{status:?}");
    let list = verb(&scene, "list").finish();
    assert_eq!(list.ended, Ended::Code(69), "{list:?}");
}

#[test]
fn lock_of_a_helper_on_path_has_the_same_address_wherever_the_helper_is() {
    let scene = scene();
    let place = scene.path("bin");
    std::fs::create_dir(&place).expect("a directory in the scene");
    std::fs::rename(scene.path("helper"), place.join("trafficcop-store-mine"))
        .expect("it is there");
    let path = format!(
        "{}:{}",
        place.display(),
        std::env::var("PATH").expect("there is one")
    );
    let run = scene
        .run()
        .env("STORE", scene.directory())
        .env("PATH", path);
    let finished = run
        .args(["--store", "mine:job"])
        .shell("echo \"$TRAFFICCOP_LOCK\"")
        .finish();
    assert_eq!(finished.stdout, "mine:job\n", "{finished:?}");
}

#[test]
fn acquire_whose_answer_was_lost_is_recognised_by_the_next_look() {
    let scene = scene();
    assert_eq!(
        run(&scene, "one").shell("true").finish().ended,
        Ended::Code(0)
    );
    for status in [1, 4] {
        let code = format!(
            "if [ \"$1\" = put ] && [ $status = 0 ] && rm \"$STORE/lose\" 2>/dev/null; then status={status}; fi"
        );
        fault(&scene, "after", &code);
        std::fs::write(scene.path("lose"), "").expect("a file in the scene");
        let begun = Instant::now();
        let finished = run(&scene, "two").args(["--lease", "60s"]);
        let finished = finished.shell("echo ran").finish();
        assert_eq!(finished.stdout, "ran\n", "{finished:?}");
        assert!(!scene.path("lose").exists());
        // Another's lease would be waited for.
        assert!(Instant::now().since(begun) < Duration::from_secs(30));
    }
}
