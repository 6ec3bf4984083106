//! A store whose answers are written down before: what another store costs, and how the drivers and the
//! commands take what it says. Named `--file scripted:PATH`; never part of a release.
//!
//! Each line of the script at PATH is an answer: what was asked, how it went, and a number or a text.
//! `acquire granted 7`, `acquire held web9`, `renew lost WHY`, `look held web9`. What the script has no line
//! for goes well. What was asked is appended to `PATH.asked`.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::inspect::{Broken, Inspector, LockState, LockStatus, Manner, ResetResult, Tasks};
use super::mount::beside;
use super::record::Record;
use super::store::{Competitor, NamedLock, OpenError};
use super::{LeaseStore, StoreInfo, slots};
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;
use trafficcop_core::{Failure, Grant, HolderInfo};

/// A lock that is a script.
pub(super) struct ScriptedLock(PathBuf);

impl ScriptedLock {
    /// The script that this path names, if it names one.
    pub(super) fn at(path: &Path) -> Option<ScriptedLock> {
        let script = path.to_str()?.strip_prefix("scripted:")?;
        Some(ScriptedLock(script.into()))
    }

    fn play(&self, lease: Duration) -> Scripted {
        let script = fs::read_to_string(&self.0).unwrap_or_default();
        Scripted {
            path: self.0.clone(),
            lease,
            lines: Mutex::new(script.lines().map(str::to_owned).collect()),
        }
    }
}

impl NamedLock for ScriptedLock {
    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError> {
        Ok(Arc::new(self.play(competitor.lease)))
    }

    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
        Ok(Arc::new(ScriptedLock(slots::path_of(&self.0, slot))))
    }

    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError> {
        Ok(Box::new(self.play(Duration::ZERO)))
    }
}

/// A script that is being played.
struct Scripted {
    path: PathBuf,
    lease: Duration,
    lines: Mutex<VecDeque<String>>,
}

impl Scripted {
    fn name(&self) -> String {
        format!("scripted:{}", self.path.display())
    }

    /// The next answer to this question: how it went, and what else is said.
    fn answer(&self, question: &str) -> Option<(String, String)> {
        let asked = beside(&self.path, ".asked");
        let asked = OpenOptions::new().create(true).append(true).open(asked);
        // Whoever reads it misses the line: an error here must not look like one of the lock.
        let _ = asked.and_then(|mut asked| writeln!(asked, "{question}"));
        let mut lines = lock(&self.lines);
        let is_answer = |line: &String| line.split(' ').next() == Some(question);
        let line = lines.iter().position(is_answer)?;
        let line = lines.remove(line)?;
        let (how, rest) = line.strip_prefix(question)?.trim().split_once(' ')?;
        Some((how.to_owned(), rest.to_owned()))
    }
}

#[async_trait]
impl LeaseStore for Scripted {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name(),
            lease: Some(self.lease),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, _give_up_at: Instant) -> Result<Grant, Failure> {
        let t0 = Instant::now();
        let (how, text) = self.answer("acquire").unwrap_or_default();
        if how == "held" {
            return Err(Failure::Held(HolderInfo {
                holder: Some(text),
                ..HolderInfo::default()
            }));
        }
        Ok(Grant {
            t0,
            token: text.parse().unwrap_or(1),
            failed: 0,
        })
    }

    async fn renew(&self, _give_up_at: Instant) -> Result<(), Failure> {
        match self.answer("renew") {
            Some((how, why)) if how == "lost" => Err(Failure::Lost { until: None, why }),
            _ => Ok(()),
        }
    }

    async fn release(&self, _give_up_at: Instant) -> Result<(), Failure> {
        // Asked only so that the test sees it.
        self.answer("release");
        Ok(())
    }
}

#[async_trait]
impl Inspector for Scripted {
    fn lock(&self) -> String {
        self.name()
    }

    fn manner(&self) -> Manner {
        Manner {
            shortest_break: Some(0),
            force_breaks: false,
        }
    }

    async fn look(&self, _give_up_at: Instant) -> Result<LockStatus, Failure> {
        let (how, holder) = self.answer("look").unwrap_or_default();
        Ok(LockStatus {
            name: self.name(),
            lock: self.name(),
            state: match how.as_str() {
                "held" => LockState::Held,
                _ => LockState::Free,
            },
            record: Some(Record {
                holder,
                ..Record::default()
            }),
            ..LockStatus::default()
        })
    }

    async fn list(&self, _suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        Ok(vec![self.look(give_up_at).await?])
    }

    async fn break_lease(
        &self,
        _seen: LockStatus,
        period: Option<u8>,
        _by: &str,
    ) -> Result<Broken, Failure> {
        self.answer("break");
        Ok(Broken::Within(Duration::from_secs(
            period.unwrap_or(0).into(),
        )))
    }

    async fn forget(
        &self,
        _tasks: &Tasks,
        _seen: LockStatus,
        _force: bool,
    ) -> Result<ResetResult, Failure> {
        Ok(ResetResult::Nothing)
    }
}
