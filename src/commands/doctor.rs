//! `trafficcop doctor`: checks whether `run` would work here, and if not, why. It forks a guardian, so main calls
//! it while the process has one thread.
//!
//! It must never touch the lock itself, except to look and, on a shared drive, to try whether this user could
//! take it over. It must leave nothing behind, except a helper's entry.

mod blob;
mod file;
mod store;

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::{LockTarget, answer};
use crate::args;
use crate::azure::Account;
use crate::clock::Instant;
use crate::commands;
use crate::config::{self, Lock, UsageError};
use crate::core::{Bell, Budget, Ring};
use crate::doorbell::{Doorbell, DoorbellAddress, Unbound};
use crate::exit::{self, ExitAction};
use crate::guardian::containment::{Cgroup, Pidns};
use crate::guardian::{self, Contain, Program, Setup};
use crate::host::variable;
use crate::lease;
use crate::lease::blob::Target;
use crate::lease::inspect::LockState;
use crate::report;
use crate::units::show;
use crate::util::absolute;

/// Results from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    #[default]
    Ok,
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    verdict: CheckResult,
    found: String,
    advice: Option<String>,
}

impl Finding {
    fn new(verdict: CheckResult, found: impl Display, advice: impl Into<String>) -> Finding {
        Finding {
            verdict,
            found: found.to_string(),
            advice: Some(advice.into()).filter(|text| !text.is_empty()),
        }
    }

    fn at_most_a_warning(mut self) -> Finding {
        self.verdict = self.verdict.min(CheckResult::Warn);
        self
    }
}

fn ok(found: impl Display) -> Finding {
    Finding::new(CheckResult::Ok, found, "")
}

fn warn(found: impl Display, advice: impl Into<String>) -> Finding {
    Finding::new(CheckResult::Warn, found, advice)
}

fn fail(found: impl Display, advice: impl Into<String>) -> Finding {
    Finding::new(CheckResult::Fail, found, advice)
}

/// Makes a finding of an attempt; `advice` is for its failure.
fn of<E: Display>(went: Result<impl Display, E>, advice: &str) -> Finding {
    match went {
        Ok(found) => ok(found),
        Err(why) => fail(format_args!("{why:#}"), advice),
    }
}

#[derive(Serialize)]
struct Check {
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

impl Check {
    fn line(&self) -> String {
        let Finding {
            verdict,
            found,
            advice,
        } = &self.finding;
        let verdict = ["ok", "warn", "fail"][*verdict as usize];
        let advice = advice.as_ref().map(|text| format!(": {text}"));
        let text = report::plain(&(found.clone() + &advice.unwrap_or_default()));
        format!("{verdict:<4}  {:<13}  {text}\n", self.check)
    }
}

/// Results, printed as they come, or as JSON at the end.
#[derive(Default, Serialize)]
struct Findings {
    lock: String,
    verdict: CheckResult,
    checks: Vec<Check>,
    #[serde(skip)]
    json: bool,
    /// Set when stdout has no reader any more, or cannot be written.
    #[serde(skip)]
    cut_short: Option<anyhow::Result<ExitAction>>,
}

impl Findings {
    fn new(lock: String, json: bool) -> Findings {
        Findings {
            lock,
            json,
            ..Findings::default()
        }
    }

    fn add(&mut self, check: &'static str, finding: Finding) {
        self.verdict = self.verdict.max(finding.verdict);
        let check = Check { check, finding };
        // At once: if a check hangs, the lines before it show which.
        if !self.json && self.cut_short.is_none() {
            match answer(&check.line(), ExitAction::Status(0)) {
                Ok(ExitAction::Status(_)) => {}
                otherwise => self.cut_short = Some(otherwise),
            }
        }
        self.checks.push(check);
    }

    fn finish(mut self) -> anyhow::Result<ExitAction> {
        if let Some(cut_short) = self.cut_short.take() {
            return cut_short;
        }
        let leave = ExitAction::Status(match self.verdict {
            CheckResult::Ok | CheckResult::Warn => 0,
            CheckResult::Fail => exit::UNFIT,
        });
        match self.json {
            true => answer(&(serde_json::to_string(&self)? + "\n"), leave),
            false => Ok(leave),
        }
    }
}

pub(crate) fn doctor(typed: &args::Doctor) -> anyhow::Result<ExitAction> {
    let named = commands::named(&typed.lock)?;
    let on_blob = matches!(named, Lock::Blob { .. });
    let budget = config::budget(&typed.lease, on_blob, &None, &None)?;
    let wanted = typed.doorbell.clone().transpose()?;
    let begin = |lock: String| {
        let mut findings = Findings::new(lock, typed.json);
        examine_machine(&mut findings);
        findings
    };
    let mut findings = match named {
        Lock::Blob {
            target, options, ..
        } => {
            let target = Target::parse(&target).map_err(|why| UsageError::new(why.to_string()))?;
            let mut findings = begin(format!("{}/{}", target.container(), target.name()));
            match Account::find(&variable, &options, target.url()) {
                Ok(account) => {
                    commands::run(async {
                        blob::examine(&mut findings, &target, &account, &budget).await;
                        Ok(())
                    })?;
                }
                Err(why) => {
                    findings.add("credential", fail(why, ""));
                    return findings.finish();
                }
            }
            findings
        }
        Lock::File { path, .. } => {
            let path = absolute(&path)?;
            let mut findings = begin(path.display().to_string());
            file::examine(&mut findings, &path, &budget, typed.mkdir_is_exclusive);
            findings
        }
        Lock::Store { helper, name } => {
            let mut findings = begin(format!("{helper}:{name}"));
            store::examine(&mut findings, &helper, &name, &budget);
            findings
        }
    };
    if let Some(wanted) = wanted {
        let target = LockTarget::of(&typed.lock)?;
        if target.info.uses_doorbell {
            commands::run(examine_doorbell(&mut findings, wanted, &target))?;
        } else {
            let found = "does nothing here: on a local file the kernel wakes the standby";
            findings.add(DOORBELL, ok(found));
        }
    }
    findings.finish()
}

/// Answers, as the second process, whether the file is locked.
pub(crate) fn find_locked(typed: &args::FindLocked) -> anyhow::Result<ExitAction> {
    Ok(match lease::file::Probe::is_excluded(&typed.path)? {
        true => ExitAction::Status(0),
        false => ExitAction::Status(file::NOT_LOCKED),
    })
}

/// Forks a guardian and ends it, so no second thread may exist yet.
fn examine_machine(findings: &mut Findings) {
    // Before the guardian: attending to it takes a runtime, which has threads.
    let cgroup = Cgroup::available();
    let pidns = Pidns::available();
    let took = guardian().map(|took| format!("forked and answered in {}", brief(took)));
    let limits = "check the limits (ulimit -a, LimitNOFILE=, pids.max)";
    findings.add("guardian", of(took, limits));
    let cgroup = cgroup.map(|()| "available: --contain auto uses one");
    let without = "without it --contain auto kills process by process";
    findings.add("cgroup", of(cgroup, without).at_most_a_warning());
    let pidns = pidns.map(|_| "available with --contain pidns");
    let needed = "needed only for --contain pidns";
    findings.add("pidns", of(pidns, needed).at_most_a_warning());
}

/// Measures the fork of a guardian.
fn guardian() -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let programs = vec![Program::handler(vec!["true".into()])];
    let guardian = guardian::fork(Setup::new(programs, Contain::None, Duration::ZERO))?;
    commands::run(async {
        let handle = guardian.attend()?;
        let took = Instant::now().since(begun);
        handle.dismiss().await;
        Ok(took)
    })
}

/// Returns the time of one attempt to renew that leaves room for a second.
fn attempt_limit(budget: &Budget) -> Duration {
    // As the core divides it.
    let term_after = budget.lease - budget.margin - budget.grace_on_loss;
    crate::core::budget::ATTEMPT.min(term_after.saturating_sub(budget.renew_every) / 2)
}

fn pace(samples: &[Duration], what: &str, budget: &Budget, [slow, too_slow]: [&str; 2]) -> Finding {
    let (p50, p99) = (percentile(samples, 50), percentile(samples, 99));
    let limit = attempt_limit(budget);
    let found = format!(
        "p50 {}, p99 {} of {} {what}; an attempt to renew may take {} with --lease {}",
        brief(p50),
        brief(p99),
        samples.len(),
        brief(limit),
        show(budget.lease)
    );
    // A renewal on a shared drive is two such requests.
    match () {
        () if samples.is_empty() || p50 * 2 >= limit => fail(found, too_slow),
        () if p99 * 4 >= limit => warn(found, slow),
        () => ok(found),
    }
}

/// Compares this machine's clock with the store's, which was `asked` then and answers now.
fn clock(asked: OffsetDateTime, theirs: OffsetDateTime, whose: &str) -> Finding {
    let now = OffsetDateTime::now_utc();
    // The answer is to the second, from some moment between question and answer.
    let skew = if theirs + time::Duration::SECOND < asked {
        asked - theirs
    } else {
        (theirs - now).max(time::Duration::ZERO)
    };
    let secs = Duration::from_secs(skew.whole_seconds().unsigned_abs());
    let found = format!("differs from {whose} by {}", show(secs));
    match secs.as_secs() {
        0..=2 => ok(format!("agrees with {whose}")),
        3..=60 => ok(found),
        _ => warn(
            found,
            "the lock is not affected, but times in logs and records are: synchronise the clocks",
        ),
    }
}

/// Returns a name's ending, different for each doctor.
fn suffix() -> String {
    format!(".trafficcop-doctor-{:08x}", fastrand::u32(..))
}

fn percentile(samples: &[Duration], part: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    // Nearest rank, never an unmeasured number.
    let at = (sorted.len() * part).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

fn brief(span: Duration) -> String {
    match span.as_micros() {
        micros @ ..10_000 => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
        micros @ ..1_000_000 => format!("{} ms", micros / 1000),
        micros => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

const DOORBELL: &str = "doorbell";
// Longer than a doorbell itself waits for an answer.
const RING_TIMEOUT: Duration = Duration::from_secs(5);

async fn examine_doorbell(
    findings: &mut Findings,
    wanted: DoorbellAddress,
    target: &LockTarget,
) -> anyhow::Result<()> {
    let rung = ring(wanted, target.info.host.as_deref()).await;
    findings.add(DOORBELL, rung.unwrap_or_else(|why| fail(why, "")));
    // An earlier check has reported it.
    let Ok(holder) = target.look_patiently(target.limit()).await else {
        return Ok(());
    };
    let record = holder
        .record
        .filter(|_| holder.state == LockState::Held && !holder.foreign);
    if let Some(bell) = record.and_then(|record| record.bell.parse::<Bell>().ok()) {
        let heard = listen(bell).await;
        findings.add(DOORBELL, heard.unwrap_or_else(|why| fail(why, "")));
    }
    Ok(())
}

async fn ring(wanted: DoorbellAddress, host: Option<&str>) -> Result<Finding, Unbound> {
    let mut ours = Doorbell::bind(wanted, host)?;
    let bell = ours.bell();
    let address = bell.address;
    if !bell.is_near() {
        let found = format!(
            "would ring at {address}, which is no private address: no standby connects to it"
        );
        return Ok(warn(found, "name one with --doorbell=ADDR"));
    }
    if let Err(why) = ours.open() {
        let found = format!("cannot listen at {address}: {why}");
        return Ok(fail(found, "name another with --doorbell=ADDR"));
    }
    let standby = DoorbellAddress {
        ip: Some(address.ip()),
        port: 0,
    };
    Ok(match is_heard(bell, standby, host).await? {
        true => ok(format!("rings at {address}, and is heard on this machine")),
        false => fail(
            format!("rings at {address}, and is not heard on this machine"),
            "check whether a firewall drops this machine's own packets",
        ),
    })
}

async fn listen(bell: Bell) -> Result<Finding, Unbound> {
    let address = bell.address;
    if !bell.is_near() {
        let found = format!(
            "the holder's at {address} is no private address, so no standby connects to it"
        );
        return Ok(warn(found, "give the holder one with --doorbell=ADDR"));
    }
    Ok(
        match is_heard(bell, DoorbellAddress::default(), None).await? {
            true => ok(format!("the holder's at {address} is heard here")),
            false => warn(
                format!("the holder's at {address} is not heard here: a standby polls as usual"),
                "check the firewalls in between",
            ),
        },
    )
}

async fn is_heard(bell: Bell, place: DoorbellAddress, host: Option<&str>) -> Result<bool, Unbound> {
    let mut standby = Doorbell::bind(place, host)?;
    standby.attend(Some(bell));
    let ring = tokio::time::timeout(RING_TIMEOUT, standby.next()).await;
    Ok(matches!(ring, Ok(Ring::Greeted { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_limit_leaves_room_for_a_second_attempt() {
        let limit = |secs| attempt_limit(&Budget::for_lease(Duration::from_secs(secs)));
        assert_eq!(limit(60), Duration::from_secs(5));
        assert_eq!(limit(30), Duration::from_secs(5));
        assert_eq!(limit(15), Duration::from_secs(3));
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let millis = |n: u64| Duration::from_millis(n);
        let samples: Vec<_> = (1..=20).rev().map(millis).collect();
        for (samples, p50, p99) in [(&samples[..], 10, 20), (&samples[..1], 20, 20), (&[], 0, 0)] {
            assert_eq!(percentile(samples, 50), millis(p50));
            assert_eq!(percentile(samples, 99), millis(p99));
        }
        assert_eq!(brief(Duration::from_micros(1_234)), "1.2 ms");
        assert_eq!(brief(millis(45)), "45 ms");
        assert_eq!(brief(millis(1_650)), "1.6 s");
    }

    #[test]
    fn the_worst_check_is_the_verdict() {
        let (good, bad) = (ok("x"), fail("x", "do"));
        let leave = |checks: [&Finding; 2]| {
            let mut findings = Findings::new(String::new(), false);
            for finding in checks {
                findings.add("a", finding.clone());
            }
            findings.finish().unwrap()
        };
        assert_eq!(leave([&good, &warn("x", "do")]), ExitAction::Status(0));
        assert_eq!(leave([&bad, &good]), ExitAction::Status(1));
        let check = Check {
            check: "c",
            finding: bad,
        };
        assert!(check.line().starts_with("fail  c ") && check.line().ends_with("x: do\n"));
    }

    #[test]
    fn clock_skew_is_at_most_a_warning() {
        let now = OffsetDateTime::now_utc();
        for (secs, verdict) in [
            (0, CheckResult::Ok),
            (59, CheckResult::Ok),
            (120, CheckResult::Warn),
            (1200, CheckResult::Warn),
        ] {
            let off = time::Duration::seconds(secs);
            assert_eq!(clock(now, now - off, "a").verdict, verdict, "{secs} behind");
            // The check reads its clock a moment later.
            let off = off + time::Duration::SECOND;
            assert_eq!(clock(now, now + off, "a").verdict, verdict, "{secs} ahead");
        }
    }
}
