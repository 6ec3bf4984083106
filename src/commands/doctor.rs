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
use crate::clock::Instant;
use crate::commands;
use crate::config::{self, Named, UsageError};
use crate::core::{Bell, Budget, Ring};
use crate::doorbell::{Doorbell, DoorbellAddress};
use crate::exit::{self, ExitAction};
use crate::guardian::containment::{Cgroup, Pidns};
use crate::guardian::{self, Contain, Program, Setup};
use crate::lease;
use crate::lease::inspect::LockState;
use crate::report;
use crate::units::show;
use crate::util::absolute;

/// Results from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    Ok,
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    verdict: CheckResult,
    found: String,
    advice: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Check {
        Check {
            check,
            verdict: CheckResult::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check::fail(check, found, advice).at_most_a_warning()
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            verdict: CheckResult::Fail,
            advice: Some(advice.into()).filter(|text| !text.is_empty()),
            ..Check::ok(check, found)
        }
    }

    fn of<T: Into<String>, E: Display>(
        check: &'static str,
        went: Result<T, E>,
        advice: &str,
    ) -> Check {
        match went {
            Ok(found) => Check::ok(check, found),
            Err(why) => Check::fail(check, format!("{why:#}"), advice),
        }
    }

    fn at_most_a_warning(mut self) -> Check {
        self.verdict = self.verdict.min(CheckResult::Warn);
        self
    }

    fn line(&self) -> String {
        let verdict = ["ok", "warn", "fail"][self.verdict as usize];
        let advice = self.advice.as_ref().map(|text| format!(": {text}"));
        let text = report::plain(&(self.found.clone() + &advice.unwrap_or_default()));
        format!("{verdict:<4}  {:<13}  {text}\n", self.check)
    }
}

/// Results of all checks, printed as they come, or as JSON at the end.
#[derive(Serialize)]
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
            verdict: CheckResult::Ok,
            checks: Vec::new(),
            json,
            cut_short: None,
        }
    }

    fn add(&mut self, check: Check) {
        // At once: if a check hangs, the lines before it show which.
        if !self.json && self.cut_short.is_none() {
            match answer(&check.line(), ExitAction::Status(0)) {
                Ok(ExitAction::Status(_)) => {}
                otherwise => self.cut_short = Some(otherwise),
            }
        }
        self.verdict = self.verdict.max(check.verdict);
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
    let on_blob = matches!(named, Named::Blob(_));
    let budget = config::budget(&typed.lease, on_blob, &None, &None)?;
    let wanted = typed.doorbell.clone().transpose()?;
    let mut host = None;
    let mut findings = match named {
        Named::Blob(text) => {
            let target =
                lease::blob::Target::parse(text).map_err(|why| UsageError::new(why.to_string()))?;
            let lock = format!("{}/{}", target.container(), target.name());
            let mut findings = Findings::new(lock, typed.json);
            examine_machine(&mut findings);
            match commands::account(&target, typed.lock.emulator, &typed.lock.access) {
                Ok(account) => {
                    host = account.endpoint().host_str().map(str::to_owned);
                    commands::run(async {
                        blob::examine(&mut findings, &target, &account, &budget).await;
                        Ok(())
                    })?;
                }
                Err(why) => {
                    findings.add(Check::fail("credential", why.to_string(), ""));
                    return findings.finish();
                }
            }
            findings
        }
        Named::File(path) => {
            let path = absolute(path)?;
            let mut findings = Findings::new(path.display().to_string(), typed.json);
            examine_machine(&mut findings);
            file::examine(&mut findings, &path, &budget, typed.mkdir_is_exclusive);
            findings
        }
        Named::Store(helper, name) => {
            let mut findings = Findings::new(format!("{helper}:{name}"), typed.json);
            examine_machine(&mut findings);
            store::examine(&mut findings, helper, name, &budget);
            findings
        }
    };
    if let Some(wanted) = wanted {
        let path = typed.lock.file.as_deref();
        let lock = path
            .map(|path| lease::at_path(path, false, 1))
            .transpose()?;
        if lock.is_some_and(|lock| !lock.rings()) {
            let found = "does nothing here: on a local file the kernel wakes the standby";
            findings.add(Check::ok(DOORBELL, found));
        } else {
            let target = LockTarget::of(&typed.lock)?;
            let host = host.as_deref();
            commands::run(examine_doorbell(&mut findings, wanted, host, &target))?;
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
    findings.add(Check::of("guardian", took, limits));
    let cgroup = cgroup.map(|()| "available: --contain auto uses one");
    let without = "without it --contain auto kills process by process";
    findings.add(Check::of("cgroup", cgroup, without).at_most_a_warning());
    let pidns = pidns.map(|_| "available with --contain pidns");
    let needed = "needed only for --contain pidns";
    findings.add(Check::of("pidns", pidns, needed).at_most_a_warning());
}

/// Measures the fork of a guardian, and dismisses it.
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

fn pace(
    check: &'static str,
    samples: &[Duration],
    what: &str,
    budget: &Budget,
    [slow, too_slow]: [&str; 2],
) -> Check {
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
        () if samples.is_empty() || p50 * 2 >= limit => Check::fail(check, found, too_slow),
        () if p99 * 4 >= limit => Check::warn(check, found, slow),
        () => Check::ok(check, found),
    }
}

/// Compares this machine's clock with the store's, which was `asked` then and answers now.
fn clock(asked: OffsetDateTime, theirs: OffsetDateTime, whose: &str) -> Check {
    const NAME: &str = "clock";
    let now = OffsetDateTime::now_utc();
    // The answer is to the second, from some moment between question and answer.
    let skew = if theirs + time::Duration::SECOND < asked {
        asked - theirs
    } else if theirs > now {
        theirs - now
    } else {
        time::Duration::ZERO
    };
    let secs = Duration::from_secs(skew.whole_seconds().unsigned_abs());
    let found = format!("differs from {whose} by {}", show(secs));
    match secs.as_secs() {
        0..=2 => Check::ok(NAME, format!("agrees with {whose}")),
        3..=60 => Check::ok(NAME, found),
        _ => Check::warn(
            NAME,
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
    host: Option<&str>,
    target: &LockTarget,
) -> anyhow::Result<()> {
    findings.add(match Doorbell::bind(wanted, host) {
        Ok(ours) => ring(ours, host).await,
        Err(why) => Check::fail(DOORBELL, why.to_string(), ""),
    });
    // An earlier check has reported it.
    let Ok(holder) = target.look_patiently(target.limit()).await else {
        return Ok(());
    };
    let record = holder
        .record
        .filter(|_| holder.state == LockState::Held && !holder.foreign);
    let bell = record.and_then(|record| record.bell.parse::<Bell>().ok());
    if let Some(bell) = bell {
        findings.add(listen(bell).await);
    }
    Ok(())
}

async fn ring(mut ours: Doorbell, host: Option<&str>) -> Check {
    let address = ours.bell().address;
    if !ours.bell().is_near() {
        return Check::warn(
            DOORBELL,
            format!(
                "would ring at {address}, which is no private address: no standby connects to it"
            ),
            "name one with --doorbell=ADDR",
        );
    }
    if let Err(why) = ours.open() {
        let found = format!("cannot listen at {address}: {why}");
        return Check::fail(DOORBELL, found, "name another with --doorbell=ADDR");
    }
    let standby = DoorbellAddress {
        ip: Some(address.ip()),
        port: 0,
    };
    let heard = match Doorbell::bind(standby, host) {
        Ok(mut standby) => heard(&mut standby, ours.bell()).await,
        Err(why) => return Check::fail(DOORBELL, why.to_string(), ""),
    };
    match heard {
        true => Check::ok(
            DOORBELL,
            format!("rings at {address}, and is heard on this machine"),
        ),
        false => Check::fail(
            DOORBELL,
            format!("rings at {address}, and is not heard on this machine"),
            "check whether a firewall drops this machine's own packets",
        ),
    }
}

async fn listen(bell: Bell) -> Check {
    let address = bell.address;
    if !bell.is_near() {
        return Check::warn(
            DOORBELL,
            format!(
                "the holder's at {address} is no private address, so no standby connects to it"
            ),
            "give the holder one with --doorbell=ADDR",
        );
    }
    let standby = Doorbell::bind(DoorbellAddress::default(), None);
    let heard = match standby {
        Ok(mut standby) => heard(&mut standby, bell).await,
        Err(why) => return Check::fail(DOORBELL, why.to_string(), ""),
    };
    match heard {
        true => Check::ok(DOORBELL, format!("the holder's at {address} is heard here")),
        false => Check::warn(
            DOORBELL,
            format!("the holder's at {address} is not heard here: a standby polls as usual"),
            "check the firewalls in between",
        ),
    }
}

async fn heard(standby: &mut Doorbell, bell: Bell) -> bool {
    standby.attend(Some(bell));
    let ring = tokio::time::timeout(RING_TIMEOUT, standby.next()).await;
    matches!(ring, Ok(Ring::Greeted { .. }))
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
        let ok = Check::ok("a", "x");
        let warn = Check::warn("b", "x", "do");
        let fail = Check::fail("c", "x", "do");
        let leave = |checks: [&Check; 2]| {
            let mut findings = Findings::new(String::new(), false);
            for check in checks {
                findings.add(check.clone());
            }
            findings.finish().unwrap()
        };
        assert_eq!(leave([&ok, &warn]), ExitAction::Status(0));
        assert_eq!(leave([&fail, &ok]), ExitAction::Status(1));
        assert!(fail.line().starts_with("fail  c ") && fail.line().ends_with("x: do\n"));
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
