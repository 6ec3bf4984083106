//! Elects a leader in twenty lines: cargo run --example leader -- /tmp/leader.lock
use std::time::Duration;

use trafficcop::TrafficCop;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: leader FILE")?;
    let cop = TrafficCop::file(path)?.start().await?;
    loop {
        let guard = cop.acquired().await?;
        println!("{} leads, token {}", std::process::id(), guard.token());
        let lead = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        if let Err::<(), _>(lost) = guard.run(lead).await {
            println!("{lost}");
        }
    }
}
