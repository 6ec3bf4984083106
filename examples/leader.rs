//! Elects a leader: cargo run --example leader -- /tmp/leader.lock
//!
//! SIGTERM and Ctrl-C give control back, and a standby leads at once.
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use trafficcop::TrafficCop;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("leader: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: leader FILE")?;
    let mut sigterm = signal(SignalKind::terminate())?;
    let cop = TrafficCop::file(path)?.start().await?;
    tokio::select! {
        ended = lead(&cop) => ended?,
        _ = sigterm.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    cop.stop().await?; // Without it a blob's lease runs out by itself.
    Ok(())
}

async fn lead(cop: &TrafficCop) -> Result<(), trafficcop::Error> {
    loop {
        let guard = cop.acquired().await?;
        println!("{} leads, token {}", std::process::id(), guard.token());
        let work = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        if let Err::<(), _>(lost) = guard.run(work).await {
            println!("{lost}");
        }
    }
}
