//! Control passes on, and no two readers believe at the same time that they have it.

use std::collections::BTreeSet;

use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::*;
use crate::support::azurite::azurite;
use crate::support::processes::{Process, marked};
use crate::support::proxy::{Mode, Proxy};

fn holder(pairs: &[Pair], token: u64) -> usize {
    let wanted = format!("holder {token}");
    await_for(
        &wanted,
        || {
            let mut those =
                (0..pairs.len()).filter(|at| pairs[*at].heard.texts().contains(&wanted));
            let found = those.next()?;
            assert_eq!(those.next(), None, "two were told {wanted}");
            Some(found)
        },
        || {
            format!(
                "{:#?}",
                pairs.iter().map(|p| p.heard.lines()).collect::<Vec<_>>()
            )
        },
    )
}

/// Three instances whose holders end one after another: killed, asked to stop, hung up on.
fn one_after_another(mut start: impl FnMut(&str) -> Pair) {
    let mut pairs = vec![start("a")];
    // Before the others start: on a blob that another has just created, tokens begin with the service's time.
    pairs[0].heard.await_line("holder 1");
    pairs.extend(["b", "c"].map(start));
    let mut left: BTreeSet<usize> = (0..3).collect();
    for (token, end) in [
        (1, Signal::SIGKILL),
        (2, Signal::SIGTERM),
        (3, Signal::SIGINT),
    ] {
        let at = holder(&pairs, token);
        assert!(left.remove(&at), "a holder that had ended");
        let named = format!("standby {}", pairs[at].name);
        for other in &left {
            pairs[*other].heard.await_line(&named);
        }
        let told: usize = pairs
            .iter()
            .map(|pair| {
                pair.heard
                    .texts()
                    .iter()
                    .filter(|l| l.starts_with("holder"))
                    .count()
            })
            .sum();
        assert_eq!(told as u64, token, "one line for each tenure");
        pairs[at].instance.signal(end);
        assert_eq!(pairs[at].instance.wait(), Ended::Died(end));
    }
    for pair in &pairs {
        await_for("the end", || pair.heard.end(), String::new);
        let texts = pair.heard.texts();
        assert_eq!(texts.last().unwrap(), "standby unknown", "{texts:?}");
        let mut twice = texts.windows(2);
        assert!(twice.all(|both| both[0] != both[1]), "{texts:?}");
    }
    judge(&pairs);
}

#[test]
fn on_a_file_killed_and_stopped_holders_are_followed_by_one_each_and_readers_never_overlap() {
    let scene = Scene::new();
    one_after_another(|name| Pair::start(name, on_file(&scene).args(["--grace", "3s"])));
    scene.await_nobody();
}

#[test]
fn on_a_blob_killed_and_stopped_holders_are_followed_by_one_each_and_readers_never_overlap() {
    let scene = Scene::new();
    let blob = "elect/three";
    one_after_another(|name| {
        let run = on_blob(&scene, azurite().port, blob).args(["--grace", "3s"]);
        Pair::start(name, run)
    });
    scene.await_nobody();
}

#[test]
fn a_holder_whose_store_is_frozen_says_standby_before_another_can_hold() {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let first = Pair::start("first", on_blob(&scene, proxy.port, "elect/frozen"));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_blob(&scene, azurite().port, "elect/frozen"));
    second.heard.await_line("standby first");
    proxy.set(Mode::Freeze);
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    // Grace (3 s) and margin (1 s) lie between, less a busy machine's time to print.
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    proxy.set(Mode::Pass);
    first.heard.await_line("standby second");
    judge(&[first, second]);
}

#[test]
fn reader_of_a_stopped_holder_is_told_standby_once() {
    let scene = Scene::new();
    let port = azurite().port;
    let first = Pair::start("first", on_blob(&scene, port, "elect/stopped"));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_blob(&scene, port, "elect/stopped"));
    second.heard.await_line("standby first");
    first.instance.freeze();
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert_eq!(first.heard.texts(), ["holder 1", "standby unknown"]);
    first.instance.signal(Signal::SIGCONT);
    first.heard.await_line("standby second");
    assert_eq!(first.heard.texts().len(), 3);
    judge(&[first, second]);
}

#[test]
fn a_holder_all_of_whose_processes_were_stopped_says_standby_first() {
    let scene = Scene::new();
    scene.excuse_event_logs("nothing can be killed in time where all is stopped");
    let port = azurite().port;
    let first = Pair::start("first", on_blob(&scene, port, "elect/all-stopped"));
    first.heard.await_line("holder 1");
    let all: Vec<Process> = marked(scene.directory());
    assert_eq!(all.len(), 3, "supervisor, guardian and teller: {all:?}");
    for process in &all {
        kill(Pid::from_raw(process.pid), Signal::SIGSTOP).expect("ours");
    }
    let second = Pair::start("second", on_blob(&scene, port, "elect/all-stopped"));
    second.heard.await_line("holder 2");
    assert_eq!(first.heard.texts(), ["holder 1"]);
    // The guardian first: the supervisor would kill a silent one. The teller may be dead.
    for process in all.iter().rev() {
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
    }
    first.heard.await_line("standby second");
    let texts = first.heard.texts();
    assert_eq!(texts[..2], ["holder 1", "standby unknown"], "{texts:?}");
}

#[test]
fn max_hold_hands_control_round_with_a_line_each() {
    let scene = Scene::new();
    // Often enough to look while the other cools down.
    let turns = [
        "--max-hold",
        "2s",
        "--cooldown",
        "3s",
        "--grace",
        "1s",
        "--poll",
        "200ms",
    ];
    let first = Pair::start("first", on_file(&scene).args(turns));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene).args(turns));
    first.heard.await_line("standby unknown");
    second.heard.await_line("holder 2");
    first.heard.await_line("standby second");
    first.heard.await_line("holder 3");
    judge(&[first, second]);
}
