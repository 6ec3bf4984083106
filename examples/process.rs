//! Processes the messages of a storage queue inside a program, without a command to supervise.
//!
//!     export AZURE_STORAGE_CONNECTION_STRING=UseDevelopmentStorage=true     # Azurite
//!     cargo run --example process -- orders
//!
//! Prints each message, takes its time, and completes it. The message's lock renews itself; if it is
//! lost the work on it is dropped. Ctrl-C gives back what was not done.

use std::time::Duration;

use trafficcop::queue::Queue;
use trafficcop::queue::storage::{Config, Encoding, StorageQueue, Target};
use trafficcop::{Account, AuthOptions, Instant, MessageLock};

/// How long the work on a message takes: longer than its lock would last by itself.
const WORK: Duration = Duration::from_secs(90);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(name) = std::env::args().nth(1) else {
        return Err("usage: process QUEUE".into());
    };
    let target = Target::parse(&name)?;
    let variable = |name: &str| std::env::var(name).ok();
    let queue = StorageQueue::open(Config {
        account: Account::find_queue(&variable, &AuthOptions::default(), target.url())?,
        target,
        lock_time: Duration::from_secs(60),
        encoding: Some(Encoding::Text),
        max_body: 64 << 10,
        poison: None,
        create: true,
    })?;
    let soon = || Instant::now() + Duration::from_secs(5);
    queue.prepare(soon()).await?;
    loop {
        let taken = queue.take(1, soon()).await?;
        for message in taken {
            let message = MessageLock::hold(message)?;
            println!(
                "{}: {}",
                message.id(),
                String::from_utf8_lossy(message.body())
            );
            tokio::select! {
                done = message.run(tokio::time::sleep(WORK)) => match done {
                    Ok(()) => {
                        message.complete().await?;
                        println!("done");
                    }
                    Err(_lost) => println!("another may have it now: dropped"),
                },
                _ = tokio::signal::ctrl_c() => {
                    message.abandon().await?;
                    println!("given back");
                    return Ok(());
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}
