//! Inspector of a helper's entries, and `doctor`'s race that shows whether a helper compares tags.

use std::sync::Barrier;
use std::time::Duration;

use async_trait::async_trait;

use super::call::{Entry, Helper, NONE, Put};
use crate::blocking::BlockingJobs;
use crate::errors::{fatal, transient};
use crate::inspect::{BreakResult, FORGETTING, Inspector, LockStatus, REQUEST, ResetResult, Tasks};
use crate::version_record::{VersionRecord, fresh_nonce};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

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
        let (helper, of) = (self.helper.clone(), self.helper.address());
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
            let names = names.into_iter();
            let all = names.map(|name| look(&helper.named(name), give_up_at));
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
    ) -> Result<BreakResult, Failure> {
        let (by, end) = (by.to_owned(), Instant::now() + REQUEST * 2);
        self.run("breaking it", end, move |helper| {
            let Some((entry, Some(held))) = read(&helper, end)? else {
                return Ok(BreakResult::Changed);
            };
            let period = period.map(|seconds| Duration::from_secs(seconds.into()));
            let (record, after) = match held.broken(&seen.record.unwrap_or_default(), period, &by) {
                Ok(broken) => broken,
                Err(nothing) => return Ok(nothing),
            };
            let text = record.encode();
            Ok(match helper.put(&entry.tag, &text, end)? {
                Put::Done => BreakResult::Within(after),
                Put::Refused => BreakResult::Overtaken,
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

/// Bytes of a long text, within what every store and a shell's argument takes.
const LONG_TEXT: usize = 30_000;
const ODD: &str = r#"\n\\d"%s"'$x'é"#;

/// Has eight threads write one entry with one tag, `rounds` times; returns how long each write took.
///
/// The texts have what a shell's `echo` and quotes damage; those of the first round are long.
///
/// # Errors
/// `Fatal` if two of them were told that they wrote, or the text comes back changed; the helper's doubt or
/// `Transient` if none was.
pub fn race(helper: &Helper, rounds: usize, give_up_at: Instant) -> Result<Vec<Duration>, Failure> {
    const RACERS: usize = 8;
    let helper = helper.named(format!("{}.trafficcop-doctor", helper.name));
    // Eight at once are slower than one.
    let limit = || give_up_at.min(Instant::now() + FORGETTING);
    let mut took = Vec::new();
    for round in 0..rounds {
        let entry = helper.get(limit())?;
        let tag = entry.map_or(NONE.to_owned(), |entry| entry.tag);
        let long = if round == 0 { LONG_TEXT } else { 0 };
        let texts: Vec<String> = (0..RACERS)
            .map(|number| {
                let (nonce, long) = (fresh_nonce(), ".".repeat(long));
                format!("doctor {nonce:x} {number} {ODD}{long}\n2\n")
            })
            .collect();
        let start = Barrier::new(RACERS);
        let racer = |text: &String| {
            start.wait();
            let begun = Instant::now();
            let put = helper.put(&tag, text.as_bytes(), limit());
            (put, Instant::now().since(begun))
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            let racers = texts.iter().map(|text| scope.spawn(move || racer(text)));
            let all: Vec<_> = racers.collect();
            let ended = all.into_iter().zip(&texts);
            ended
                .filter_map(|(racer, text)| Some((racer.join().ok()?, text)))
                .collect()
        });
        took.extend(ended.iter().map(|((_, span), _)| *span));
        let other = || transient(helper.about("another doctor is at work"));
        let won = |((put, _), _): &&((Result<Put, Failure>, _), _)| matches!(put, Ok(Put::Done));
        let won: Vec<&String> = ended.iter().filter(won).map(|(_, text)| *text).collect();
        match won[..] {
            [text] => {
                let read = helper.get(limit())?.map_or(Vec::new(), |entry| entry.text);
                let ours = text.split(ODD).next().unwrap_or_default();
                if read.starts_with(b"doctor ") && !read.starts_with(ours.as_bytes()) {
                    return Err(other());
                }
                if read != text.trim().as_bytes() {
                    return Err(fatal(helper.about(
                        "its helper gives back another text than it was given, so a holder would lose its lease: \
                         keep every byte (printf, not echo; no text as an argument)",
                    )));
                }
            }
            // A doubtful answer may hide the winner's.
            [] => {
                let doubt = ended.into_iter().find_map(|((put, _), _)| put.err());
                return Err(doubt.unwrap_or_else(other));
            }
            _ => {
                return Err(fatal(helper.about(&format!(
                    "in round {round} {} of {RACERS} writers with the same tag were told that they wrote, so two \
                     instances could have control: use a helper and a store that compare tags",
                    won.len()
                ))));
            }
        }
    }
    Ok(took)
}
