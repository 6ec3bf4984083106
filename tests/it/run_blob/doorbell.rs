//! The doorbell: standbys that would look at the lock once an hour are there at once, and whoever rings
//! without being the holder costs a few requests.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{KILL, STRANGER, Stage, TERM};
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::proxy::{Call, Proxy};

/// Nobody looks by itself while a test lasts.
const BELL: [&str; 4] = ["--doorbell=127.0.0.1", "--poll", "1h", "-v"];

#[test]
fn control_changes_at_once_whether_its_command_its_instance_or_its_supervisor_ends() {
    let stage = Stage::new("rung");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let names = ["a", "b", "c", "d"];
    let mut holder = stage.instance(port, names[0], &BELL, &[]);
    journal.await_tag(What::Beat, names[0]);
    let ends = [Ended::Code(0), TERM, KILL];
    for (nth, end) in ends.into_iter().enumerate() {
        let (held, next) = (names[nth], names[nth + 1]);
        let standby = stage.instance(port, next, &BELL, &[]);
        standby.await_log("hears the holder's doorbell, 0 before us");
        match end {
            TERM => holder.signal(Signal::SIGTERM),
            KILL => holder.signal(Signal::SIGKILL),
            _ => stage.let_end(held),
        }
        assert_eq!(holder.wait(), end, "{}", holder.stderr());
        journal.await_tag(What::Beat, next);
        holder = standby;
    }
    stage.let_end(names[3]);
    assert_eq!(holder.wait(), Ended::Code(0), "{}", holder.stderr());
    assert_eq!(journal.judge(), names);
    stage.scene.await_nobody();
}

#[test]
fn who_rings_and_who_does_not_hand_over_to_each_other() {
    let stage = Stage::new("mixed-bells");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let mut holder = stage.instance(port, "without", &[], &[]);
    journal.await_tag(What::Beat, "without");
    for (held, next, options) in [
        ("without", "with", &BELL[..1]),
        ("with", "without-again", &[]),
    ] {
        let standby = stage.instance(port, next, options, &[]);
        standby.await_log(&format!("standing by: {held} is in control"));
        stage.let_end(held);
        assert_eq!(holder.wait(), Ended::Code(0), "{}", holder.stderr());
        journal.await_tag(What::Beat, next);
        holder = standby;
    }
    stage.let_end("without-again");
    assert_eq!(holder.wait(), Ended::Code(0), "{}", holder.stderr());
    assert_eq!(journal.judge(), ["without", "with", "without-again"]);
}

#[test]
fn a_thousand_connections_that_say_nothing_keep_nobody_from_hearing() {
    let stage = Stage::new("idle-bells");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let mut first = stage.instance(port, "first", &BELL, &[]);
    journal.await_tag(What::Beat, "first");
    let bell = stage.blob.metadata("trafficcop_doorbell").expect("a bell");
    let (address, _) = bell
        .split_once("%20")
        .or(bell.split_once(' '))
        .expect("two words");
    let address: SocketAddr = address.parse().expect("an address");
    let idle: Vec<TcpStream> = (0..1000)
        .map(|_| TcpStream::connect(address).expect("in"))
        .collect();
    let mut second = stage.instance(port, "second", &BELL, &[]);
    second.await_log("hears the holder's doorbell, 0 before us");
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    drop(idle);
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
}

#[test]
fn the_command_has_neither_the_bell_nor_a_connection_of_it() {
    let stage = Stage::new("own-bell");
    let run = stage.run(azurite().port).args(BELL);
    let script = "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/*";
    let finished = run.shell(script).finish();
    assert!(!finished.stdout.contains("socket:"), "{}", finished.stdout);
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_refused_before_anything_starts() {
    let stage = Stage::new("no-bell");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    for (bell, says) in [
        (address.to_string(), "it is in use"),
        ("192.0.2.7".to_owned(), "this machine has no such address"),
    ] {
        let run = stage
            .run(azurite().port)
            .args([format!("--doorbell={bell}")]);
        let finished = run.journalist("never", &[]).finish();
        assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
        let line = format!("--doorbell {bell}: {says}");
        assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    }
    let run = stage.run(azurite().port).args(["--doorbell=here"]);
    let finished = run.journalist("never", &[]).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    assert!(stage.scene.journal.lines().is_empty());
}

#[test]
fn doctor_tries_our_doorbell_and_the_holder_s() {
    let stage = Stage::new("tried-bell");
    let port = azurite().port;
    let mut holder = stage.instance(port, "holder", &BELL, &[]);
    stage.scene.journal.await_tag(What::Beat, "holder");
    let doctor = || {
        let asked = std::process::Command::new(env!("CARGO_BIN_EXE_trafficcop"))
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .args(["doctor", "--doorbell", "--blob", &stage.blob.name])
            .output()
            .expect("doctor");
        String::from_utf8_lossy(&asked.stdout).into_owned()
    };
    let said = doctor();
    for line in ["ok    doorbell       rings at 127.0.0.1:", "is heard here"] {
        assert!(said.contains(line), "{said}");
    }
    // Its port is somebody else's now.
    holder.freeze();
    let said = doctor();
    assert!(
        said.contains("is not heard here: a standby polls as ever"),
        "{said}"
    );
    holder.signal(Signal::SIGKILL);
    assert_eq!(holder.wait(), KILL);
}

/// A holder that is none of ours, with a bell that greets and then does what `act` does.
fn stranger(stage: &Stage, act: impl Fn(TcpStream) + Send + Sync + 'static) {
    let bell = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = bell.local_addr().expect("an address");
    std::thread::spawn(move || {
        for guest in bell.incoming() {
            let Ok(mut guest) = guest else { return };
            let mut said = [0; 8];
            let mut greeting = 9_u64.to_be_bytes().to_vec();
            greeting.extend_from_slice(&[0; 4]);
            if guest.read_exact(&mut said).is_ok()
                && said == 7_u64.to_be_bytes()
                && guest.write_all(&greeting).is_ok()
            {
                act(guest);
            }
        }
    });
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let nonce = format!("{:016x}{:016x}", 7, 9);
    let bell = format!("{address} {nonce}");
    let record = [
        ("trafficcop_token", "5"),
        ("trafficcop_holder", "stranger"),
        ("trafficcop_doorbell", &bell),
    ];
    stage.blob.write(STRANGER, &record);
}

/// How often the lock was looked at.
fn looks(proxy: &Proxy) -> usize {
    let log = proxy.log();
    log.iter().filter(|seen| seen.call == Call::Look).count()
}

#[test]
fn a_liar_that_rings_without_end_costs_ten_looks() {
    let stage = Stage::new("false-bell");
    let (over, rung) = std::sync::mpsc::channel();
    let over = std::sync::Mutex::new(over);
    stranger(&stage, move |mut guest| {
        // Slow enough for each to be followed by a look, until nobody listens any more.
        let mut rings = 0;
        while guest.write_all(b"d").is_ok() {
            rings += 1;
            std::thread::sleep(Duration::from_millis(150));
        }
        let _ = over.lock().expect("whole").send(rings);
    });
    let proxy = Proxy::before(azurite().port);
    let standby = stage.instance(proxy.port, "standby", &BELL, &[]);
    standby.await_log("hears the holder's doorbell, 0 before us");
    let rings: usize = rung.recv().expect("a number");
    assert!(rings > 10, "{rings}");
    // The first one, and those that were rung for.
    let looks = looks(&proxy);
    assert!((2..=11).contains(&looks), "{looks} looks for {rings} rings");
    standby.signal(Signal::SIGTERM);
    assert_eq!(standby.finish().ended, TERM);
}

#[test]
fn a_bell_that_falls_silent_leaves_polls_as_ever() {
    let stage = Stage::new("silent-bell");
    stranger(&stage, |mut guest| {
        for _ in 0..3 {
            let _ = guest.write_all(b".");
            std::thread::sleep(Duration::from_secs(1));
        }
        // As if a firewall had dropped what comes after.
        std::mem::forget(guest);
    });
    let proxy = Proxy::before(azurite().port);
    let standby = stage.instance(
        proxy.port,
        "standby",
        &["--doorbell=127.0.0.1", "--poll", "500ms", "-v"],
        &[],
    );
    standby.await_log("hears the holder's doorbell, 0 before us");
    standby.await_log("the holder's doorbell is silent: polls as ever");
    // With the pace of one who hears, there would be one in 12 seconds.
    for _ in 0..5 {
        proxy.await_next(Call::Look);
    }
    standby.signal(Signal::SIGTERM);
    assert_eq!(standby.finish().ended, TERM);
}
