//! Processes the messages of a storage queue inside a program, without a command to supervise.
//!
//!     export AZURE_STORAGE_CONNECTION_STRING=UseDevelopmentStorage=true     # Azurite
//!     cargo run --example process -- orders
//!
//! Prints each message, takes its time, and completes it. The message's lock renews itself; if it is
//! lost the work on it is dropped. Ctrl-C gives back what was not done.

use std::time::Duration;

use trafficcop::Worker;

/// How long the work on a message takes: longer than its lock would last by itself.
const WORK: Duration = Duration::from_secs(90);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("process: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: process QUEUE")?;
    let queue = Worker::queue(&name)?.create().start().await?;
    loop {
        let message = tokio::select! {
            message = queue.next() => message?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let text = String::from_utf8_lossy(message.body());
        println!("{}: {text}", message.id());
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
}
