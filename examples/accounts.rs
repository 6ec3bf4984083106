//! A lock in one storage account and a queue in another, with credentials that the program has from a secret store.
//!
//!     cargo run --example accounts
//!
//! Both are Azurite's here. No environment variable is read.

use std::time::Duration;

use trafficcop::{TrafficCop, Worker};

/// Stands for a request to a secret store.
fn secret(_of: &str) -> String {
    "UseDevelopmentStorage=true".to_owned()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("accounts: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let locks = TrafficCop::builder().connection_string(secret("locks"));
    let orders = Worker::builder().connection_string(secret("orders"));
    // With a key: TrafficCop::builder().account("contoso", AccountCredential::key(secret("contoso")))
    // With Entra ID: TrafficCop::builder().account("contoso", DeveloperToolsCredential::new(None)?)

    let cop = locks.blob("locks/dispatcher")?.start().await?;
    let Some(guard) = cop.try_acquire(Duration::from_secs(10)).await? else {
        println!("another instance dispatches");
        return Ok(cop.stop().await?);
    };
    println!("in control, token {}", guard.token());
    let orders = orders.queue("orders")?.create().start().await?;
    while let Ok(message) = tokio::time::timeout(Duration::from_secs(5), orders.next()).await {
        let message = message?;
        println!("{}: {} bytes", message.id(), message.body().len());
        message.complete().await?;
    }
    drop(guard);
    Ok(cop.stop().await?)
}
