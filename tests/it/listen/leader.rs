use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use trafficcop::Instant;

use super::client::{address, await_leader, await_state, connect, get, read, request, try_ask};
use super::judge::{Yes, faults};
use super::{ANYWHERE, instance, lasting};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::Instance;
use crate::support::scene::Scene;

/// Polls without a pause until `stop`; returns the answers of 200.
fn poll(who: &'static str, at: SocketAddr, stop: &AtomicBool) -> Vec<Yes> {
    let mut answers = Vec::new();
    while !stop.load(Ordering::Acquire) {
        answers.extend(poll_once(who, at));
    }
    answers
}

fn poll_once(who: &'static str, at: SocketAddr) -> Option<Yes> {
    let asked = Instant::now().as_nanos();
    let reply = try_ask(at, "GET", "/leader");
    let told = Instant::now().as_nanos();
    let reply = reply.ok().filter(|reply| reply.status == 200)?;
    let token = reply.body.trim_start_matches("token ");
    let digits = token.split(|c: char| !c.is_ascii_digit()).next();
    Some(Yes {
        who,
        token: digits.and_then(|text| text.parse().ok()).expect("a token"),
        asked,
        told,
    })
}

/// Polls both while `play` runs.
fn watched(one: SocketAddr, two: SocketAddr, play: impl FnOnce()) -> Vec<Yes> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| poll("one", one, &stop));
        let second = scope.spawn(|| poll("two", two, &stop));
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        stop.store(true, Ordering::Release);
        let mut answers = first.join().expect("polled");
        answers.extend(second.join().expect("polled"));
        if let Err(panic) = played {
            std::panic::resume_unwind(panic);
        }
        answers
    })
}

#[test]
fn control_that_goes_round_is_never_told_of_two_at_once() {
    let scene = Scene::new();
    let options = ["--max-hold", "1s", "--cooldown", "100ms"];
    // A slow end makes the change observable.
    let script = "trap 'sleep 0.1; exit 0' TERM; while :; do sleep 0.02; done";
    let (_one, at_one) = instance(&scene, "one", &options, script);
    let (_two, at_two) = instance(&scene, "two", &options, script);
    const TENURES: u64 = 8;
    let answers = watched(at_one, at_two, || {
        await_for(
            "control to go round",
            || {
                let record = std::fs::read_to_string(scene.lock()).ok()?;
                let record: serde_json::Value = serde_json::from_str(record.trim()).ok()?;
                (record["token"].as_u64()? > TENURES).then_some(())
            },
            String::new,
        );
    });
    assert_eq!(faults(&answers), [""; 0]);
    // On a busy machine a second may pass between two polls, so tenures may be missed.
    let led: BTreeSet<u64> = answers.iter().map(|yes| yes.token).collect();
    let seen = led.range(1..=TENURES).count() as u64;
    assert!(seen > TENURES / 2, "of {TENURES} tenures only {led:?}");
    for who in ["one", "two"] {
        assert!(answers.iter().any(|yes| yes.who == who), "{who} never led");
    }
}

fn on_blob(scene: &Scene, blob: &str, name: &str) -> (Instance, SocketAddr) {
    let one = scene
        .run()
        .env(
            "AZURE_STORAGE_CONNECTION_STRING",
            connection_string(azurite().port),
        )
        .args(["--blob", blob, "--identity", name])
        .args(["--lease", "15s", "--poll", "500ms"])
        .args(ANYWHERE)
        .shell(&lasting(scene, name))
        .start();
    let at = address(&one);
    (one, at)
}

#[test]
fn instance_stopped_past_its_lease_never_answers_that_it_leads() {
    let scene = Scene::new();
    let (one, at_one) = on_blob(&scene, "leader/stopped", "one");
    await_leader(at_one);
    let (two, at_two) = on_blob(&scene, "leader/stopped", "two");
    two.await_log("standing by");
    let mut waiting: Vec<TcpStream> = Vec::new();
    let mut answered = 0;
    let led = poll_once("one", at_one).expect("it leads");
    let answers = watched(at_one, at_two, || {
        one.freeze();
        await_leader(at_two);
        // The kernel has them; they are its first work when it continues.
        for _ in 0..32 {
            let mut stream = connect(at_one).expect("the kernel takes it");
            let sent = stream.write_all(request("GET", "/leader").as_bytes());
            sent.expect("sent");
            waiting.push(stream);
        }
        one.signal(Signal::SIGCONT);
        for stream in waiting.drain(..) {
            // Too many displace each other.
            if let Ok(reply) = read(stream) {
                assert_eq!(reply.status, 503, "{reply:?}\n{}", one.stderr());
                answered += 1;
            }
        }
        one.await_log_times("standing by", 1);
        assert_eq!(get(at_one, "/leader").status, 503);
        assert_eq!(get(at_two, "/leader").status, 200);
    });
    assert!(answered > 0, "no request was answered");
    assert_eq!(faults(&answers), [""; 0]);
    let of = |who| answers.iter().filter(move |yes| yes.who == who);
    let last = of("one").chain([&led]).map(|yes| yes.asked).max();
    let first = of("two").map(|yes| yes.told).min();
    assert!(last < Some(first.expect("it led")), "{last:?} {first:?}");
}

/// Only the main thread is stopped, until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn main_thread(instance: &Instance) -> io::Result<Stopped> {
        let pid = Pid::from_raw(instance.pid());
        let none = std::ptr::null_mut::<libc::c_void>();
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: takes numbers and no pointers.
            if unsafe { libc::ptrace(request, pid.as_raw(), none, none) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        let stopped = Stopped(pid);
        waitpid(pid, Some(WaitPidFlag::__WALL))?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: takes numbers and no pointers.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0.as_raw(), none, none) };
    }
}

#[test]
fn server_of_a_stopped_loop_does_not_lead_past_the_deadline() {
    let scene = Scene::new();
    let (one, at_one) = on_blob(&scene, "leader/still", "one");
    await_leader(at_one);
    let (two, at_two) = on_blob(&scene, "leader/still", "two");
    two.await_log("standing by");
    let led = poll_once("one", at_one).expect("it leads");
    // It cannot withdraw a flag, and polls continue.
    let still = match Stopped::main_thread(&one) {
        Ok(still) => still,
        Err(why) => {
            println!("a single thread cannot be stopped here, so this was not tried: {why}");
            return;
        }
    };
    let answers = watched(at_one, at_two, || {
        await_leader(at_two);
        let reply = get(at_one, "/leader");
        assert_eq!(reply.status, 503, "{reply:?}");
        assert_eq!(
            get(at_one, "/healthz").status,
            503,
            "its loop does not turn"
        );
        assert_eq!(get(at_two, "/leader").status, 200);
    });
    assert_eq!(faults(&answers), [""; 0]);
    let of = |who| answers.iter().filter(move |yes| yes.who == who);
    let last = of("one").chain([&led]).map(|yes| yes.asked).max();
    let first = of("two").map(|yes| yes.told).min();
    assert!(last < Some(first.expect("it led")), "{last:?} {first:?}");
    drop(still);
    await_for(
        "it to stand by",
        || (get(at_one, "/healthz").status == 200).then_some(()),
        || one.stderr(),
    );
    await_state(at_one, "standby");
}
