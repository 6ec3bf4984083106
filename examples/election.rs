//! Elects a leader among instances of one program, without a command to supervise.
//!
//!     cargo run --example election -- /tmp/election.lock      # in two or three terminals
//!
//! Each instance says when it stands by, and once a second that it is in control. The one in control
//! hands it round after ten seconds. SIGTERM and Ctrl-C give the lease back, and another one goes on at once.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use trafficcop::{Control, Guard, TrafficCop};

/// For how many seconds an instance works before it hands control round.
const TURN: u32 = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("election: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or("usage: election LOCK-FILE")?;
    let mut sigterm = signal(SignalKind::terminate())?;
    let cop = TrafficCop::file(path)?.start().await?;
    let mut state = cop.watch();
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            if let Control::StandingBy { holder: Some(name) } = &*state.borrow_and_update() {
                println!("standing by behind {name}");
            }
        }
    });
    tokio::select! {
        ended = take_turns(&cop) => ended?,
        _ = sigterm.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    cop.stop().await?;
    Ok(())
}

async fn take_turns(cop: &TrafficCop) -> Result<(), trafficcop::Error> {
    loop {
        let guard = cop.acquired().await?;
        match guard.run(work(&guard)).await {
            Ok(()) => println!("handing control round"),
            Err(lost) => println!("{lost}"),
        }
        // Gives control back; whoever stands by is woken, and takes it before we ask again.
        drop(guard);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn work(guard: &Guard) {
    for _ in 0..TURN {
        println!("in control (token {})", guard.token());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
