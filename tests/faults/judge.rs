//! The judgement: from the journal's stamps, the store's log and the process table, with no
//! tolerance. The program's own reports decide nothing.

use std::collections::BTreeSet;

use super::stage::Stage;
use super::support::journal::{Line, What};
use super::support::proxy::Seen;

/// Longest time from sending the last answered attempt to its answer.
const ATTEMPT: u64 = 5_000_000_000;
/// Delay within which an answer always finds the attempt waiting.
const PROMPTLY: u64 = 2_500_000_000;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Two tenures alive at the same time, or a token that did not grow.
    pub(crate) overlaps: Vec<String>,
    /// Processes that lived without a supervisor and a guardian.
    pub(crate) survivors: Vec<String>,
    pub(crate) needless: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        self.overlaps.is_empty() && self.survivors.is_empty() && self.needless.is_empty()
    }
}

/// Token and holder of a tenure.
pub(crate) type Which = (u64, String);

/// Judges a stage whose instances have ended. A fault was allowed to end the tenures in `touched`.
pub(crate) fn judge(stage: &mut Stage, touched: &BTreeSet<Which>) -> Verdict {
    let mut verdict = Verdict::default();
    let tenures = stage.scene.journal.tenures();
    for (index, one) in tenures.iter().enumerate() {
        for other in &tenures[index + 1..] {
            if other.first <= one.last {
                verdict.overlaps.push(format!(
                    "token {} ({}) beside token {} ({}) for {} us",
                    other.token,
                    other.tag,
                    one.token,
                    one.tag,
                    (one.last.min(other.last) - other.first) / 1000
                ));
            } else if other.token <= one.token {
                verdict
                    .overlaps
                    .push(format!("token {} after {}", other.token, one.token));
            }
        }
    }
    let lines = stage.lines();
    for tenure in &tenures {
        if touched.contains(&(tenure.token, tenure.holder.clone())) {
            continue;
        }
        let has = |what| {
            let of_main = |line: &Line| {
                (line.token, &line.holder) == (tenure.token, &tenure.holder)
                    && !line.tag.contains('/')
            };
            lines.iter().any(|line| line.what == what && of_main(line))
        };
        if has(What::Term) || !has(What::End) {
            verdict.needless.push(format!(
                "token {} ({}) did not end by itself",
                tenure.token, tenure.tag
            ));
        }
    }
    for process in stage.scene.trees() {
        if process.program != "tc-guardian" {
            verdict.survivors.push(format!("{process:?}"));
        }
    }
    verdict
}

/// Judges a command whose store could not be reached. Its tree must end before the lease; SIGTERM
/// must not come while there is time for another attempt.
pub(crate) fn judge_outage(stage: &mut Stage, verdict: &mut Verdict) {
    let mut grants = stage.proxies["a"].log();
    grants.retain(|seen| {
        use super::support::proxy::Call::{Acquire, Renew};
        let id = seen.lease_id.is_some();
        id && matches!(seen.call, Acquire | Renew)
            && seen.delivered
            && seen.status.is_some_and(|status| status < 300)
            && seen.at < first_loss(stage)
    });
    // The last grants that it can have seen and must have seen: on a starved machine an answer can
    // reach a client that has just given up.
    let promptly = |seen: &&Seen| seen.delivered_at < seen.at + PROMPTLY;
    let heard = grants.iter().rev().find(promptly);
    let Some(grant) = grants.last() else {
        return;
    };
    let first = stage.first;
    let lines = stage.lines();
    let of_first = || lines.iter().filter(|line| line.token == first);
    let last = of_first().map(|line| line.at).max().unwrap_or(0);
    // The proxy saw the request after it was sent: no stricter than the promise.
    if last >= grant.at + 15_000_000_000 {
        verdict
            .overlaps
            .push("the first tenure's tree outlived its lease".into());
    }
    let asked = of_first().find(|line| line.what == What::Term);
    let early = |line: &Line, heard: &Seen| line.at + ATTEMPT < heard.at + 11_000_000_000;
    if let (Some(line), Some(heard)) = (asked, heard)
        && early(line, heard)
    {
        verdict
            .needless
            .push("the first tenure's command was asked to end too early".into());
    }
}

fn first_loss(stage: &Stage) -> u64 {
    let tenures = stage.scene.journal.tenures();
    tenures.get(1).map_or(u64::MAX, |tenure| tenure.first)
}
