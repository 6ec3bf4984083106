//! A crowd of clients is limited, and delays neither others nor a renewal.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::client::{address, await_leader, connect, try_ask};
use super::{ANYWHERE, instance, lasting};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::processes::allow_ourselves_files;
use crate::support::proxy::{Call, Proxy};
use crate::support::scene::Scene;

const CONNECTIONS: usize = 64;
const OF_ITS_OWN: usize = 64;

fn open_files(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it runs")
        .count()
}

#[test]
fn a_request_that_never_ends_is_cut_off() {
    let scene = Scene::new();
    let (_one, at) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    for beginning in ["", "GET /leader HTT", "GET /leader HTTP/1.1\r\nX: y"] {
        let mut stream = connect(at).expect("a connection");
        stream.write_all(beginning.as_bytes()).expect("sent");
        let mut rest = Vec::new();
        // It ends within `connect`'s time limit.
        let _ = stream.read_to_end(&mut rest);
        let said = String::from_utf8_lossy(&rest).into_owned();
        assert!(!said.contains("200 OK"), "{said}");
    }
    await_leader(at);
}

#[test]
fn idle_connections_do_not_block_other_clients() {
    let scene = Scene::new();
    let (one, at) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    await_leader(at);
    let mut crowd: Vec<TcpStream> = Vec::new();
    for _ in 0..4 * CONNECTIONS {
        crowd.push(connect(at).expect("a connection"));
    }
    let reply = try_ask(at, "GET", "/leader").expect("an answer");
    assert_eq!(reply.status, 200);
    let open = open_files(one.pid());
    assert!(open < CONNECTIONS + OF_ITS_OWN, "{open} open files");
}

/// Holds as many connections as possible, sends a byte on each now and then, and replaces closed
/// ones.
fn besiege(at: SocketAddr, size: usize, opened: &AtomicUsize, stop: &AtomicBool) {
    let mut crowd: Vec<TcpStream> = Vec::with_capacity(size);
    let fresh = || {
        let mut stream = TcpStream::connect(at).ok()?;
        stream.write_all(b"GET /leader HTTP/1.1\r\nX: ").ok()?;
        stream.set_nonblocking(true).ok()?;
        opened.fetch_add(1, Ordering::AcqRel);
        Some(stream)
    };
    while !stop.load(Ordering::Acquire) {
        if crowd.len() < size {
            crowd.extend(fresh());
            continue;
        }
        for place in &mut crowd {
            if stop.load(Ordering::Acquire) {
                return;
            }
            if place.write_all(b"x").is_err()
                && let Some(stream) = fresh()
            {
                *place = stream;
            }
        }
        // The pace of the crowd.
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn ten_thousand_who_hold_on_cost_no_renewal() {
    // The client's half, and other tests.
    let files = allow_ourselves_files(11_000);
    let size = usize::try_from(files.saturating_sub(600).min(10_000)).expect("a number");
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let mut one = scene
        .run()
        .env(
            "AZURE_STORAGE_CONNECTION_STRING",
            connection_string(proxy.port),
        )
        .args(["--blob", "crowd/renewed", "--lease", "15s"])
        .args(ANYWHERE)
        .shell(&lasting(&scene, "one"))
        .start();
    let at = address(&one);
    await_leader(at);
    let (opened, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let renewals = || {
        let log = proxy.log();
        let of_it = log.iter().filter(|seen| seen.call == Call::Renew);
        let good = of_it.filter(|seen| seen.delivered && seen.status == Some(200));
        good.map(|seen| seen.at).collect::<Vec<u64>>()
    };
    thread::scope(|scope| {
        scope.spawn(|| besiege(at, size, &opened, &stop));
        let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            await_for(
                "the crowd to have come",
                || (opened.load(Ordering::Acquire) >= size).then_some(()),
                || format!("{} of {size}", opened.load(Ordering::Acquire)),
            );
            let before = renewals().len();
            await_for(
                "a lease's worth of renewals in the crowd",
                || {
                    let open = open_files(one.pid());
                    assert!(open < CONNECTIONS + OF_ITS_OWN, "{open} open files");
                    (renewals().len() >= before + 3).then_some(())
                },
                || one.stderr(),
            );
            await_leader_among_many(at);
        }));
        stop.store(true, Ordering::Release);
        if let Err(panic) = watched {
            std::panic::resume_unwind(panic);
        }
    });
    one.assert_running();
    let log = one.stderr();
    assert!(!log.contains("warning"), "{log}");
    let times = renewals();
    for pair in times.windows(2) {
        let gap = Duration::from_nanos(pair[1] - pair[0]);
        // Every 5 s; a missed one would make it 10.
        assert!(gap < Duration::from_secs(9), "{gap:?} without a renewal");
    }
}

/// Asks again if the crowd has displaced the request.
fn await_leader_among_many(at: SocketAddr) {
    await_for(
        "an answer in the crowd",
        || {
            let reply = try_ask(at, "GET", "/leader").ok()?;
            assert_eq!(reply.status, 200, "{reply:?}");
            Some(())
        },
        String::new,
    );
}
