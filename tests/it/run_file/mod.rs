//! `trafficcop run --file`, end to end.

mod command;
mod hand_over;
mod log;
mod operated;
mod proofs;
mod refused;
mod standing_still;
mod stop_to;
mod waiting;

use std::fs::File;

use nix::sys::signal::Signal;

use crate::support::instance::{Ended, Instance};
use crate::support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

/// Starts an instance whose command writes into the journal until the file `NAME.done` appears.
fn instance(scene: &Scene, name: &str, options: &[&str], command: &[&str]) -> Instance {
    let done = scene.path(&format!("{name}.done"));
    let mut words = vec!["--until", done.to_str().unwrap()];
    words.extend(command);
    scene
        .run_on_file()
        .args(["--identity", name])
        .args(options)
        .journalist(name, &words)
        .start()
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

const A_TREE: [&str; 7] = [
    "--term",
    "ignore",
    "--daemon",
    "--children",
    "2",
    "--storm",
    "6",
];
