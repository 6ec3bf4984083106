//! Tests of the support: a judge that never finds a fault would be useless.

use std::time::Duration;

use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::journal::{Journal, What};
use crate::support::proxy::{Call, Fate, Mode, Proxy};
use crate::support::scene::Scene;

fn journal_of(text: &str) -> (tempfile::TempDir, Journal) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    std::fs::write(&path, text).unwrap();
    (directory, Journal::at(path))
}

#[test]
fn the_judge_lists_tenures_that_follow_each_other() {
    let (_directory, journal) = journal_of(
        "start a 1 A 10 100\nbeat a 1 A 10 200\nstart a/child 1 A 11 150\nend a 1 A 10 300\n\
         start b 2 B 12 301\nend b 2 B 12 400\nstart c 7 C 13 500\nbeat c 7 C 13 half a li",
    );
    assert_eq!(journal.judge(), ["a", "b", "c"]);
}

/// The process was killed in the middle of a write, at any byte.
#[test]
fn the_judge_passes_over_what_a_dead_process_left_of_a_line() {
    let (_directory, journal) = journal_of(
        "start friend 1 A 10 100\nbstart a 2 B 11 200\nbeat a 2 Bbeat a 2 B 11 300\nend a 2 B 11 3end a 2 B 11 400\n",
    );
    assert_eq!(journal.judge(), ["friend", "a"]);
}

#[test]
#[should_panic(expected = "alive at the same time")]
fn the_judge_sees_a_daemon_that_outlives_its_tenure() {
    let (_directory, journal) = journal_of(
        "start a 1 A 10 100\nstart a/daemon 1 A 11 110\nend a 1 A 10 200\nstart b 2 B 12 300\n\
         beat a/daemon 1 A 11 301\nend b 2 B 12 400\n",
    );
    journal.judge();
}

#[test]
#[should_panic(expected = "is not greater than")]
fn the_judge_sees_a_token_that_shrinks() {
    let (_directory, journal) =
        journal_of("start a 2 A 10 100\nend a 2 A 10 200\nstart b 1 B 12 300\nend b 1 B 12 400\n");
    journal.judge();
}

#[test]
#[should_panic(expected = "alive at the same time")]
fn the_judge_tells_two_holders_of_the_same_token_apart() {
    let (_directory, journal) =
        journal_of("start a 1 A 10 100\nend a 1 A 10 300\nstart a 1 B 12 200\nend a 1 B 12 400\n");
    journal.judge();
}

#[test]
fn a_scene_sees_every_process_of_a_tree_and_leaves_none() {
    let scene = Scene::new();
    let words = scene.journalist("a", &["--daemon", "--children", "1", "--term", "ignore"]);
    let mut child = std::process::Command::new(&words[0])
        .args(&words[1..])
        .env(crate::support::processes::MARK, scene.directory())
        .env("TRAFFICCOP_TOKEN", "1")
        .spawn()
        .unwrap();
    for tag in ["a", "a/daemon", "a/child"] {
        scene.journal.await_tag(What::Beat, tag);
    }
    assert_eq!(scene.trees().len(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scene.trees().len(), 2, "a daemon and a child survive");
    crate::support::processes::sweep(scene.directory());
    scene.await_nobody();
}

const ID: &str = "11111111-2222-3333-4444-555555555555";

fn acquire_through(port: u16, name: &str) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(crate::support::WAIT_LIMIT))?;
    write!(
        stream,
        "PUT /devstoreaccount1/{name}?comp=lease&{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         x-ms-version: 2021-12-02\r\nx-ms-lease-action: acquire\r\nx-ms-lease-duration: 15\r\n\
         x-ms-proposed-lease-id: {ID}\r\nContent-Length: 0\r\n\r\n",
        crate::support::blob::sas()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn the_client_and_azurite_agree_about_leases() {
    let blob = Blob::named("support/client");
    assert_eq!(blob.lease_state(), "missing");
    blob.create(&[("colour", "red")]);
    assert_eq!(blob.lease_state(), "available");
    assert_eq!(blob.metadata("colour").as_deref(), Some("red"));
    blob.acquire(ID, 15);
    assert_eq!(blob.lease_state(), "leased");
    blob.break_lease(Some(0));
    assert_eq!(blob.lease_state(), "broken");
    blob.acquire(ID, 15);
    blob.release(ID);
    assert_eq!(blob.lease_state(), "available");
    blob.acquire(ID, 15);
    blob.delete(ID);
    assert_eq!(blob.lease_state(), "missing");
}

#[test]
fn the_proxy_loses_exactly_the_reply_it_was_told_to() {
    let blob = Blob::named("support/lost");
    blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Renew, Fate::LoseReply);
    proxy.next(Call::Acquire, Fate::LoseReply);
    assert_eq!(
        acquire_through(proxy.port, &blob.name).unwrap_or_default(),
        ""
    );
    assert_eq!(blob.lease_state(), "leased", "the request itself arrived");
    let seen = proxy.await_seen("the acquire", |seen| seen.status == Some(201));
    assert!(!seen.delivered);
    assert_eq!(seen.lease_id.as_deref(), Some(ID));
    let again = acquire_through(proxy.port, &blob.name).unwrap();
    assert!(again.starts_with("HTTP/1.1 201"), "{again}");
}

#[test]
fn the_proxy_freezes_cuts_answers_and_thaws() {
    let blob = Blob::named("support/frozen");
    blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.set(Mode::Freeze);
    let (port, name) = (proxy.port, blob.name.clone());
    let asked = std::thread::spawn(move || acquire_through(port, &name));
    proxy.await_seen("the acquire", |seen| seen.call == Call::Acquire);
    assert_eq!(
        blob.lease_state(),
        "available",
        "a frozen request does not arrive"
    );
    proxy.set(Mode::Pass);
    assert!(asked.join().unwrap().unwrap().starts_with("HTTP/1.1 201"));
    proxy.set(Mode::Cut);
    assert_eq!(
        acquire_through(proxy.port, &blob.name).unwrap_or_default(),
        ""
    );
    proxy.set(Mode::Answer(503, "text/html", "<html>busy</html>"));
    let busy = acquire_through(proxy.port, &blob.name).unwrap();
    assert!(
        busy.starts_with("HTTP/1.1 503") && busy.ends_with("busy</html>"),
        "{busy}"
    );
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let held = acquire_through(proxy.port, &blob.name).unwrap();
    assert!(held.starts_with("HTTP/1.1 201"), "{held}");
    assert_eq!(proxy.log().iter().filter(|seen| seen.delivered).count(), 2);
}
