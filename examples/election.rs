//! Elects a leader among instances of one program, without a command to supervise.
//!
//!     cargo run --example election -- /tmp/election.lock      # in two or three terminals
//!
//! Each instance says once a second where it stands. The one in control hands it round after ten
//! seconds. Ctrl-C gives the lease back, and another one goes on at once.

use std::path::PathBuf;
use std::time::Duration;

use trafficcop::lease::file;
use trafficcop::lease::record::Candidate;
use trafficcop::{Control, TrafficCop};

/// For how many seconds an instance works before it hands control round.
const TURN: u32 = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        anyhow::bail!("usage: election LOCK-FILE");
    };
    let mut interrupted =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    loop {
        let cop = TrafficCop::with_store(file::File::open(config(path.clone()))?).start()?;
        let state = cop.watch();
        let mut worked = 0;
        let stopped = loop {
            match &*state.borrow() {
                Control::InControl { token } if cop.has_control() => {
                    println!("in control (token {token})");
                    worked += 1;
                }
                Control::StandingBy {
                    holder: Some(holder),
                } => println!("standing by behind {holder}"),
                _ => println!("standing by"),
            }
            tokio::select! {
                _ = interrupted.recv() => break true,
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            if worked == TURN {
                break false;
            }
        };
        cop.stop().await;
        if stopped {
            return Ok(());
        }
        println!("handing control round");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn config(path: PathBuf) -> file::Config {
    let pid = std::process::id();
    let host = nix::unistd::gethostname().map_or_else(
        |_| "localhost".into(),
        |name| name.to_string_lossy().into_owned(),
    );
    file::Config {
        path,
        candidate: Candidate {
            identity: format!("{host}-{pid}"),
            host,
            pid,
            command: "election".into(),
        },
        create: true,
    }
}
