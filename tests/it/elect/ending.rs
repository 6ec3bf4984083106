//! An instance's end, and what its reader is told and given.

use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::*;
use crate::support::processes::marked;

#[test]
fn a_requested_stop_says_standby_and_waits_the_grace_unless_the_reader_hangs_up() {
    let scene = Scene::new();
    let (mut first, mut reader) = unread(on_file(&scene).args(["--grace", "1h"]));
    assert_eq!(first_line(&mut reader), "holder 1");
    let second = Pair::start("second", on_file(&scene).args(["--grace", "2s"]));
    await_for(
        "the second to stand by",
        || (!second.heard.texts().is_empty()).then_some(()),
        String::new,
    );
    first.signal(Signal::SIGTERM);
    assert_eq!(first_line(&mut reader), "standby unknown");
    first.assert_running();
    assert!(second.heard.tenures().is_empty());
    drop(reader);
    assert_eq!(first.wait(), TERM);
    second.heard.await_line("holder 2");
    // One that continues gets its grace.
    let third = Pair::start("third", on_file(&scene));
    third.heard.await_line("standby second");
    second.instance.signal(Signal::SIGHUP);
    let told = second.heard.await_line("standby unknown");
    let held = third.heard.await_line("holder 3");
    assert!(held > told + SECOND, "told {} ns before", held - told);
}

#[test]
fn a_killed_supervisor_s_reader_gets_its_grace_before_a_file_s_lock_is_free() {
    let scene = Scene::new();
    let mut first = Pair::start("first", on_file(&scene).args(["--grace", "4s"]));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene));
    second.heard.await_line("standby first");
    first.instance.signal(Signal::SIGKILL);
    assert_eq!(first.instance.wait(), KILL);
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert!(first.heard.end().is_some_and(|end| end > told));
}

/// Kills teller or guardian: the survivors tell the reader, with a grace.
fn dies(which: &str) {
    let scene = Scene::new();
    let events = scene.path("events");
    let log = ["--event-log", events.to_str().expect("text")];
    let options = ["--grace", "4s"].into_iter().chain(log);
    let mut first = Pair::start("first", on_file(&scene).args(options));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene));
    second.heard.await_line("standby first");
    let guardian = first.instance.guardian();
    let victim = match which {
        "guardian" => guardian,
        _ => {
            let all = marked(scene.directory());
            all.iter()
                .find(|one| one.parent == guardian)
                .expect("a teller")
                .pid
        }
    };
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert_eq!(
        first.instance.wait(),
        Ended::Code(70),
        "{}",
        first.instance.stderr()
    );
    assert_eq!(first.heard.texts(), ["holder 1", "standby unknown"]);
    let events = std::fs::read_to_string(events).expect("a log");
    let is_told = events.contains("\"guardian-lost\"");
    assert_eq!(is_told, which == "guardian", "{events}");
}

#[test]
fn the_death_of_the_teller_gives_the_reader_a_grace_and_is_status_70() {
    dies("teller");
}

#[test]
fn the_death_of_the_guardian_gives_the_reader_a_grace_and_is_status_70() {
    dies("guardian");
}
