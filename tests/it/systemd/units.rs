//! The units in `examples/`: systemd accepts them, and their command lines can be parsed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use trafficcop::internals::args;

use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::scene::Scene;

/// Units, and the names they are started under.
const UNITS: &[(&str, &str)] = &[
    (
        "examples/trafficcop@.service",
        "trafficcop@importer.service",
    ),
    (
        "examples/timer/trafficcop-daily@.service",
        "trafficcop-daily@nightly.service",
    ),
    (
        "examples/timer/trafficcop-daily@.timer",
        "trafficcop-daily@nightly.timer",
    ),
    (
        "examples/work/trafficcop-work@.service",
        "trafficcop-work@orders.service",
    ),
];

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn units_in(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("readable") {
        let path = entry.expect("an entry").path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            units_in(&path, found);
        } else if matches!(
            ending,
            Some("service" | "timer" | "socket" | "path" | "target")
        ) {
            found.push(path);
        }
    }
}

#[test]
fn every_unit_is_looked_at() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    units_in(&root.join("examples"), &mut found);
    for path in &found {
        let path = path.strip_prefix(root).expect("inside").to_string_lossy();
        assert!(
            UNITS.iter().any(|(unit, _)| *unit == path),
            "{path} is not verified"
        );
    }
    assert_eq!(found.len(), UNITS.len());
}

/// Verifies a unit with programs that exist here; `None` without systemd's verifier.
fn verified(directory: &Path, unit: &str, name: &str) -> Option<Result<(), String>> {
    let verdict = Command::new("systemd-analyze")
        .arg("verify")
        .arg(directory.join(name))
        .env("SYSTEMD_UNIT_PATH", format!("{}:", directory.display()))
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&verdict.stderr).into_owned();
    let file = Path::new(unit)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_about_it = said
        .lines()
        .any(|line| line.contains(name) || line.contains(&file));
    Some(if is_about_it || !verdict.status.success() {
        Err(said)
    } else {
        Ok(())
    })
}

fn install(directory: &Path, unit: &str, change: impl Fn(String) -> String) {
    let file = Path::new(unit).file_name().expect("a name");
    let text = text(unit).replace("/usr/bin/trafficcop", "/bin/true");
    std::fs::write(directory.join(file), change(text)).expect("written");
}

#[test]
fn systemd_accepts_each_unit() {
    let directory = tempfile::tempdir().expect("a directory");
    for (unit, _) in UNITS {
        install(directory.path(), unit, |text| text);
    }
    for (unit, name) in UNITS {
        match verified(directory.path(), unit, name) {
            Some(verdict) => verdict.unwrap_or_else(|said| panic!("{unit}: {said}")),
            None => {
                eprintln!("systemd-analyze is not installed here: NO UNIT WAS VERIFIED");
                return;
            }
        }
    }
    // The check is useful only if a wrong unit fails.
    install(directory.path(), UNITS[0].0, |text| {
        text.replace("KillMode=", "KilMode=")
    });
    let (unit, name) = UNITS[0];
    let verdict = verified(directory.path(), unit, name);
    assert!(
        verdict.is_some_and(|verdict| verdict.is_err()),
        "a typing error is accepted"
    );
}

#[test]
fn the_units_start_what_the_package_installs() {
    let package = text("Cargo.toml");
    assert!(package.contains("[\"target/release/trafficcop\", \"usr/bin/\", \"755\"]"));
    for (unit, _) in UNITS.iter().filter(|(unit, _)| unit.ends_with(".service")) {
        let text = text(unit);
        assert!(text.contains("\nExecStart=/usr/bin/trafficcop "), "{unit}");
        assert!(
            text.contains("\nEnvironment=TRAFFICCOP_NO_CREDENTIALS=1\n"),
            "{unit}"
        );
    }
}

#[test]
fn command_lines_of_units_can_be_parsed() {
    for (unit, _) in UNITS.iter().filter(|(unit, _)| unit.ends_with(".service")) {
        let text = text(unit);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let line = line.expect("it starts something").replace("%i", "job");
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let verb = words[1].to_string_lossy().into_owned();
        if args::definition().find_subcommand(&verb).is_none() {
            // Not in this build (a feature is off).
            eprintln!("{unit}: this trafficcop knows no verb '{verb}': NOT PARSED");
            continue;
        }
        args::parse(words).unwrap_or_else(|why| panic!("{unit}: {why}"));
    }
}

#[test]
fn the_services_leave_a_drain_to_trafficcop_and_time_for_it() {
    for (unit, _) in UNITS.iter().filter(|(unit, _)| unit.ends_with(".service")) {
        let text = text(unit);
        let has = |line: &str| text.lines().any(|there| there == line);
        assert!(has("KillMode=mixed") && has("Delegate=yes"), "{unit}");
        assert!(text.contains("\nTimeoutStopSec="), "{unit}");
        // A unit that runs on must have a watchdog; its default signal SIGABRT would leave a core
        // with secrets.
        if !has("Type=oneshot") {
            assert!(has("Type=notify") && has("NotifyAccess=main"), "{unit}");
            assert!(text.contains("\nWatchdogSec="), "{unit}");
            assert!(has("WatchdogSignal=SIGKILL"), "{unit}");
        }
        // These would take containment away.
        assert!(!text.contains("\nProtectControlGroups="), "{unit}");
        assert!(!text.contains("\nRestrictNamespaces="), "{unit}");
    }
}

#[test]
fn services_stop_before_remote_file_systems_are_unmounted() {
    for (unit, _) in UNITS.iter().filter(|(unit, _)| unit.ends_with(".service")) {
        let text = text(unit);
        let after = text.lines().find_map(|line| line.strip_prefix("After="));
        let after: Vec<&str> = after.expect("an order").split_whitespace().collect();
        assert!(after.contains(&"remote-fs.target"), "{unit}");
    }
}

/// To systemd a death by SIGTERM is a clean end of every service except a oneshot
/// (systemd.service(5)).
#[test]
fn daily_unit_that_is_stopped_has_not_failed() {
    let unit = text("examples/timer/trafficcop-daily@.service");
    assert!(unit.contains("\nType=oneshot\n"));
    assert!(unit.contains("\nSuccessExitStatus=SIGTERM\n"));
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let words = line.expect("it starts something").split_whitespace();
    let words: Vec<&str> = words.take_while(|word| *word != "--").skip(2).collect();
    let scene = Scene::new();
    let start = |name| {
        let run = scene.run_on_file().args(&words);
        run.journalist(name, &["--every", "20"]).start()
    };
    let one = start("one");
    scene.journal.await_tag(What::Beat, "one");
    let two = start("two");
    two.await_log("standing by");
    for instance in [two, one] {
        instance.signal(Signal::SIGTERM);
        let done = instance.finish();
        assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
    }
}
