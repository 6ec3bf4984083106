//! [`SharedFile`]: a lock that is a chain of versions, as a [`LeaseStore`].
//!
//! It must never wait for the drive where something else could be late.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::chain::Chain;
use super::release;
use crate::blocking::BlockingJobs;
use crate::errors::{fatal, transient};
use crate::file::{FileInspector, address_of};
use crate::inspect::Inspector;
use crate::mount;
use crate::once::OnceTask;
use crate::slots::path_of;
use crate::stamp;
use crate::{
    Competitor, LeaseStore, LockInfo, NamedLock, OpenError, OrphanRelease, RecordUpdate,
    SharedMemory, StoreInfo,
};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Failure, Grant};

// Time that a release waits for a step that hangs, twice: a working drive answers by then.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);
// Without a stamp the next instances wait a lease longer.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(250);

/// Store of a lock on a shared drive, for one instance.
pub struct SharedFile {
    name: String,
    jobs: BlockingJobs,
    chain: Arc<Chain>,
    /// Whether this tenure's release has waited for a step in vain.
    overdue: AtomicBool,
}

/// Lock on a shared drive, named by its path.
pub struct SharedFileLock(pub PathBuf);

impl NamedLock for SharedFileLock {
    fn info(&self) -> LockInfo {
        LockInfo {
            look_can_hang: true,
            warning: mount::of(&self.0).warning(&self.0),
            ..LockInfo::new(address_of(&self.0), "on a shared drive")
        }
    }

    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError> {
        mount::refuse_wrong_place(&self.0)?;
        Ok(Arc::new(SharedFile::open(&self.0, competitor)?))
    }

    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
        Ok(Arc::new(SharedFileLock(path_of(&self.0, slot))))
    }

    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError> {
        Ok(Box::new(FileInspector::new(&self.0)?))
    }
}

impl SharedFile {
    /// Opens the lock; does no I/O: the drive may hang, and no thread exists yet.
    ///
    /// # Errors
    /// If there is no working directory for a relative path.
    pub fn open(path: &Path, competitor: &Competitor) -> io::Result<SharedFile> {
        SharedFile::with_memory(
            path,
            competitor,
            competitor.memory.and_then(release::prepare),
        )
    }

    /// Like [`SharedFile::open`], with the memory that the guardian reads.
    ///
    /// # Errors
    /// Those of [`SharedFile::open`].
    pub fn with_memory(
        path: &Path,
        competitor: &Competitor,
        memory: Option<Arc<dyn SharedMemory>>,
    ) -> io::Result<SharedFile> {
        let chain = Chain::new(path, competitor, memory)?;
        Ok(SharedFile {
            name: chain.share.path().display().to_string(),
            jobs: BlockingJobs::new(),
            overdue: AtomicBool::new(false),
            chain: Arc::new(chain),
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        give_up_at: Instant,
        step: impl FnOnce(&Chain) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let chain = Arc::clone(&self.chain);
        let step = move || step(&chain);
        self.jobs.step(&self.name, what, give_up_at, step).await
    }
}

#[async_trait]
impl LeaseStore for SharedFile {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            period: self.chain.task.as_ref().and_then(OnceTask::period),
            lease: Some(self.chain.lease),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        let won = self
            .blocking("looking at it", give_up_at, |chain| chain.compete())
            .await?;
        // Only now: what an abandoned attempt obtained, the next release gives back.
        let token = won.tenure.record.token;
        self.chain.state().tenure = Some(won.tenure);
        self.overdue.store(false, Ordering::Release);
        Ok(Grant {
            t0: won.t0,
            token,
            failed: won.failed,
        })
    }

    async fn look_for_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("looking at it", give_up_at, |chain| {
            let look = chain.look_for_record()?;
            let result = chain.is_over(&look)?;
            result.map_or(Ok(()), |result| Err(Failure::AlreadyDone(result)))
        })
        .await
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("renewing it", give_up_at, Chain::go_on).await
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        // A standby that ends asks nothing of a drive that may hang.
        if self.jobs.is_idle() && self.chain.has_nothing_to_release() {
            return Ok(());
        }
        // Behind a step that hangs nothing is done in time.
        let limit = give_up_at.min(Instant::now() + STEP_TIMEOUT);
        if !self.jobs.is_idle_by(limit).await {
            let why = "the drive does not answer";
            // A slow drive answers the second time; after that the lease runs out.
            return Err(match self.overdue.fetch_xor(true, Ordering::AcqRel) {
                true => self.chain.fatal(why),
                false => transient(format!("{}: {why}", self.name)),
            });
        }
        self.overdue.store(false, Ordering::Release);
        let released = self.blocking("releasing it", give_up_at, move |chain| {
            chain.release(give_up_at)
        });
        match released.await {
            // The caller would only wait for what hangs.
            Err(Failure::Transient { why, .. }) if !self.jobs.is_idle() => Err(fatal(why)),
            answered => answered,
        }
    }

    async fn update_record(
        &self,
        update: RecordUpdate,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let what = update.doing();
        let update = match update {
            // The next renewal reports it: a version of its own could delay that.
            RecordUpdate::Health(health) => return self.chain.tell(false, health),
            // Every later version records it, too.
            RecordUpdate::Draining { health } => {
                self.chain.tell(true, health)?;
                None
            }
            RecordUpdate::Outcome(outcome) => Some(outcome),
        };
        self.blocking(what, give_up_at, move |chain| match update {
            None => chain.go_on(),
            Some(outcome) => chain.record(&outcome, give_up_at),
        })
        .await
    }

    async fn leave(&self, _give_up_at: Instant) {
        // A holder does not watch its own versions as a candidate.
        let seen = {
            let mut state = self.chain.state();
            let stamped = state.stamped.take().filter(|_| state.tenure.is_none());
            stamped.zip(state.observed.seen())
        };
        if let Some((of, (version, stamp))) = seen
            && of.version == version
        {
            let path = self.chain.share.path();
            stamp::leave(
                &self.chain.runtime_directories,
                path,
                of,
                stamp,
                LEAVE_TIMEOUT,
            );
        }
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        // No descriptor: one on a server that is gone keeps its process from ending.
        let release_info = self.chain.memory.as_ref();
        Ok(OrphanRelease {
            descriptor: None,
            release_info: release_info.map(|_| release::MARK.to_vec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::record::Candidate;

    async fn hang(store: &SharedFile) -> mpsc::Sender<()> {
        let (go_on, hangs) = mpsc::channel();
        let step = move |_: &Chain| {
            let _ = hangs.recv();
            Ok(())
        };
        let late = store.blocking("hanging", Instant::now(), step).await;
        assert!(matches!(late, Err(Failure::Transient { .. })), "{late:?}");
        go_on
    }

    async fn release(store: &SharedFile) -> Result<(), Failure> {
        store
            .release(Instant::now() + Duration::from_secs(120))
            .await
    }

    async fn acquire(store: &SharedFile) {
        let grant = store.acquire(Instant::now() + Duration::from_secs(120));
        grant.await.expect("control");
    }

    fn open(directory: &Path) -> SharedFile {
        let candidate = Candidate {
            identity: "one".into(),
            host: "here".into(),
            pid: 1,
            command: "./job".into(),
            bell: None,
        };
        let competitor = Competitor::new(candidate, Duration::from_secs(10));
        SharedFile::open(&directory.join("lock"), &competitor).expect("a store")
    }

    /// The drive takes more than a second, also in a later tenure.
    #[tokio::test]
    async fn release_of_each_tenure_waits_twice_for_a_step_that_hangs() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open(directory.path());
        acquire(&store).await;
        let go_on = hang(&store).await;
        let first = release(&store).await;
        assert!(matches!(first, Err(Failure::Transient { .. })), "{first:?}");
        drop(go_on);
        assert!(store.jobs.is_idle_by(Instant::FOREVER).await);
        // No second release came, as if the lease had run out.
        let late = Instant::now() + Duration::from_secs(120);
        store.chain.release(late).expect("to release");
        acquire(&store).await;
        let go_on = hang(&store).await;
        let first = release(&store).await;
        assert!(matches!(first, Err(Failure::Transient { .. })), "{first:?}");
        drop(go_on);
        release(&store).await.expect("to release");
    }

    #[tokio::test]
    async fn release_begins_anew_after_it_was_given_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open(directory.path());
        acquire(&store).await;
        let _hangs = hang(&store).await;
        for is_last in [false, true, false] {
            let asked = release(&store).await;
            let given_up = matches!(asked, Err(Failure::Fatal { .. }));
            assert_eq!(given_up, is_last, "{asked:?}");
        }
    }
}
