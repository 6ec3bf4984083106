//! `trafficcop doctor`: would `run` work here, and if not, why. Called by main while the process has
//! one thread, because it forks a guardian to see that it can.
//!
//! It must never touch the lock itself, but for looking at it, and must leave nothing behind.

mod blob;
mod doorbell;
mod file;

use std::time::Duration;

use serde::Serialize;

use super::lock_target::{self, LockTarget, Named, answer};
use crate::args::{self, Checked};
use crate::clock::Instant;
use crate::config::{self, UsageError};
use crate::core::Budget;
use crate::exit::{self, ExitAction};
use crate::guardian::containment::{Cgroup, Pidns};
use crate::guardian::{self, Contain, Program, Setup};
use crate::lease;
use crate::report;
use crate::units::show;

/// How a check ended, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    Ok,
    Warn,
    Fail,
}

/// One line.
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
        Check::fail(check, found, advice).only_a_warning()
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            verdict: CheckResult::Fail,
            advice: Some(advice.into()).filter(|text| !text.is_empty()),
            ..Check::ok(check, found)
        }
    }

    fn only_a_warning(self) -> Check {
        Check {
            verdict: CheckResult::Warn,
            ..self
        }
    }

    fn line(&self) -> String {
        let verdict = match self.verdict {
            CheckResult::Ok => "ok",
            CheckResult::Warn => "warn",
            CheckResult::Fail => "fail",
        };
        let advice = self.advice.as_ref().map(|text| format!(": {text}"));
        let text = report::plain(&(self.found.clone() + &advice.unwrap_or_default()));
        format!("{verdict:<4}  {:<13}  {text}\n", self.check)
    }
}

/// All of them, printed as they come.
struct Findings {
    lock: String,
    json: bool,
    checks: Vec<Check>,
    /// Nobody reads us any more, or nothing can be written: how to leave.
    cut_short: Option<anyhow::Result<ExitAction>>,
}

/// The whole, as JSON.
#[derive(Serialize)]
struct Whole<'a> {
    lock: &'a str,
    verdict: CheckResult,
    checks: &'a [Check],
}

impl Findings {
    fn add(&mut self, check: Check) {
        // At once: of a check that hangs one sees which it is by what came before it.
        if !self.json && self.cut_short.is_none() {
            match answer(&check.line(), ExitAction::Status(0)) {
                Ok(ExitAction::Status(_)) => {}
                otherwise => self.cut_short = Some(otherwise),
            }
        }
        self.checks.push(check);
    }

    fn finish(self) -> anyhow::Result<ExitAction> {
        if let Some(cut_short) = self.cut_short {
            return cut_short;
        }
        let worst = self.checks.iter().map(|check| check.verdict).max();
        let verdict = worst.unwrap_or(CheckResult::Ok);
        let leave = match verdict {
            CheckResult::Ok | CheckResult::Warn => ExitAction::Status(0),
            CheckResult::Fail => ExitAction::Status(exit::UNFIT),
        };
        if !self.json {
            return Ok(leave);
        }
        let whole = Whole {
            lock: &self.lock,
            verdict,
            checks: &self.checks,
        };
        answer(&(serde_json::to_string(&whole)? + "\n"), leave)
    }
}

/// Examines.
///
/// # Errors
/// A [`UsageError`], or where the answer cannot be written.
pub(crate) fn doctor(typed: &args::Doctor) -> anyhow::Result<ExitAction> {
    let named = lock_target::named(typed.lock.blob.as_deref(), typed.lock.file.as_deref())?;
    let budget = budget(typed.lease.clone(), matches!(named, Named::Blob(_)))?;
    let wanted = typed.doorbell.clone().transpose()?;
    let findings = |lock: String| Findings {
        lock,
        json: typed.json,
        checks: Vec::new(),
        cut_short: None,
    };
    match named {
        Named::Blob(text) => {
            let target =
                lease::blob::Target::parse(text).map_err(|why| UsageError::new(why.to_string()))?;
            let name = format!("{}/{}", target.container(), target.name());
            let mut findings = findings(name);
            examine_machine(&mut findings);
            match lock_target::account(&target, typed.lock.emulator, &typed.lock.access) {
                Ok(account) => lock_target::run(async {
                    blob::examine(&mut findings, &target, &account, &budget).await;
                    if let Some(wanted) = wanted {
                        let host = account.endpoint().host_str();
                        let target = LockTarget::of(&typed.lock)?;
                        doorbell::examine(&mut findings, wanted, host, &target).await?;
                    }
                    Ok(())
                })?,
                Err(why) => findings.add(Check::fail("credential", why.to_string(), "")),
            }
            findings.finish()
        }
        Named::File(path) => {
            lock_target::refuse_access(typed.lock.emulator, &typed.lock.access)?;
            let path = std::path::absolute(path)?;
            let mut findings = findings(path.display().to_string());
            examine_machine(&mut findings);
            file::examine(&mut findings, &path, &budget);
            if let Some(wanted) = wanted {
                let target = LockTarget::of(&typed.lock)?;
                lock_target::run(doorbell::examine(&mut findings, wanted, None, &target))?;
            }
            findings.finish()
        }
    }
}

/// The second process: whether it finds the file locked.
///
/// # Errors
/// The kernel's.
pub(crate) fn find_locked(typed: &args::FindLocked) -> anyhow::Result<ExitAction> {
    Ok(match lease::file::Probe::is_excluded(&typed.path)? {
        true => ExitAction::Status(0),
        false => ExitAction::Status(file::NOT_LOCKED),
    })
}

/// What `run` needs of the machine, whatever the store. Before there is a second thread: forks a guardian and
/// ends it, tries each containment.
fn examine_machine(findings: &mut Findings) {
    // Before the guardian: attending to it takes a runtime, and what forks must have no thread beside it.
    let cgroup = Cgroup::available();
    let pidns = Pidns::available();
    findings.add(guardian());
    findings.add(match &cgroup {
        Ok(()) => Check::ok("cgroup", "can be had: --contain auto uses one"),
        Err(why) => Check::warn(
            "cgroup",
            why,
            "without it --contain auto kills process by process",
        ),
    });
    findings.add(match pidns {
        Ok(_) => Check::ok("pidns", "can be had with --contain pidns"),
        Err(why) => Check::warn("pidns", why, "needed only for --contain pidns"),
    });
}

fn guardian() -> Check {
    const NAME: &str = "guardian";
    let begun = Instant::now();
    let forked = guardian::fork(Setup {
        // Never started: what is tried is the guardian, its socket and its end.
        programs: vec![Program {
            words: vec!["true".into()],
            in_front: false,
        }],
        contain: Contain::None,
        grace: Duration::ZERO,
        on_orphaned: |_| (),
        withheld: Vec::new(),
    });
    let guardian = match forked {
        Ok(guardian) => guardian,
        Err(why) => return Check::fail(NAME, why.to_string(), ""),
    };
    let dismissed = lock_target::run(async {
        let handle = guardian.attend()?;
        let took = Instant::now().since(begun);
        handle.dismiss().await;
        Ok(took)
    });
    match dismissed {
        Ok(took) => Check::ok(NAME, format!("forked and answered in {}", brief(took))),
        Err(why) => Check::fail(NAME, format!("{why:#}"), ""),
    }
}

fn budget(typed: Option<Checked<Duration>>, on_blob: bool) -> Result<Budget, UsageError> {
    let lease = typed.unwrap_or(Ok(config::DEFAULT_LEASE))?;
    if on_blob && !config::BLOB_LEASE.contains(&lease) {
        return Err(UsageError::new(format!(
            "--lease {}: a blob can be leased for 15s to 60s only",
            show(lease)
        )));
    }
    let budget = Budget::for_lease(lease);
    budget
        .validate()
        .map_err(|why| UsageError::new(why.to_string()))?;
    Ok(budget)
}

/// The time that one attempt to renew can take if there is to be a second.
fn attempt_limit(budget: &Budget) -> Duration {
    // As the core divides it: two attempts have to fit between the time to renew and the time to ask the
    // command to end.
    let term_after = budget.lease - budget.margin - budget.grace_on_loss;
    crate::core::budget::ATTEMPT.min(term_after.saturating_sub(budget.renew_every) / 2)
}

/// How long requests took that are like those of a renewal.
struct Pace {
    p50: Duration,
    p99: Duration,
    /// What one attempt to renew may take.
    limit: Duration,
    /// Whether a renewal of two such requests is done in time, and has room to spare.
    verdict: CheckResult,
}

fn pace(samples: &[Duration], budget: &Budget) -> Pace {
    let (p50, p99) = percentiles(samples);
    let limit = attempt_limit(budget);
    // Twice the usual time: a renewal on a shared drive is two such requests.
    let verdict = match () {
        () if samples.is_empty() || p50 * 2 >= limit => CheckResult::Fail,
        () if p99 * 4 >= limit => CheckResult::Warn,
        () => CheckResult::Ok,
    };
    Pace {
        p50,
        p99,
        limit,
        verdict,
    }
}

/// What the name of a thing of ours beside the lock ends with: another one for each doctor.
fn suffix() -> String {
    format!(".trafficcop-doctor-{:08x}", fastrand::u32(..))
}

/// The middle and the end of these, at one in a hundred.
fn percentiles(samples: &[Duration]) -> (Duration, Duration) {
    let mut sorted = samples.to_vec();
    sorted.sort();
    // Nearest rank: of ten samples the 99th percentile is the slowest, and no number that was never measured.
    let rank = |part: usize| {
        let at = (sorted.len() * part).div_ceil(100).max(1) - 1;
        sorted.get(at).copied().unwrap_or_default()
    };
    (rank(50), rank(99))
}

/// A time as short as these are.
fn brief(span: Duration) -> String {
    match span.as_micros() {
        micros @ ..10_000 => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
        micros @ ..1_000_000 => format!("{} ms", micros / 1000),
        micros => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_may_take_what_leaves_room_for_a_second() {
        let limit = |secs| attempt_limit(&Budget::for_lease(Duration::from_secs(secs)));
        assert_eq!(limit(60), Duration::from_secs(5));
        assert_eq!(limit(30), Duration::from_secs(5));
        assert_eq!(limit(15), Duration::from_secs(3));
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let millis = |n: u64| Duration::from_millis(n);
        let samples: Vec<_> = (1..=20).rev().map(millis).collect();
        assert_eq!(percentiles(&samples), (millis(10), millis(20)));
        assert_eq!(percentiles(&samples[..1]), (millis(20), millis(20)));
        assert_eq!(percentiles(&[]), (millis(0), millis(0)));
        assert_eq!(brief(Duration::from_micros(1_234)), "1.2 ms");
        assert_eq!(brief(millis(45)), "45 ms");
        assert_eq!(brief(millis(1_650)), "1.6 s");
    }

    #[test]
    fn the_worst_check_is_the_verdict() {
        let whole = |checks: Vec<Check>| Findings {
            lock: String::new(),
            json: false,
            checks,
            cut_short: None,
        };
        let ok = Check::ok("a", "x");
        let warn = Check::warn("b", "x", "do");
        let fail = Check::fail("c", "x", "do");
        let leave = |checks| whole(checks).finish().unwrap();
        assert_eq!(leave(vec![ok.clone(), warn.clone()]), ExitAction::Status(0));
        assert_eq!(leave(vec![fail.clone(), ok, warn]), ExitAction::Status(1));
        assert!(fail.line().starts_with("fail  c ") && fail.line().ends_with("x: do\n"));
    }
}
