//! `trafficcop run --standby`, `--on-acquire`, `--on-lost`: commands before, between and after
//! tenures.

mod after;
mod before;
mod standing_by;
mod told;

use std::collections::BTreeMap;
use std::fs::File;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::{Journal, What};
use crate::support::processes::{self, Process};
use crate::support::scene::Scene;
use crate::support::{await_for, programs};

const TERM: Ended = Ended::Died(Signal::SIGTERM);

/// Journal of the standby commands, which is separate because they have no token.
fn standbys(scene: &Scene) -> Journal {
    Journal::at(scene.path("standbys"))
}

fn script(journal: &Journal, tag: &str, options: &str) -> String {
    let journalist = programs::journalist().display();
    format!(
        "exec {journalist} {} {tag} {options}",
        journal.path().display()
    )
}

fn standby(scene: &Scene, name: &str, options: &str) -> [String; 2] {
    let script = script(&standbys(scene), name, options);
    [
        "--standby".into(),
        format!("TRAFFICCOP_TOKEN=0; export TRAFFICCOP_TOKEN; {script}"),
    ]
}

fn hook(scene: &Scene, name: &str, options: &str) -> [String; 2] {
    let tag = format!("{name}/hook");
    ["--on-acquire".into(), script(&scene.journal, &tag, options)]
}

fn until(scene: &Scene, name: &str) -> String {
    format!("--until {}", scene.path(&format!("{name}.done")).display())
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

/// Runs on the scene's file with a command that beats until TERM.
fn on_file<'a>(scene: &'a Scene, name: &str) -> Run<'a> {
    scene
        .run_on_file()
        .args(["--identity", name])
        .journalist(name, &[])
}

/// Starts a holder whose command beats until it is released.
fn holder(scene: &Scene, name: &str) -> Instance {
    let done = scene.path(&format!("{name}.done"));
    let holder = scene
        .run_on_file()
        .args(["--identity", name])
        .journalist(name, &["--until", done.to_str().unwrap()])
        .start();
    scene.journal.await_tag(What::Beat, name);
    holder
}

/// Returns the span from first to last line of each process, by its tag.
fn lives(journal: &Journal) -> BTreeMap<(String, i32), (u64, u64)> {
    let mut lives = BTreeMap::new();
    for line in journal.lines() {
        let of = line.tag.split('/').next().unwrap().to_owned();
        let life = lives.entry((of, line.pid)).or_insert((line.at, line.at));
        life.1 = line.at;
    }
    lives
}

/// Fails if a standby's process and one under control lived at the same time on an instance, or if
/// two tenures did.
fn judge(scene: &Scene) -> Vec<String> {
    for ((name, pid), (first, last)) in lives(&standbys(scene)) {
        for ((other, beside), (begin, end)) in lives(&scene.journal) {
            assert!(
                name != other || last < begin || end < first,
                "{name}: standby {pid} beside {beside}\n{}{}",
                standbys(scene),
                scene.journal
            );
        }
    }
    scene.journal.judge()
}

fn starts(journal: &Journal, tag: &str) -> usize {
    let lines = journal.lines();
    let starts = lines
        .iter()
        .filter(|line| line.what == What::Start && line.tag == tag);
    starts.count()
}

fn await_starts(journal: &Journal, tag: &str, count: usize) {
    await_for(
        &format!("{count} starts of {tag}"),
        || (starts(journal, tag) >= count).then_some(()),
        || journal.to_string(),
    );
}

fn await_text(scene: &Scene, file: &str) -> String {
    await_for(
        &format!("a line in {file}"),
        || {
            let text = std::fs::read_to_string(scene.path(file)).ok()?;
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        },
        || scene.journal.to_string(),
    )
}

/// Writes the cause, token and role of the end of each tenure of this instance.
fn on_lost(scene: &Scene, name: &str) -> [String; 2] {
    let file = scene.path(&format!("{name}.lost"));
    let line = "$TRAFFICCOP_ROLE $TRAFFICCOP_TOKEN $TRAFFICCOP_CAUSE";
    [
        "--on-lost".into(),
        format!("echo \"{line}\" >> {}", file.display()),
    ]
}

/// Returns the guardians of an instance, the command's first.
fn guardians(scene: &Scene, instance: &Instance) -> Vec<Process> {
    let mut all = processes::marked(scene.directory());
    all.retain(|process| process.is_ours() && process.parent == instance.pid());
    // By start, all after their parent: a lower number was assigned after a wrap-around. Start
    // times in hundredths of a second may be equal.
    all.sort_by_key(|process| (process.pid < instance.pid(), process.pid));
    all
}

fn sigkill(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}
