//! Checks of a storage account: permissions one by one, round trips, clock, and the container's properties.
//!
//! It must never write to the lock's blob. It tries all that competing needs on a blob beside it, which it must
//! delete. That one is no lock: it has no record.

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;

use super::{CheckResult, Finding, Findings, brief, fail, ok, pace, suffix, warn};
use crate::azure::{Account, Operation, ServiceError};
use crate::clock::Instant;
use crate::commands::look::LockView;
use crate::core::{Budget, Failure};
use crate::lease::blob::{
    Around, BlobApi, BlobInspector, LeaseState, Target, connect, data_warning, fresh_lease_id,
};
use crate::lease::inspect::Inspector as _;

// An operator who waits longer gives up before the verdict.
const SAMPLES: usize = 20;
const SAMPLING: Duration = Duration::from_secs(10);
// For the first token: the Azure CLI starts a Python program for it.
const TOKEN_LIMIT: Duration = Duration::from_secs(35);
// As long as an attempt to renew.
const LIMIT: Duration = Duration::from_secs(5);
// The shortest lease there is, in case this process dies with it.
const SECONDS: i32 = 15;

fn limit() -> Instant {
    Instant::now() + LIMIT
}

pub(super) async fn examine(
    findings: &mut Findings,
    target: &Target,
    account: &Account,
    budget: &Budget,
) {
    let endpoint = account.endpoint();
    let token = account.obtain(Instant::now() + TOKEN_LIMIT).await;
    // After the request: only now is known which of several ways led to a token.
    let kind = account.kind();
    let left = match token {
        Ok(left) => left.map(|left| format!(", a token for {} min", left.as_secs() / 60)),
        Err(ServiceError::Denied(why)) => {
            return findings.add("credential", fail(why, "run would end with 77"));
        }
        Err(error) => {
            let advice = "check AZURE_AUTHORITY_HOST, the network and its proxies";
            return findings.add("credential", fail(error.why(), advice));
        }
    };
    let found = format!("{kind} for {endpoint}{}", left.unwrap_or_default());
    findings.add(
        "credential",
        match account.sas_end() {
            Some((end, true)) => warn(
                format!("{found}: {end}"),
                "replace it, and start every instance again",
            ),
            Some((end, false)) => ok(format!("{found}: {end}")),
            None => ok(found),
        },
    );
    let opened = BlobInspector::open(target.clone(), account).and_then(|lock| {
        let beside = target.with_suffix(&suffix())?;
        Ok((lock, connect(&beside, account)?))
    });
    let (lock, (name, client)) = match opened {
        Ok(opened) => opened,
        Err(why) => return findings.add("lock", fail(why, "shorten its name")),
    };
    let probe = Probe {
        name,
        client,
        lease: fresh_lease_id(),
    };
    let Some(mut around) = reach(findings, target, &probe.client).await else {
        return;
    };
    if !look(findings, &lock).await {
        return;
    }
    // Its holder would lose control because of a check.
    if account.is_for_one_blob() {
        let found = "the SAS is for this blob only, so the checks on a blob beside it are left out";
        let advice = "run needs read, create and write (sp=rcw)";
        findings.add("permissions", warn(found, advice));
    } else {
        permissions(findings, &probe, budget, &mut around).await;
    }
    if let Some(around) = around {
        surroundings(findings, around, account);
    }
}

/// Returns what the service says of the container, if it may; `None`: go no further.
async fn reach(
    findings: &mut Findings,
    target: &Target,
    client: &BlobApi,
) -> Option<Option<Around>> {
    let begun = Instant::now();
    let asked = OffsetDateTime::now_utc();
    let answer = client.look_at_container(limit()).await;
    let took = brief(Instant::now().since(begun));
    let reached = ok(format!("the service answers, {took}"));
    match answer {
        Ok(around) => {
            findings.add("reach", reached);
            clock(findings, &around, asked);
            Some(Some(around))
        }
        Err(error) if error.code() == Some("ContainerNotFound") => {
            findings.add("reach", reached);
            let found = format!("there is no container {}", target.container());
            let advice = "create it and run doctor again, or let the first run create it, if its credential may; \
                 permissions in it cannot be checked before";
            findings.add("container", warn(found, advice));
            None
        }
        // A credential that may use a container may be refused its properties.
        Err(error) if error.is_refusal() => {
            findings.add("reach", reached);
            Some(None)
        }
        Err(error) => {
            let advice = "check the address, the network and its proxies";
            findings.add("reach", failed(&error, Operation::Look, advice));
            None
        }
    }
}

/// Returns `false` if other checks would end in the same way.
async fn look(findings: &mut Findings, lock: &BlobInspector) -> bool {
    let seen = match lock.look(limit()).await {
        Ok(seen) => seen,
        Err(why) => {
            let advice = match why {
                Failure::Fatal { .. } => "",
                _ => "try again",
            };
            let why = why.to_string();
            // Another account's key opens nothing; a SAS may still do other things.
            let nothing = ["AuthenticationFailed", "AuthorizationFailure"];
            let goes_on = !nothing.iter().any(|code| why.contains(code));
            findings.add("read", fail(why, advice));
            return goes_on;
        }
    };
    findings.add("read", ok("the properties of the lock's blob"));
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    if seen.data > 0 {
        findings.add("data", warn(data_warning(&view.name, seen.data), ""));
    }
    let repair = "set it to a number greater than every fencing token given out so far, or remove all \
         metadata trafficcop_* if no fencing token is in use";
    let lock = match &seen.problem {
        Some(problem) => fail(problem, if seen.foreign { "" } else { repair }),
        None => ok(view.line()),
    };
    findings.add("lock", lock);
    true
}

struct Probe {
    name: String,
    client: BlobApi,
    lease: String,
}

/// Tries everything that `run` does, once, on the probe.
async fn permissions(
    findings: &mut Findings,
    probe: &Probe,
    budget: &Budget,
    around: &mut Option<Around>,
) {
    let client = &probe.client;
    if let Err(error) = client.create_blob(None, limit()).await {
        // Even if the lock's blob exists: a permission for lease and record includes this.
        let finding = failed(&error, Operation::CreateBlob, "run needs it");
        findings.add("create", finding);
        let rest = "acquire, renew, write, release, break and delete were not tried";
        let advice = "they are tried on a blob beside the lock, which cannot be created";
        findings.add("permissions", warn(rest, advice));
        if error.is_unclear() {
            let _best_effort = client.delete(limit()).await;
        }
        return;
    }
    findings.add("create", ok("a blob beside the lock"));
    lease(findings, probe, budget).await;
    let asked = OffsetDateTime::now_utc();
    if let Ok(seen) = client.look_around(limit()).await {
        match around {
            Some(known) => known.versioned = seen.versioned,
            None => {
                clock(findings, &seen, asked);
                *around = Some(seen);
            }
        }
    }
    let deleted = match client.delete(limit()).await {
        Ok(()) => ok("the blob beside the lock (run never deletes)"),
        Err(error) => {
            let name = &probe.name;
            let advice = format!("run does not need it, but {name} is left behind: delete it");
            failed(&error, Operation::Delete, &advice).at_most_a_warning()
        }
    };
    findings.add("delete", deleted);
}

async fn lease(findings: &mut Findings, probe: &Probe, budget: &Budget) {
    let Probe { client, lease, .. } = probe;
    let acquired = client.acquire(lease, SECONDS, limit()).await;
    let is_leased = acquired.is_ok();
    findings.add(
        "acquire",
        tried(Operation::Acquire, acquired, "a lease on it"),
    );
    if !is_leased {
        return;
    }
    let renewed = client.renew(lease, limit()).await;
    findings.add("renew", tried(Operation::Renew, renewed, "the lease"));
    // No key of a record: a list must not take it for a lock.
    let metadata = HashMap::from([("trafficcop_doctor".to_owned(), "1".to_owned())]);
    let written = client.set_metadata(lease, None, &metadata, limit()).await;
    let what = "metadata under the lease";
    findings.add("write", tried(Operation::Record, written, what));
    findings.add("round-trip", round_trips(probe, budget).await);
    let released = client.release(lease, limit()).await;
    findings.add("release", tried(Operation::Release, released, "the lease"));
    // Under the same id, to release it if breaking is not allowed.
    if let Err(error) = client.acquire(lease, SECONDS, limit()).await {
        let again = "the lease cannot be acquired again after its release";
        return findings.add("acquire", fail(again, error.why()));
    }
    // Last: a credential that may not break can still release.
    let broken = async {
        client.break_lease(Some(0), None, limit()).await?;
        client.look(None, limit()).await
    };
    let broken = match broken.await {
        Ok(view) if view.lease == LeaseState::Free => ok("the lease"),
        Ok(_) => warn("the lease is still there: do not rely on it", ""),
        Err(error) => {
            let _best_effort = client.release(lease, limit()).await;
            let advice = "only 'trafficcop break' needs it, and a holder whose lease is broken";
            failed(&error, Operation::BreakLease, advice).at_most_a_warning()
        }
    };
    findings.add("break", broken);
}

async fn round_trips(probe: &Probe, budget: &Budget) -> Finding {
    let end = Instant::now() + SAMPLING;
    let mut samples = Vec::new();
    let mut last = None;
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        if begun >= end {
            break;
        }
        match probe.client.renew(&probe.lease, limit()).await {
            Ok(_) => samples.push(Instant::now().since(begun)),
            Err(error) => last = Some(error.why()),
        }
    }
    judge(&samples, last.as_deref(), budget)
}

fn judge(samples: &[Duration], failed: Option<&str>, budget: &Budget) -> Finding {
    let longer = match budget.lease < *crate::config::BLOB_LEASE.end() {
        true => " or take a longer --lease",
        false => "",
    };
    let slow = format!("slow: use an account in this region{longer}");
    let too_slow = format!("renewals would fail: use an account in this region{longer}");
    let mut finding = pace(samples, "renewals", budget, [&slow, &too_slow]);
    match failed {
        Some(why) if finding.verdict == CheckResult::Fail => finding.found += &format!(" ({why})"),
        Some(why) => {
            let found = format!("{}; one failed: {why}", finding.found);
            let advice = "run retries that for a limited time: check whether it happens often";
            return warn(found, advice);
        }
        None => {}
    }
    finding
}

fn clock(findings: &mut Findings, around: &Around, asked: OffsetDateTime) {
    if let Some(theirs) = around.date {
        findings.add("clock", super::clock(asked, theirs, "the service's"));
    }
}

fn surroundings(findings: &mut Findings, around: Around, account: &Account) {
    let server = around.server.unwrap_or_default();
    if server.contains("Azurite") || account.kind() == "emulator key" {
        let found = format!("this is the emulator ({server})");
        let advice = "it loses leases when it is restarted: use it for tests only";
        findings.add("emulator", warn(found, advice));
    }
    let changes = match around.immutable {
        None => ok("the container has no policy and no legal hold"),
        Some(what) => fail(
            format!("the container has {what}"),
            "the record cannot be written: use a container without",
        ),
    };
    findings.add("immutability", changes);
    if around.versioned {
        let found = "is on: each tenure leaves one or two versions of the blob behind";
        let advice =
            "they are empty, but many: let a lifecycle rule delete them, or use an account without";
        findings.add("versioning", warn(found, advice));
    }
}

fn tried<T>(operation: Operation, went: Result<T, ServiceError>, what: &str) -> Finding {
    match went {
        Ok(_) => ok(what),
        Err(error) => failed(&error, operation, "run needs it"),
    }
}

fn failed(error: &ServiceError, operation: Operation, advice: &str) -> Finding {
    let known = error.advice(operation).map(|known| format!("{known}; "));
    fail(error.why(), known.unwrap_or_default() + advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_judged_by_the_room_that_the_lease_leaves() {
        let verdict = |millis: &[u64], failed, secs| {
            let samples: Vec<_> = millis.iter().copied().map(Duration::from_millis).collect();
            judge(
                &samples,
                failed,
                &Budget::for_lease(Duration::from_secs(secs)),
            )
            .verdict
        };
        assert_eq!(verdict(&[5; 20], None, 60), CheckResult::Ok);
        assert_eq!(
            verdict(&[5; 20], Some("no answer in time"), 60),
            CheckResult::Warn
        );
        assert_eq!(verdict(&[1_000; 20], None, 60), CheckResult::Ok);
        assert_eq!(verdict(&[1_000; 20], None, 15), CheckResult::Warn);
        assert_eq!(verdict(&[2_000; 20], None, 60), CheckResult::Warn);
        assert_eq!(verdict(&[2_000; 20], None, 15), CheckResult::Fail);
        assert_eq!(
            verdict(&[], Some("no answer in time"), 60),
            CheckResult::Fail
        );
    }
}
