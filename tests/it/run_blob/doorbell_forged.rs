//! Forged doorbells: a forger that rings as the holder costs standbys a few requests; one that
//! rings at a holder costs it nothing.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{BELL, LEASE, STRANGER, Stage, TERM, advertised, await_polls_as_ever};
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::proxy::{Call, Mode, Proxy};

/// Bytes by which a holder under attack may grow.
const MORE: u64 = 2 << 20;
/// Looks that one holder's rings can cause.
const RINGS: usize = 10;
/// Time after which a standby that reacts would have looked or listened again.
const QUIET: Duration = Duration::from_secs(3);

fn memory(of: &Instance) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", of.pid())).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    1024 * kib.expect("its memory").parse::<u64>().expect("a number")
}

#[test]
fn forged_rings_do_not_disturb_a_holder() {
    let stage = Stage::new("rung-at");
    let journal = &stage.scene.journal;
    let stores = [Proxy::before(azurite().port), Proxy::before(azurite().port)];
    let mut first = stage.instance(stores[0].port, "first", &BELL, &[]);
    journal.await_tag(What::Beat, "first");
    let bell = advertised(&stage);
    let mut second = stage.instance(stores[1].port, "second", &BELL, &[]);
    second.await_log("hears the holder's doorbell, 0 standbys before this one");
    let asked = || stores.each_ref().map(|store| store.log().len());
    let (before, needed) = (asked(), memory(&first));

    let idle: Vec<TcpStream> = (0..1000)
        .map(|_| TcpStream::connect(bell.address).expect("in"))
        .collect();
    let forged = [b'r'; 100];
    for _ in 0..1000 {
        // The connection may be closed before the forger has sent everything.
        let _ = TcpStream::connect(bell.address)
            .expect("in")
            .write_all(&forged);
    }
    // A forger that has read the record.
    let (mut knows, _) = bell.visit();
    knows.set_nonblocking(true).expect("a socket");
    let _ = knows.write(&[b'r'; 100_000]);
    drop(bell.visit());

    let needs = memory(&first);
    println!("memory of the holder: {needed} bytes before, {needs} after");
    assert!(needs < needed + MORE, "{needed} bytes became {needs}");
    for (store, before) in stores.iter().zip(before) {
        let mut log = store.log().split_off(before);
        log.retain(|seen| seen.call != Call::Renew);
        assert!(log.len() <= RINGS, "{log:#?}");
    }
    stores[0].await_next(Call::Renew);
    let heard = second.stderr();
    for lost in ["has gone", "is silent", "rings"] {
        assert!(!heard.contains(lost), "{heard}");
    }
    stage.assert_undisturbed();
    // Without the bell, the poll would take an hour.
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    drop((idle, knows));
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
}

#[test]
fn holder_with_few_descriptors_renews_despite_rings() {
    let stage = Stage::new("few-descriptors");
    let journal = &stage.scene.journal;
    let store = Proxy::before(azurite().port);
    let done = stage.scene.path("first.done");
    let run = stage.run(store.port).args(BELL);
    let mut first = run
        .limited(Resource::RLIMIT_NOFILE, 64)
        .journalist("first", &["--until", done.to_str().expect("text")])
        .start();
    let began = journal.await_tag(What::Beat, "first").at;
    let bell = advertised(&stage);
    let idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(bell.address).expect("in"))
        .collect();
    let knowing: Vec<TcpStream> = (0..200)
        .map(|_| bell.knock().expect("taken by the kernel"))
        .collect();
    // It needs descriptors for new connections.
    store.set(Mode::Cut);
    store.set(Mode::Pass);
    store.await_seen("a renewal after what was there had run out", |seen| {
        seen.call == Call::Renew && seen.delivered && seen.at > began + LEASE
    });
    journal.await_sign_of_life("first");
    stage.assert_undisturbed();
    drop((idle, knowing));
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
}

/// Writes a foreign holder's record with its bell at `address`.
fn stranger_at(stage: &Stage, address: &str) {
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let bell = format!("{address} {:016x}{:016x}", 7, 9);
    let record = [
        ("trafficcop_token", "5"),
        ("trafficcop_holder", "stranger"),
        ("trafficcop_doorbell", &bell),
    ];
    stage.blob.write(STRANGER, &record);
}

/// Starts a foreign holder whose bell does `act` to clients that have read the record; reports each
/// client.
fn stranger(stage: &Stage, act: impl Fn(TcpStream) + Send + 'static) -> Receiver<()> {
    let bell = TcpListener::bind("127.0.0.1:0").expect("a port");
    stranger_at(stage, &bell.local_addr().expect("an address").to_string());
    let (came, contacts) = channel();
    std::thread::spawn(move || {
        for mut guest in bell.incoming().flatten() {
            let mut said = [0; 8];
            if guest.read_exact(&mut said).is_ok() && said == 7_u64.to_be_bytes() {
                let _ = came.send(());
                act(guest);
            }
        }
    });
    contacts
}

/// Greets as a holder greets its first listener.
fn greets(guest: &mut TcpStream) -> bool {
    let mut greeting = 9_u64.to_be_bytes().to_vec();
    greeting.extend_from_slice(&[0; 4]);
    guest.write_all(&greeting).is_ok()
}

fn looks(proxy: &Proxy) -> usize {
    let log = proxy.log();
    log.iter().filter(|seen| seen.call == Call::Look).count()
}

#[test]
fn a_liar_that_rings_without_end_costs_ten_looks() {
    let stage = Stage::new("false-bell");
    let (over, rung) = channel();
    let over = Mutex::new(over);
    stranger(&stage, move |mut guest| {
        greets(&mut guest);
        // Slow enough for a look after each ring, until the standby listens no more.
        let mut rings = 0;
        while guest.write_all(b"d").is_ok() {
            rings += 1;
            std::thread::sleep(Duration::from_millis(150));
        }
        let _ = over.lock().expect("whole").send(rings);
    });
    let proxy = Proxy::before(azurite().port);
    let standby = stage.instance(proxy.port, "standby", &BELL, &[]);
    standby.await_log("hears the holder's doorbell, 0 standbys before this one");
    let rings: usize = rung.recv().expect("a number");
    assert!(rings > RINGS, "{rings}");
    let looks = looks(&proxy);
    assert!(
        (2..=1 + RINGS).contains(&looks),
        "{looks} looks for {rings} rings"
    );
    standby.signal(Signal::SIGTERM);
    assert_eq!(standby.finish().ended, TERM);
}

/// The holder dies with its guardian; then another user answers at its address, with the record's
/// nonce.
#[test]
fn liar_at_a_dead_holders_address_does_not_slow_the_polls_down() {
    let stage = Stage::new("liar-at-the-grave");
    let journal = &stage.scene.journal;
    let holder = stage.instance(azurite().port, "holder", &BELL, &[]);
    journal.await_tag(What::Beat, "holder");
    let bell = advertised(&stage);
    let proxy = Proxy::before(azurite().port);
    let options = ["--doorbell=127.0.0.1", "-v"];
    let standby = stage.instance(proxy.port, "standby", &options, &[]);
    standby.await_log("hears the holder's doorbell, 0 standbys before this one");
    let guardian = Pid::from_raw(holder.guardian());
    // It would release the lease for its guardian.
    holder.signal(Signal::SIGSTOP);
    kill(guardian, Signal::SIGKILL).expect("ours");
    holder.signal(Signal::SIGKILL);
    standby.await_log("the holder's doorbell has gone");
    let liar = await_for(
        "the holder's port",
        || TcpListener::bind(bell.address).ok(),
        || standby.stderr(),
    );
    std::thread::spawn(move || {
        for mut guest in liar.incoming().flatten() {
            let answer = bell.answer();
            std::thread::spawn(move || {
                let _ = guest.write_all(&answer);
                while guest.write_all(b".").is_ok() {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
    });
    // As to the holder, while it polls every 500 ms.
    standby.await_log_times("hears the holder's doorbell, 0 standbys before this one", 2);
    await_polls_as_ever(&proxy);
    journal.await_tag(What::Beat, "standby");
    stage.let_end("standby");
    assert_eq!(standby.finish().ended, Ended::Code(0));
}

/// Plays a standby that polls once an hour, with this bell. Returns its connections to the bell,
/// its looks, and its log.
fn costs(name: &str, act: impl Fn(TcpStream) + Send + 'static) -> (usize, usize, String) {
    let stage = Stage::new(name);
    let contacts = stranger(&stage, act);
    let proxy = Proxy::before(azurite().port);
    let standby = stage.instance(proxy.port, "standby", &BELL, &[]);
    standby.await_log("standing by: stranger is in control");
    contacts.recv().expect("it comes once");
    let more = std::iter::from_fn(|| contacts.recv_timeout(QUIET).ok());
    let contacts = 1 + more.take(3 * RINGS).count();
    standby.signal(Signal::SIGTERM);
    let finished = standby.finish();
    assert_eq!(finished.ended, TERM, "{}", finished.stderr);
    (contacts, looks(&proxy), finished.stderr)
}

#[test]
fn repeated_forged_releases_cost_ten_looks() {
    let (contacts, looks, _) = costs("released-again", |mut guest| {
        greets(&mut guest);
        let _ = guest.write_all(b"r");
    });
    assert!((2..=1 + RINGS).contains(&contacts), "{contacts} contacts");
    assert!((2..=1 + RINGS).contains(&looks), "{looks} looks");
}

#[test]
fn repeated_hang_ups_cost_ten_looks() {
    let (contacts, looks, _) = costs("hung-up-again", |mut guest| {
        greets(&mut guest);
    });
    assert!((2..=1 + RINGS).contains(&contacts), "{contacts} contacts");
    // One after each, and frequent ones between the first greeting and the next.
    assert!((2..=2 + 2 * RINGS).contains(&looks), "{looks} looks");
}

/// Sends until the standby hangs up.
fn floods(mut guest: TcpStream, word: u8) {
    let words = [word; 4096];
    while guest.write_all(&words).is_ok() {}
}

#[test]
fn impostor_is_not_listened_to_and_costs_no_look() {
    const HEARS: &str = "hears the holder's doorbell";
    let megabyte = |mut guest: TcpStream| drop(guest.write_all(&vec![0; 1 << 20]));
    let other_half = |mut guest: TcpStream| {
        let _ = guest.write_all(&[8; 12]);
        floods(guest, b'd');
    };
    for (contacts, looks, said) in [
        costs("long-greeting", megabyte),
        costs("other-half", other_half),
    ] {
        assert_eq!((contacts, looks), (1, 1), "{said}");
        assert!(!said.contains(HEARS), "{said}");
    }
    for (name, word) in [("endless-life", b'.'), ("endless-zeros", 0)] {
        let endless = move |mut guest: TcpStream| {
            greets(&mut guest);
            floods(guest, word);
        };
        let (contacts, looks, said) = costs(name, endless);
        assert_eq!((contacts, looks), (1, 1), "{name}: {said}");
        let (_, after) = said.split_once(HEARS).expect("it was greeted");
        assert!(after.contains("is silent"), "{name}: {said}");
    }
}

#[test]
fn a_bell_at_a_public_address_is_not_rung_at() {
    let stage = Stage::new("public-bell");
    // A range for documentation, without hosts.
    stranger_at(&stage, "192.0.2.7:7");
    let proxy = Proxy::before(azurite().port);
    let options = ["--doorbell=127.0.0.1", "-v"];
    let standby = stage.instance(proxy.port, "standby", &options, &[]);
    standby.await_log("standing by: stranger is in control");
    // Twice, which is longer than a connection attempt.
    await_polls_as_ever(&proxy);
    await_polls_as_ever(&proxy);
    standby.signal(Signal::SIGTERM);
    let finished = standby.finish();
    assert_eq!(finished.ended, TERM, "{}", finished.stderr);
    assert!(!finished.stderr.contains("doorbell"), "{}", finished.stderr);
}

#[test]
fn a_bell_that_falls_silent_leaves_polls_as_ever() {
    let stage = Stage::new("silent-bell");
    stranger(&stage, |mut guest| {
        greets(&mut guest);
        for _ in 0..3 {
            let _ = guest.write_all(b".");
            std::thread::sleep(Duration::from_secs(1));
        }
        // As if a firewall dropped everything.
        std::mem::forget(guest);
    });
    let proxy = Proxy::before(azurite().port);
    let options = ["--doorbell=127.0.0.1", "-v"];
    let standby = stage.instance(proxy.port, "standby", &options, &[]);
    standby.await_log("hears the holder's doorbell, 0 standbys before this one");
    standby.await_log("the holder's doorbell is silent: polls as usual");
    await_polls_as_ever(&proxy);
    standby.signal(Signal::SIGTERM);
    assert_eq!(standby.finish().ended, TERM);
}
