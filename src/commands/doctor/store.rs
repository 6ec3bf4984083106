//! Checks of a helper's store: reading, refusing tags that do not hold, speed, and clock.
//!
//! The entry that it writes, `NAME.trafficcop-doctor`, stays: helpers delete nothing.

use std::time::Duration;

use time::OffsetDateTime;

use super::{Findings, clock, fail, of, ok, pace};
use crate::clock::Instant;
use crate::core::{Budget, Failure};
use crate::host;
use crate::lease::helper::{HelperLock, race};

/// Rounds in which eight writers use the same tag.
const ROUNDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn examine(findings: &mut Findings, helper: &str, name: &str, budget: &Budget) {
    let lock = match HelperLock::new(helper, name, host::path().as_deref()) {
        Ok(lock) => lock,
        Err(why) => return findings.add("helper", fail(why, "")),
    };
    let (helper, limit) = (lock.helper(), Instant::now() + LIMIT);
    let program = helper.program.display();
    findings.add("helper", ok(&program));
    let races = race(helper, ROUNDS, limit);
    let found = races.as_ref().map(|_| {
        format!("{ROUNDS} races of 8 writers with one tag had one winner each, and texts came back whole")
    });
    let advice = match &races {
        Err(Failure::Transient { .. }) => format!("try its calls by hand: {program} get {name}"),
        _ => String::new(),
    };
    findings.add("tags", of(found, &advice));
    if let Ok(took) = races {
        let slow = "the store is slow: take a longer --lease";
        let too_slow = "too slow for this lease: take a longer one, or a faster store";
        let what = "writes at the same time";
        findings.add("round trip", pace(&took, what, budget, [slow, too_slow]));
        // A renewal reads and writes; a standby reads.
        let calls = 60 / budget.renew_every.as_secs().max(1) * 2;
        let found = format!("a holder runs the helper {calls} times a minute, a standby 30 times");
        findings.add("cost", ok(found));
    }
    let asked = OffsetDateTime::now_utc();
    let theirs = helper.time(limit).ok();
    let theirs = theirs.and_then(|seconds| i64::try_from(seconds).ok());
    let theirs = theirs.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    findings.add(
        "clock",
        match theirs {
            Some(theirs) => clock(asked, theirs, "the store's"),
            None => ok("the helper has no verb 'time', which only --once-per needs"),
        },
    );
}
