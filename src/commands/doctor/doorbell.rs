//! What doctor tries of the doorbell: whether ours can be heard, and that of whoever has the lock.

use std::time::Duration;

use super::{Check, Findings};
use crate::commands::lock_target::LockTarget;
use crate::core::{Bell, Ring};
use crate::doorbell::{Doorbell, DoorbellAddress};
use crate::lease::inspect::LockState;

const NAME: &str = "doorbell";
// Longer than it takes itself to find that nobody answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Rings, and listens; on the runtime.
pub(super) async fn examine(
    findings: &mut Findings,
    wanted: DoorbellAddress,
    host: Option<&str>,
    target: &LockTarget,
) -> anyhow::Result<()> {
    findings.add(match Doorbell::bind(wanted, host) {
        Ok(ours) => ring(ours, host).await,
        Err(why) => Check::fail(NAME, why, ""),
    });
    // What speaks against the lock itself was said before.
    let Ok(holder) = target.look_at_one().await else {
        return Ok(());
    };
    let record = holder.record.filter(|_| holder.state == LockState::Held);
    let bell = record.and_then(|record| record.bell.parse::<Bell>().ok());
    if let Some(bell) = bell {
        findings.add(listen(bell).await);
    }
    Ok(())
}

async fn ring(mut ours: Doorbell, host: Option<&str>) -> Check {
    let address = ours.bell().address;
    if let Err(why) = ours.open() {
        return Check::fail(NAME, format!("cannot listen at {address}: {why}"), "");
    }
    let standby = DoorbellAddress {
        ip: Some(address.ip()),
        port: 0,
    };
    let heard = match Doorbell::bind(standby, host) {
        Ok(mut standby) => heard(&mut standby, ours.bell()).await,
        Err(why) => return Check::fail(NAME, why, ""),
    };
    match heard {
        true => Check::ok(
            NAME,
            format!("rings at {address}, and is heard on this machine"),
        ),
        false => Check::fail(
            NAME,
            format!("rings at {address}, and is not heard on this machine"),
            "does a firewall drop what it sends itself?",
        ),
    }
}

async fn listen(bell: Bell) -> Check {
    let address = bell.address;
    if !bell.is_near() {
        return Check::warn(
            NAME,
            format!("the holder's at {address} is no private address, and is not rung at"),
            "give the holder one with --doorbell=ADDR",
        );
    }
    let standby = Doorbell::bind(DoorbellAddress::default(), None);
    let heard = match standby {
        Ok(mut standby) => heard(&mut standby, bell).await,
        Err(why) => return Check::fail(NAME, why, ""),
    };
    match heard {
        true => Check::ok(NAME, format!("the holder's at {address} is heard here")),
        false => Check::warn(
            NAME,
            format!("the holder's at {address} is not heard here: a standby polls as ever"),
            "is a firewall in between?",
        ),
    }
}

/// Whether this bell greets.
async fn heard(standby: &mut Doorbell, bell: Bell) -> bool {
    standby.attend(Some(bell));
    let ring = tokio::time::timeout(PATIENCE, standby.next()).await;
    matches!(ring, Ok(Ring::Greeted { .. }))
}
