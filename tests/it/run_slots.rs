//! `trafficcop run --slots`: a counting semaphore.
//!
//! The hunt kills holders at random for 20 seconds; `SLOTS_HUNT=120` makes it two minutes.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::{Line, What};
use crate::support::scene::Scene;

const SECOND: u64 = 1_000_000_000;
/// Shortest lease of the service; a file's lock has none.
const LEASE: u64 = 15 * SECOND;
const POLL: u64 = SECOND / 2;

/// Returns a journalist whose tag has the slot, and which runs until NAME.done appears.
fn script(scene: &Scene, name: &str) -> String {
    let done = scene.path(&format!("{name}.done"));
    let words = scene.journalist("SLOT", &["--every", "50", "--until"]);
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let line = words.join(" ").replace(
        "'SLOT'",
        &format!("\"slot$TRAFFICCOP_SLOT.{name}.$TRAFFICCOP_TOKEN\""),
    );
    format!("exec {line} '{}'", done.display())
}

fn on_file<'a>(scene: &'a Scene, name: &str) -> Run<'a> {
    let run = scene.run_on_file().args(["--identity", name]);
    run.args(["--slots", "2", "--poll", "500ms"])
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

#[derive(Debug)]
struct Stretch {
    slot: u32,
    token: u64,
    name: String,
    first: u64,
    last: u64,
}

/// Returns the stretches in the journal by time. A tag belongs to one stretch: SLOT.NAME.TOKEN.
fn stretches(lines: &[Line]) -> Vec<Stretch> {
    let mut found: BTreeMap<&str, Stretch> = BTreeMap::new();
    for line in lines {
        let stretch = found.entry(&line.tag).or_insert_with(|| {
            let mut parts = line.tag.strip_prefix("slot").unwrap().split('.');
            Stretch {
                slot: parts.next().unwrap().parse().expect("a slot"),
                name: parts.next().unwrap().into(),
                token: line.token,
                first: line.at,
                last: line.at,
            }
        });
        stretch.first = stretch.first.min(line.at);
        stretch.last = stretch.last.max(line.at);
    }
    let mut found: Vec<Stretch> = found.into_values().collect();
    found.sort_by_key(|stretch| stretch.first);
    found
}

/// Checks the promise for N slots: at most one stretch at a time in each, so at most N in all, with
/// growing tokens in each.
fn judge(scene: &Scene, slots: u32) -> Vec<Stretch> {
    let all = stretches(&scene.journal.lines());
    for (at, one) in all.iter().enumerate() {
        assert!(one.slot < slots, "{one:?}");
        let alive = all
            .iter()
            .filter(|other| other.first <= one.first && one.first <= other.last)
            .count();
        assert!(
            alive <= slots as usize,
            "{alive} alive at the beginning of {one:?}\n{all:#?}"
        );
        for other in all[at + 1..].iter().filter(|other| other.slot == one.slot) {
            assert!(other.first > one.last, "{one:?} beside {other:?}");
            assert!(other.token > one.token, "{other:?} after {one:?}");
        }
    }
    all
}

/// Returns the longest time without a holder, between the first and the last.
fn longest_gap(all: &[Stretch], slot: u32) -> u64 {
    let mine: Vec<&Stretch> = all.iter().filter(|one| one.slot == slot).collect();
    let gaps = mine.windows(2).map(|pair| pair[1].first - pair[0].last);
    gaps.max().unwrap_or(0)
}

/// Runs five instances on two slots; about every second it kills a holder's supervisor, and starts
/// another instance.
fn hunt(start: impl Fn(&Scene, &str) -> Instance, limit: u64) {
    let scene = Scene::new();
    let seconds = std::env::var("SLOTS_HUNT").map_or(20, |text| text.parse().expect("seconds"));
    let mut crowd: Vec<(String, Instance)> = Vec::new();
    let mut count = 0;
    let mut join = |crowd: &mut Vec<(String, Instance)>| {
        let name = format!("i{count}");
        count += 1;
        let instance = start(&scene, &name);
        crowd.push((name, instance));
    };
    for _ in 0..5 {
        join(&mut crowd);
    }
    let begin = Instant::now();
    let mut killed = 0;
    while Instant::now().since(begin) < Duration::from_secs(seconds) {
        // Both slots are taken before the next death, so that each gap belongs to one death.
        let living = await_for(
            "both slots to be taken",
            || {
                let now = Instant::now().as_nanos();
                let all = stretches(&scene.journal.lines());
                let fresh = all
                    .into_iter()
                    .filter(|one| now.saturating_sub(one.last) < SECOND);
                let names = fresh.map(|one| one.name);
                let alive: Vec<String> = names
                    .filter(|name| crowd.iter().any(|(one, _)| one == name))
                    .collect();
                (alive.len() == 2).then_some(alive)
            },
            || format!("{:#?}", stretches(&scene.journal.lines())),
        );
        // At any point of their work: the pace of deaths.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..500)));
        let prey = &living[fastrand::usize(..2)];
        let at = crowd.iter().position(|(name, _)| name == prey).unwrap();
        let (_, mut instance) = crowd.swap_remove(at);
        instance.signal(Signal::SIGKILL);
        instance.wait();
        killed += 1;
        join(&mut crowd);
    }
    for (name, _) in &crowd {
        let_end(&scene, name);
    }
    for (_, mut instance) in crowd {
        assert_eq!(instance.wait(), Ended::Code(0), "{}", instance.stderr());
    }
    let all = judge(&scene, 2);
    assert!(
        killed > 2 && all.len() > killed,
        "{killed} killed: {all:#?}"
    );
    let gaps = [longest_gap(&all, 0), longest_gap(&all, 1)];
    println!(
        "{killed} holders killed in {seconds} s, {} tenures; longest gaps {} ms and {} ms",
        all.len(),
        gaps[0] / 1_000_000,
        gaps[1] / 1_000_000
    );
    assert!(gaps.iter().all(|gap| *gap <= limit), "{gaps:?}\n{all:#?}");
    scene.await_nobody();
}

/// Time that a loaded machine may take to notice, to drain and to start.
const SLACK: u64 = 10 * SECOND;

#[test]
fn two_of_five_on_files_have_control_despite_kills() {
    let start = |scene: &Scene, name: &str| {
        let script = script(scene, name);
        on_file(scene, name).shell(&script).start()
    };
    hunt(start, POLL + SLACK);
}

#[test]
fn two_of_five_on_blobs_have_control_despite_kills() {
    let start = |scene: &Scene, name: &str| {
        let script = script(scene, name);
        on_blob(scene, name, "hunt/pool").shell(&script).start()
    };
    hunt(start, LEASE + POLL + SLACK);
}

fn on_blob<'a>(scene: &'a Scene, name: &str, blob: &str) -> Run<'a> {
    let string = connection_string(azurite().port);
    let run = scene.run().env("AZURE_STORAGE_CONNECTION_STRING", string);
    run.args(["--blob", blob, "--identity", name, "--slots", "2"])
        .args(["--lease", "15s", "--poll", "500ms"])
}

#[test]
fn each_slot_is_a_lock_of_its_own_beside_the_name() {
    let scene = Scene::new();
    let tell = r#"echo "$TRAFFICCOP_SLOT $TRAFFICCOP_LOCK $TRAFFICCOP_TOKEN""#;
    let finished = on_file(&scene, "one").shell(tell).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let slot: u32 = finished.stdout[..1].parse().unwrap();
    let lock = scene.lock();
    let wanted = format!("{slot} {}.{slot} 1\n", lock.display());
    assert_eq!(finished.stdout, wanted);
    assert!(!lock.exists(), "a lock without a slot was made");
    let words = format!("slot {slot} of 2: {}.{slot}", lock.display());
    assert!(finished.stderr.contains(&words), "{}", finished.stderr);

    let finished = on_blob(&scene, "one", "plain/pool").shell(tell).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let slot = &finished.stdout[..1];
    let blob = Blob::named(&format!("plain/pool.{slot}"));
    assert_eq!(blob.metadata("trafficcop_token").as_deref(), Some("1"));
    assert_eq!(blob.lease_state(), "available");
    assert_eq!(Blob::named("plain/pool").lease_state(), "missing");
}

#[test]
fn one_slot_is_the_plain_lock() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(["--slots", "1"])
        .shell("echo $TRAFFICCOP_SLOT $TRAFFICCOP_LOCK")
        .finish();
    assert_eq!(finished.stdout, format!("0 {}\n", scene.lock().display()));
}

#[test]
fn instances_with_different_numbers_of_slots_share_those_that_both_name() {
    let scene = Scene::new();
    let start = |name: &'static str, slots: &str| {
        let run = on_file(&scene, name).args(["--slots", slots]);
        let instance = run.shell(&script(&scene, name)).start();
        let main = format!(".{name}.");
        let beat = |line: &Line| line.tag.contains(&main);
        scene.journal.await_line("a beat", beat);
        instance
    };
    let all = [("one", "2"), ("two", "2"), ("three", "3")];
    let all = all.map(|(name, slots)| (name, start(name, slots)));
    for slots in ["2", "3"] {
        let run = on_file(&scene, "late").args(["-n", "--slots", slots]);
        let late = run.shell("true").finish();
        assert_eq!(late.ended, Ended::Code(75), "{}", late.stderr);
    }
    let plain = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(plain.ended, Ended::Code(0), "{}", plain.stderr);
    for (name, mut instance) in all {
        let_end(&scene, name);
        assert_eq!(instance.wait(), Ended::Code(0), "{}", instance.stderr());
    }
    let mut slots: Vec<u32> = judge(&scene, 3).iter().map(|one| one.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
}

#[test]
fn refusal_names_the_holders_of_all_slots() {
    let scene = Scene::new();
    let names = ["one", "two"];
    let start = |name| on_file(&scene, name).shell(&script(&scene, name)).start();
    let mut holders = names.map(start);
    await_for(
        "both to have control",
        || (stretches(&scene.journal.lines()).len() == 2).then_some(()),
        || scene.journal.to_string(),
    );
    let late = on_file(&scene, "late").arg("-n").shell("true").finish();
    assert_eq!(late.ended, Ended::Code(75), "{}", late.stderr);
    for name in names {
        assert!(late.stderr.contains(name), "{}", late.stderr);
    }
    // It takes the next free slot, with one log line until then.
    let waits = on_file(&scene, "waits").shell(&script(&scene, "waits"));
    let mut waits = waits.start();
    waits.await_log("standing by");
    let_end(&scene, "two");
    assert_eq!(holders[1].wait(), Ended::Code(0));
    scene.journal.await_line("the standby", |line| {
        line.what == What::Beat && line.tag.contains(".waits.")
    });
    assert_eq!(waits.stderr().matches("standing by").count(), 1);
    for name in ["one", "waits"] {
        let_end(&scene, name);
    }
    assert_eq!(holders[0].wait(), Ended::Code(0));
    assert_eq!(waits.wait(), Ended::Code(0));
    judge(&scene, 2);
    scene.await_nobody();
}

#[test]
fn doorbell_of_the_holder_of_each_slot_is_heard() {
    let scene = Scene::new();
    let start = |name, options: &[&str]| {
        let run = on_blob(&scene, name, "rung/pool").args(options);
        run.shell(&script(&scene, name)).start()
    };
    const BELL: [&str; 4] = ["--doorbell=127.0.0.1", "--poll", "1h", "-v"];
    let starts = |name: &str| {
        let main = format!(".{name}.");
        scene
            .journal
            .await_line("a beat", |line| line.tag.contains(&main))
    };
    let mut deaf = start("deaf", &[]);
    starts("deaf");
    let mut rings = start("rings", &BELL);
    starts("rings");
    let mut waits = start("waits", &BELL);
    waits.await_log("hears the holder's doorbell, 0 standbys before this one");
    let_end(&scene, "rings");
    assert_eq!(rings.wait(), Ended::Code(0), "{}", rings.stderr());
    starts("waits");
    for (name, instance) in [("deaf", &mut deaf), ("waits", &mut waits)] {
        let_end(&scene, name);
        assert_eq!(instance.wait(), Ended::Code(0), "{}", instance.stderr());
    }
    judge(&scene, 2);
    scene.await_nobody();
}

#[test]
fn number_of_slots_out_of_range_is_refused() {
    for number in ["0", "1001", "x"] {
        let scene = Scene::new();
        let run = scene.run_on_file().args(["--slots", number]);
        let finished = run.shell("true").finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        assert!(finished.stderr.contains("1 to 1000"), "{}", finished.stderr);
    }
}
