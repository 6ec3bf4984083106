//! `--listen`: every answer is true at its moment, and clients do not disturb each other or the
//! instance.

pub(crate) mod client;
mod crowd;
mod health;
mod judge;
mod leader;
mod numbers;
mod openmetrics;
mod pages;
mod places;

use std::fs::File;
use std::net::SocketAddr;

use crate::support::await_for;
use crate::support::instance::Instance;
use crate::support::scene::Scene;
use client::address;

const ANYWHERE: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Starts an instance on the scene's file that listens; returns its address, too.
fn instance(scene: &Scene, name: &str, options: &[&str], script: &str) -> (Instance, SocketAddr) {
    let one = scene
        .run_on_file()
        .args(["--identity", name])
        .args(ANYWHERE)
        .args(options)
        .shell(script)
        .start();
    let at = address(&one);
    (one, at)
}

/// Returns a script that runs until it is released or gets TERM.
fn lasting(scene: &Scene, name: &str) -> String {
    let go = scene.path(&format!("{name}.go"));
    format!("while [ ! -e {} ]; do sleep 0.05; done", go.display())
}

/// Returns such a script that ignores TERM once [`await_deaf`] has returned.
fn deaf(scene: &Scene, name: &str) -> String {
    let sign = scene.path(&format!("{name}.deaf"));
    let lasting = lasting(scene, name);
    format!("trap '' TERM; : > {}; {lasting}", sign.display())
}

fn await_deaf(scene: &Scene, name: &str) {
    let sign = scene.path(&format!("{name}.deaf"));
    let look = || sign.exists().then_some(());
    await_for("the command to turn deaf", look, String::new);
}

fn let_go_on(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.go"))).expect("a file");
}
