//! Readers that hang up, read late or never, or are none.

use std::io::{PipeWriter, Write};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::*;
use crate::support::azurite::azurite;
use crate::support::proxy::{Call, Proxy};

#[test]
fn a_reader_that_hangs_up_on_a_holder_ends_it_by_sigpipe_and_frees_the_lock_at_once() {
    let scene = Scene::new();
    // A grace that would be noticed.
    let run = on_file(&scene).args(["--grace", "1h"]);
    let (mut instance, mut reader) = unread(run);
    assert_eq!(first_line(&mut reader), "holder 1");
    drop(reader);
    assert_eq!(instance.wait(), PIPE, "{}", instance.stderr());
    let (_next, mut reader) = unread(on_file(&scene).arg("-n"));
    assert_eq!(first_line(&mut reader), "holder 2");
}

#[test]
fn a_reader_that_hangs_up_on_a_standby_ends_it_by_sigpipe_though_nothing_is_said() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene));
    first.heard.await_line("holder 1");
    let (mut second, mut reader) = unread(on_file(&scene));
    assert_eq!(first_line(&mut reader), "standby first");
    drop(reader);
    assert_eq!(second.wait(), PIPE, "{}", second.stderr());
    assert_eq!(first.heard.texts(), ["holder 1"]);
}

fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
    fcntl(&writer, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_that_never_reads_stops_no_renewal_and_is_not_told_what_is_not_true_any_more() {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let (mut reader, writer) = full_pipe();
    let run = on_blob(&scene, proxy.port, "elect/deaf").args(["--grace", "1h"]);
    let mut instance = run.stdout(writer).start();
    for _ in 0..3 {
        proxy.await_next(Call::Renew);
    }
    instance.assert_running();
    // Told nothing, the reader needs no grace.
    instance.signal(Signal::SIGTERM);
    assert_eq!(instance.wait(), TERM);
    let mut all = String::new();
    reader.read_to_string(&mut all).unwrap();
    assert_eq!(all.trim_start_matches('.'), "");
}

#[test]
fn a_reader_that_reads_late_is_told_where_we_stand_then() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene).args(["--grace", "0"]));
    first.heard.await_line("holder 1");
    let (reader, writer) = full_pipe();
    let second = on_file(&scene).stdout(writer).start();
    second.await_log("standing by");
    first.instance.signal(Signal::SIGTERM);
    second.await_log("in control, token 2");
    // Only now is the process that waited for the pipe dismissed; that is logged before the teller
    // is made.
    let guardian = second.guardian();
    let children = format!("/proc/{guardian}/task/{guardian}/children");
    let is_there = || Some(()).filter(|()| std::fs::read(&children).is_ok_and(|it| !it.is_empty()));
    await_for("the teller", is_there, || second.stderr());
    let heard = listen(reader);
    let line = await_for(
        "a line",
        || heard.texts().first().cloned(),
        || format!("{:?}", heard.lines()),
    );
    assert_eq!(line.trim_start_matches('.'), "holder 2");
}

#[test]
fn a_full_disk_is_no_reader_that_hung_up() {
    let scene = Scene::new();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut instance = on_file(&scene).stdout(full).start();
    assert_eq!(instance.wait(), Ended::Code(74), "{}", instance.stderr());
    assert!(
        instance.stderr().contains("cannot write"),
        "{}",
        instance.stderr()
    );
}

#[test]
fn instance_without_a_reader_does_not_compete() {
    let scene = Scene::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut instance = on_file(&scene).stdout(writer).start();
    assert_eq!(instance.wait(), PIPE, "{}", instance.stderr());
    assert!(!scene.lock().exists(), "{}", instance.stderr());
    let script = "exec \"$0\" elect --file \"$1\" >&-";
    let closed = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_trafficcop")])
        .arg(scene.lock())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&closed.stderr);
    assert_eq!(closed.status.code(), Some(74), "{said}");
    assert!(
        said.contains("cannot write to stdout: it is closed"),
        "{said}"
    );
    assert!(!scene.lock().exists(), "{said}");
}
