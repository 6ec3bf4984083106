//! Inspector of a helper's entries, and `doctor`'s race that shows whether a helper compares tags.

use std::sync::Barrier;
use std::time::Duration;

use async_trait::async_trait;

use super::call::{Entry, Helper, NONE, Put};
use crate::blocking::BlockingJobs;
use crate::errors::{fatal, transient};
use crate::inspect::{
    Broken, Capabilities, FORGETTING, Inspector, LockStatus, REQUEST, ResetResult, Tasks,
};
use crate::version_record::{VersionRecord, fresh_nonce};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::SHORTEST_LEASE;

pub(super) struct HelperInspector {
    helper: Helper,
    jobs: BlockingJobs,
}

impl HelperInspector {
    pub(super) fn new(helper: Helper) -> HelperInspector {
        HelperInspector {
            helper,
            jobs: BlockingJobs::new(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        what: &str,
        give_up_at: Instant,
        job: impl FnOnce(Helper) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (helper, of) = (self.helper.clone(), self.lock());
        self.jobs
            .step(&of, what, give_up_at, move || job(helper))
            .await
    }
}

fn read(
    helper: &Helper,
    give_up_at: Instant,
) -> Result<Option<(Entry, Option<VersionRecord>)>, Failure> {
    let entry = helper.get(give_up_at)?;
    Ok(entry.map(|entry| {
        let record = VersionRecord::decode(&entry.text);
        (entry, record)
    }))
}

fn look(helper: &Helper, give_up_at: Instant) -> Result<LockStatus, Failure> {
    let Some((_, record)) = read(helper, give_up_at)? else {
        return Ok(LockStatus {
            name: helper.name.clone(),
            lock: helper.address(),
            ..LockStatus::default()
        });
    };
    // An unreadable text still shows that something is there.
    let version = record.as_ref().map_or(1, |record| record.version);
    let record = record.filter(|_| version > 0);
    Ok(VersionRecord::status(
        helper.name.clone(),
        helper.address(),
        version,
        record,
    ))
}

#[async_trait]
impl Inspector for HelperInspector {
    fn lock(&self) -> String {
        self.helper.address()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_break: u8::try_from(SHORTEST_LEASE.as_secs()).ok(),
            force_breaks: false,
        }
    }

    async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        self.run("looking at it", give_up_at, move |helper| {
            look(&helper, give_up_at)
        })
        .await
    }

    async fn list(&self, suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        let prefix = format!("{}{suffix}", self.helper.name);
        let of_slots = !suffix.is_empty();
        self.run("listing", give_up_at, move |helper| {
            let names = helper.list(&prefix, give_up_at);
            // A helper need not list. A look for slots goes on without it, as without the right.
            let names = names.map_err(|error| Failure::Fatal {
                why: error.to_string(),
                denied: of_slots,
            })?;
            let named = |name| Helper {
                name,
                ..helper.clone()
            };
            let all = names.into_iter().map(|name| look(&named(name), give_up_at));
            let all: Result<Vec<_>, _> = all.collect();
            // Without a record it is no lock: what `doctor` left, or another program's.
            Ok(all?
                .into_iter()
                .filter(|seen| seen.record.is_some())
                .collect())
        })
        .await
    }

    async fn break_lease(
        &self,
        seen: LockStatus,
        period: Option<u8>,
        by: &str,
    ) -> Result<Broken, Failure> {
        let (by, end) = (by.to_owned(), Instant::now() + REQUEST * 2);
        self.run("breaking it", end, move |helper| {
            let Some((entry, Some(held))) = read(&helper, end)? else {
                return Ok(Broken::Changed);
            };
            let period = period.map(|seconds| Duration::from_secs(seconds.into()));
            let (record, after) = match held.broken(&seen.record.unwrap_or_default(), period, &by) {
                Ok(broken) => broken,
                Err(nothing) => return Ok(nothing),
            };
            let text = record.encode();
            Ok(match helper.put(&entry.tag, &text, end)? {
                Put::Done => Broken::Within(after),
                Put::Refused => Broken::Overtaken,
            })
        })
        .await
    }

    async fn forget(
        &self,
        tasks: &Tasks,
        seen: LockStatus,
        force: bool,
    ) -> Result<ResetResult, Failure> {
        let (tasks, end) = (tasks.clone(), Instant::now() + FORGETTING);
        self.run("forgetting it", end, move |helper| {
            let Some((entry, read)) = read(&helper, end)? else {
                return Ok(ResetResult::Nothing);
            };
            let (lock, shown) = (helper.address(), seen.task_log());
            let free = match VersionRecord::without(read, &lock, &tasks, &shown, force)? {
                Ok(free) => free,
                Err(nothing) => return Ok(nothing),
            };
            Ok(match helper.put(&entry.tag, &free.encode(), end)? {
                Put::Done => ResetResult::Done,
                Put::Refused => ResetResult::Changed,
            })
        })
        .await
    }
}

/// Has eight threads write one entry with one tag, `rounds` times; returns how long each write took.
///
/// # Errors
/// `Fatal` if two of them were told that they wrote; the helper's doubt or `Transient` if none was.
pub fn race(helper: &Helper, rounds: usize, give_up_at: Instant) -> Result<Vec<Duration>, Failure> {
    const RACERS: usize = 8;
    let helper = Helper {
        name: format!("{}.trafficcop-doctor", helper.name),
        ..helper.clone()
    };
    let mut took = Vec::new();
    for round in 0..rounds {
        let tag = helper
            .get(give_up_at)?
            .map_or(NONE.to_owned(), |entry| entry.tag);
        let start = Barrier::new(RACERS);
        let racer = |number: usize| {
            start.wait();
            let text = format!("trafficcop doctor {:032x} {number}\n", fresh_nonce());
            let begun = Instant::now();
            let put = helper.put(&tag, text.as_bytes(), give_up_at);
            (put, Instant::now().since(begun))
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..RACERS)
                .map(|number| scope.spawn(move || racer(number)))
                .collect();
            all.into_iter()
                .filter_map(|racer| racer.join().ok())
                .collect()
        });
        let won = ended
            .iter()
            .filter(|(put, _)| matches!(put, Ok(Put::Done)))
            .count();
        took.extend(ended.iter().map(|(_, span)| *span));
        match won {
            1 => {}
            // A doubtful answer may hide the winner's.
            0 => match ended.into_iter().find_map(|(put, _)| put.err()) {
                Some(doubt) => return Err(doubt),
                None => {
                    return Err(transient(format!(
                        "{}: another doctor is at work",
                        helper.address()
                    )));
                }
            },
            won => {
                return Err(fatal(format!(
                    "{}: in round {round} {won} of {RACERS} writers with the same tag were told that they wrote: \
                     two instances could have control",
                    helper.address()
                )));
            }
        }
    }
    Ok(took)
}
