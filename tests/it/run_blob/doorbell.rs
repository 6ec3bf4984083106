//! The doorbell: standbys that poll once an hour take over at once; those that cannot hear it poll
//! as usual.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;

use super::{BELL, KILL, Stage, TERM, advertised, await_polls_as_ever};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::{Ended, assert_ended};
use crate::support::journal::What;
use crate::support::proxy::Proxy;
use crate::support::scene::Scene;

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
        standby.await_log("hears the holder's doorbell, 0 standbys before this one");
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
fn instances_with_and_without_a_doorbell_hand_over_to_each_other() {
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
    for (bell, status, says) in [
        (address.to_string(), 69, "it is in use"),
        (
            "192.0.2.7".to_owned(),
            69,
            "this machine has no such address",
        ),
        (
            "0.0.0.0".to_owned(),
            64,
            "standbys connect to private addresses only",
        ),
    ] {
        let run = stage
            .run(azurite().port)
            .args([format!("--doorbell={bell}")]);
        let finished = run.journalist("never", &[]).finish();
        assert_eq!(finished.ended, Ended::Code(status), "{}", finished.stderr);
        let line = format!("--doorbell {bell}: {says}");
        assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    }
    let run = stage.run(azurite().port).args(["--doorbell=here"]);
    let finished = run.journalist("never", &[]).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    assert!(stage.scene.journal.lines().is_empty());
}

#[test]
fn on_a_local_file_it_takes_no_address() {
    let scene = Scene::new();
    for slots in ["1", "2"] {
        let run = scene
            .run_on_file()
            .args(["--doorbell=192.0.2.7", "--slots", slots]);
        assert_ended(&run.command(["true"]).finish(), 0, "");
    }
    let doctor = scene.verb("doctor").arg("--doorbell=192.0.2.7");
    let said = doctor.arg("--file").arg(scene.lock()).finish().stdout;
    assert!(said.contains("ok    doorbell       does nothing"), "{said}");
}

#[test]
fn doctor_tries_our_doorbell_and_the_holder_s() {
    let stage = Stage::new("tried-bell");
    let port = azurite().port;
    let mut holder = stage.instance(port, "holder", &BELL, &[]);
    stage.scene.journal.await_tag(What::Beat, "holder");
    let doctor = |doorbell: &str| {
        let asked = std::process::Command::new(env!("CARGO_BIN_EXE_trafficcop"))
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .args(["doctor", doorbell, "--blob", &stage.blob.name])
            .output()
            .expect("doctor");
        String::from_utf8_lossy(&asked.stdout).into_owned()
    };
    let said = doctor("--doorbell");
    for line in ["ok    doorbell       rings at 127.0.0.1:", "is heard here"] {
        assert!(said.contains(line), "{said}");
    }
    let said = doctor("--doorbell=0.0.0.0");
    let refused = "fail  doorbell       --doorbell 0.0.0.0: standbys connect to private";
    assert!(said.contains(refused), "{said}");
    // Another process has its port now.
    holder.freeze();
    let said = doctor("--doorbell");
    assert!(
        said.contains("is not heard here: a standby polls as usual"),
        "{said}"
    );
    holder.signal(Signal::SIGKILL);
    assert_eq!(holder.wait(), KILL);
}

/// State of a [`Relay`]: passes everything.
const OPEN: u8 = 0;
/// Drops data but closes nothing, like some firewalls.
const SILENT: u8 = 1;
/// Ends connections, present and new.
const SHUT: u8 = 2;

struct Relay {
    address: SocketAddr,
    way: Arc<AtomicU8>,
    guests: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Starts a relay; its threads end with the process.
    fn before(bell: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = Relay {
            address: listener.local_addr().expect("an address"),
            way: Arc::new(AtomicU8::new(OPEN)),
            guests: Arc::default(),
        };
        let (way, guests) = (Arc::clone(&relay.way), Arc::clone(&relay.guests));
        std::thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                if way.load(Ordering::SeqCst) == SHUT {
                    continue;
                }
                let Ok(holder) = TcpStream::connect(bell) else {
                    continue;
                };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                let ways = [(copy(&guest), copy(&holder)), (copy(&holder), copy(&guest))];
                for (from, to) in ways {
                    let way = Arc::clone(&way);
                    std::thread::spawn(move || pass(from, to, &way));
                }
                // Both, so that silence closes neither.
                guests.lock().expect("whole").extend([guest, holder]);
            }
        });
        relay
    }

    fn set(&self, way: u8) {
        self.way.store(way, Ordering::SeqCst);
        if way == SHUT {
            for stream in self.guests.lock().expect("whole").drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, way: &AtomicU8) {
    let mut bytes = [0; 64];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if way.load(Ordering::SeqCst) == OPEN && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    if way.load(Ordering::SeqCst) != SILENT {
        let _ = to.shutdown(Shutdown::Both);
    }
}

#[test]
fn a_bell_that_the_network_drops_leaves_polls_as_ever_until_it_is_heard_again() {
    let stage = Stage::new("dropped-bell");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let on_the_way = Proxy::before(port);
    let mut first = stage.instance(on_the_way.port, "first", &BELL, &[]);
    journal.await_tag(What::Beat, "first");
    let bell = advertised(&stage).address;
    let relay = Relay::before(bell);
    // Its record names the relay's address, as if the holder were behind it.
    let metadata = stage.blob.look().expect("a blob");
    let metadata: Vec<(&str, String)> = metadata
        .iter()
        .filter_map(|(name, value)| {
            let value = value.replace(&bell.to_string(), &relay.address.to_string());
            Some((name.strip_prefix("x-ms-meta-")?, value))
        })
        .collect();
    let metadata: Vec<(&str, &str)> = metadata.iter().map(|(n, v)| (*n, &**v)).collect();
    let mut ids = on_the_way
        .log()
        .into_iter()
        .filter_map(|seen| seen.lease_id);
    stage
        .blob
        .write(&ids.next_back().expect("a lease"), &metadata);

    let store = Proxy::before(port);
    let file = stage.scene.path("status.json");
    let file = file.to_str().expect("text");
    let options = [BELL[0], "-v", "--status-file", file];
    let mut second = stage.instance(store.port, "second", &options, &[]);
    let says = |wanted: &str| {
        let read = || -> Option<serde_json::Value> {
            serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
        };
        await_for(
            &format!("the status to say that the doorbell is {wanted}"),
            || read().filter(|status| status["doorbell"] == wanted),
            || format!("{:?}", read()),
        );
    };
    let hears = "hears the holder's doorbell,";
    let silent = "the holder's doorbell is silent: polls as usual";
    second.await_log(hears);
    says("heard");

    relay.set(SILENT);
    second.await_log(silent);
    says("silent");
    await_polls_as_ever(&store);
    // It was retried meanwhile, without further reports.
    assert_eq!(second.stderr().matches(silent).count(), 1);
    relay.set(OPEN);
    second.await_log_times(hears, 2);
    says("heard");

    relay.set(SHUT);
    second.await_log("the holder's doorbell has gone");
    says("silent");
    relay.set(OPEN);
    second.await_log_times(hears, 3);
    says("heard");

    relay.set(SILENT);
    says("silent");
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    assert!(!second.stderr().contains("it has released"), "it heard");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
}
