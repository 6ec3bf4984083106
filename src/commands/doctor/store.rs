//! Checks of a helper's store: reading, refusing tags that do not hold, speed, and clock.
//!
//! The entry that it writes, `NAME.trafficcop-doctor`, stays: helpers delete nothing.

use std::time::Duration;

use time::OffsetDateTime;

use super::{Check, Findings, clock, pace};
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
        Err(why) => return findings.add(Check::fail("helper", why.to_string(), "")),
    };
    let (helper, limit) = (lock.helper(), Instant::now() + LIMIT);
    findings.add(Check::ok("helper", helper.program.display().to_string()));
    let races = race(helper, ROUNDS, limit);
    let found = races.as_ref().map(|_| {
        format!("{ROUNDS} races of 8 writers with one tag had one winner each, and texts came back whole")
    });
    let program = helper.program.display();
    let advice = match &races {
        Err(Failure::Transient { .. }) => format!("try its calls by hand: {program} get {name}"),
        _ => String::new(),
    };
    findings.add(Check::of("tags", found, &advice));
    if let Ok(took) = races {
        let slow = "the store is slow: take a longer --lease";
        let too_slow = "too slow for this lease: take a longer one, or a faster store";
        findings.add(pace(
            "round trip",
            &took,
            "writes at the same time",
            budget,
            [slow, too_slow],
        ));
        // A renewal reads and writes; a standby reads.
        let renewals = 60 / budget.renew_every.as_secs().max(1);
        findings.add(Check::ok(
            "cost",
            format!(
                "a holder runs the helper {} times a minute, a standby 30 times",
                renewals * 2
            ),
        ));
    }
    let asked = OffsetDateTime::now_utc();
    let seconds = helper
        .time(limit)
        .ok()
        .and_then(|seconds| i64::try_from(seconds).ok());
    findings.add(match seconds.map(OffsetDateTime::from_unix_timestamp) {
        Some(Ok(theirs)) => clock(asked, theirs, "the store's"),
        _ => Check::ok(
            "clock",
            "the helper has no verb 'time', which only --once-per needs",
        ),
    });
}
