//! Entry of a helper's store, as the drivers see it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::call::{Helper, find};
use super::chain::Chain;
use super::inspect::HelperInspector;
use super::release;
use crate::blocking::BlockingJobs;
use crate::inspect::Inspector;
use crate::once::OnceTask;
use crate::{
    Competitor, LeaseStore, LockInfo, NamedLock, OpenError, OrphanRelease, RecordUpdate, StoreInfo,
};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Failure, Grant};

const HIDES: Duration = Duration::from_secs(5);
/// Time that a release waits for a call.
const LAST_CALL: Duration = Duration::from_secs(5);

/// Entry that a helper program keeps.
#[derive(Clone)]
pub struct HelperLock {
    helper: Helper,
}

impl HelperLock {
    /// Finds the helper, in the directories of `path` (PATH) unless it has its own; runs nothing.
    ///
    /// # Errors
    /// `Fatal` if there is no such program.
    pub fn new(helper: &str, name: &str, path: Option<&OsStr>) -> Result<HelperLock, Failure> {
        let program = find(helper, path)?;
        let shown = match helper.contains('/') {
            true => program.display().to_string(),
            false => helper.to_owned(),
        };
        let name = name.to_owned();
        Ok(HelperLock {
            helper: Helper {
                shown,
                program,
                name,
            },
        })
    }

    /// Asks the helper for the variables with credentials, which `--no-credentials` hides.
    #[must_use]
    pub fn hides(&self) -> Vec<OsString> {
        self.helper.hides(Instant::now() + HIDES)
    }

    /// Returns the helper.
    #[must_use]
    pub fn helper(&self) -> &Helper {
        &self.helper
    }
}

impl NamedLock for HelperLock {
    fn info(&self) -> LockInfo {
        LockInfo::new(self.helper.address(), "in a helper's store")
    }

    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError> {
        if let Some(make) = competitor.memory {
            release::prepare(make);
        }
        let chain = Chain::new(self.helper.clone(), competitor);
        Ok(Arc::new(HelperStore {
            name: self.helper.address(),
            jobs: BlockingJobs::new(),
            chain: Arc::new(chain),
        }))
    }

    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
        let helper = self.helper.named(format!("{}.{slot}", self.helper.name));
        Ok(Arc::new(HelperLock { helper }))
    }

    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError> {
        Ok(Box::new(HelperInspector::new(self.helper.clone())))
    }
}

struct HelperStore {
    name: String,
    jobs: BlockingJobs,
    chain: Arc<Chain>,
}

impl HelperStore {
    async fn step<T: Send + 'static>(
        &self,
        what: &str,
        give_up_at: Instant,
        step: impl FnOnce(&Chain, Instant) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let chain = Arc::clone(&self.chain);
        self.jobs
            .step(&self.name, what, give_up_at, move || {
                step(&chain, give_up_at)
            })
            .await
    }
}

#[async_trait]
impl LeaseStore for HelperStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            period: self.chain.task.as_ref().and_then(OnceTask::period),
            lease: Some(self.chain.lease),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        let won = self.step("looking at it", give_up_at, Chain::compete);
        Ok(self.chain.begins(won.await?))
    }

    async fn look_for_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.step("looking at it", give_up_at, Chain::look_for_result)
            .await
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let renewed = |chain: &Chain, give_up_at| chain.go_on(false, give_up_at);
        self.step("renewing it", give_up_at, renewed).await
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        if self.jobs.is_idle() && self.chain.has_nothing_to_release() {
            return Ok(());
        }
        let give_up_at = give_up_at.min(Instant::now() + LAST_CALL);
        self.step("releasing it", give_up_at, Chain::release).await
    }

    async fn update_record(
        &self,
        update: RecordUpdate,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let what = update.doing();
        let outcome = match update {
            RecordUpdate::Health(health) => {
                self.chain.tell(false, health);
                return Ok(());
            }
            RecordUpdate::Draining { health } => {
                self.chain.tell(true, health);
                None
            }
            RecordUpdate::Outcome(outcome) => Some(outcome),
        };
        self.step(what, give_up_at, move |chain, give_up_at| match outcome {
            Some(outcome) => chain.record(&outcome, give_up_at),
            None => chain.go_on(false, give_up_at),
        })
        .await
    }

    async fn leave(&self, _give_up_at: Instant) {
        self.chain.leave();
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease {
            descriptor: None,
            release_info: Some(release::MARK.to_vec()),
        })
    }
}
