//! The figures that the product promises, measured on the release binary: `cargo bench`.
//!
//! One line for each: how many runs, the median and the 95th percentile, the same of `flock(1)`
//! measured in the same rounds where there is something to compare, and the target; then the tools
//! that people use today side by side, and what many standbys cost (simulated), in Markdown, as
//! docs/figures.md has it. Names of
//! sections after `--` choose some: `cargo bench -- start crash`. Other work on the machine counts
//! in: a supervisor with a guardian waits for the scheduler more often than a single process, so on a
//! busy machine the ratios grow; run the executable that `cargo bench --no-run` names, with `--bench`,
//! under `chrt -f 50` to see the tools alone. A peer or an emulator that is
//! missing is said in the table. Nothing fails here because a machine is slow: what must hold
//! everywhere is in the tests.

#[expect(dead_code, reason = "the figures use a part of the tests' support")]
#[path = "../../tests/support/mod.rs"]
mod support;

mod beside;
mod crash;
mod crowd;
mod etcd;
mod fleet;
mod footprint;
mod handover;
mod instance;
mod numbers;
mod pace;
mod profile;
mod programs;
mod python;
mod queue;
mod rows;
#[cfg(feature = "service-bus")]
mod service_bus;
mod squeeze;
mod start;
mod table;
mod tools;
mod wire;

use std::process::Command;

use support::azurite;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if !asked.iter().any(|word| word == "--bench") {
        // `cargo test --benches` runs us too.
        println!("the figures are measured by: cargo bench");
        return;
    }
    let chosen: Vec<&str> = asked
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wants = |section: &str| chosen.is_empty() || chosen.contains(&section);
    let began = instance::now();
    if chosen == ["crowd"] {
        // Virtual time: no need of anything that the others measure with.
        return crowd::print();
    }

    let probe = programs::probe();
    let directory = tempfile::tempdir().expect("a directory for the scene");
    let scene = directory.path();
    let flock = programs::version("flock");
    let emulator = ["hand-over", "crash", "memory", "fleet", "beside"]
        .into_iter()
        .any(wants)
        .then(start_azurite);
    say_where(flock.as_deref(), emulator.as_ref());
    let connection = emulator.and_then(Result::ok);
    let connection = connection.as_deref();
    let peer = flock.is_some();

    if chosen.iter().any(|section| *section != "beside") || chosen.is_empty() {
        table::head();
    }
    if wants("start") {
        table::print("start", start::figures(scene, &probe, peer));
    }
    if wants("profile") {
        table::print("profile", profile::figures(scene, &probe));
    }
    if wants("hand-over") {
        table::print(
            "hand-over on a file",
            handover::on_file(scene, &probe, peer),
        );
        table::print(
            "hand-over on a blob",
            connection
                .ok_or_else(|| "no Azurite".to_owned())
                .and_then(|connection| handover::on_blob(scene, &probe, connection)),
        );
    }
    if wants("crash") {
        table::print("crash", crash::figures(scene, &probe, connection));
    }
    if wants("memory") {
        table::print("memory", footprint::memory(scene, &probe, connection));
    }
    if wants("idle") {
        table::print("idle", footprint::wake_ups(scene, &probe));
    }
    if wants("size") {
        table::print("size", footprint::size());
    }
    if wants("fleet") {
        table::print(
            "fleet",
            connection
                .ok_or_else(|| "no Azurite".to_owned())
                .and_then(|_| fleet::figures(scene, &probe)),
        );
    }
    if wants("work") {
        table::print("work", with_queues(|| queue::throughput(scene)));
        table::print("work, memory", with_queues(|| queue::memory(scene)));
    }
    // Ten minutes: only for those who ask for it.
    if chosen.contains(&"soak") {
        table::print("soak", with_queues(|| queue::soak(scene)));
    }
    if chosen.contains(&"squeeze") {
        table::print("squeeze", with_queues(|| squeeze::figures(scene)));
    }
    #[cfg(feature = "service-bus")]
    if wants("service-bus") {
        table::print("service bus", service_bus::throughput(scene));
        table::print("service bus, memory", service_bus::memory(scene));
    }
    if wants("beside") {
        beside::print(&tools::World {
            scene,
            probe: &probe,
            connection,
        });
    }
    if wants("crowd") {
        crowd::print();
    }
    println!("all of it took {:.0} s", (instance::now() - began) / 1e3);
}

/// A connection string for an Azurite of our own, or why there is none.
fn start_azurite() -> Result<String, String> {
    for program in ["node", "npm"] {
        if programs::version(program).is_none() {
            return Err(format!("{program} is not installed here"));
        }
    }
    // The tests' support gives up by a panic, in words of its own on stderr.
    std::panic::catch_unwind(|| azurite::connection_string(azurite::azurite().port))
        .map_err(|_| "it could not be started: see above".to_owned())
}

/// Figures on an Azurite of our own, or why there are none.
fn with_queues<T>(measure: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    match ["node", "npm"].map(programs::version) {
        [Some(_), Some(_)] => measure(),
        _ => Err("node or npm is not installed here: no Azurite".to_owned()),
    }
}

/// What the figures depend on, and what is missing.
fn say_where(flock: Option<&str>, emulator: Option<&Result<String, String>>) {
    let first_line = |command: &mut Command| {
        let output = command.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.lines().next()?.to_owned())
    };
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} | trafficcop {} | {} | {} processors, load {} | scene on {}",
        or_unknown(first_line(Command::new("date").arg("+%F"))),
        env!("CARGO_PKG_VERSION"),
        or_unknown(first_line(Command::new("uname").arg("-sr"))),
        std::thread::available_parallelism().map_or(0, usize::from),
        load.split(' ').next().unwrap_or("unknown"),
        or_unknown(first_line(
            Command::new("stat")
                .args(["-f", "-c", "%T"])
                .arg(std::env::temp_dir())
        )),
    );
    match flock {
        Some(version) => println!("peer: {version}"),
        None => println!("peer: MISSING: flock (util-linux) is not installed here"),
    }
    match emulator {
        Some(Ok(_)) => println!(
            "blobs: Azurite {} on Node.js {}, on this machine",
            azurite_version(),
            or_unknown(programs::version("node"))
        ),
        Some(Err(why)) => println!("blobs: MISSING: Azurite: {why}; no figure on a blob"),
        None => {}
    }
    println!();
}

/// As the tests' lock file has it.
fn azurite_version() -> String {
    let lock: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/azurite/package-lock.json"))
            .unwrap_or_default();
    let version = &lock["packages"]["node_modules/azurite"]["version"];
    version.as_str().unwrap_or("unknown").to_owned()
}
