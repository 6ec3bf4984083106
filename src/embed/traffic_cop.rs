//! [`TrafficCop`]: one instance that competes for control inside a program.
//!
//! Started by [`Builder::start`]; the competition is a task of the program's runtime.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::builder::Builder;
use super::error::Error;
use super::guard::Guard;
use super::program::{Control, Shared, Spawned};
use crate::core::Ending;
use crate::lease::LeaseStore;

/// One instance that competes for control inside a program.
///
/// Dropping it ends the competition as well, but as nobody then says that the work has ended, the
/// lease is kept for the grace of its budget before it is given back, or until the last [`Guard`] is
/// dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trafficcop::Error> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let path = directory.path().join("leader.lock");
/// use trafficcop::TrafficCop;
///
/// let cop = TrafficCop::file(&path)?.start().await?;
/// let guard = cop.acquired().await?;
/// let sum = guard.run(async { 40 + 2 }).await;
/// assert_eq!(sum, Ok(42));
/// assert!(cop.has_control());
///
/// drop(guard); // The work has ended: another has its turn.
/// assert!(!cop.has_control());
/// cop.stop().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the competition ends when it is dropped"]
pub struct TrafficCop {
    shared: Arc<Shared>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Ending>,
}

impl fmt::Debug for TrafficCop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficCop")
            .field("lock", &self.shared.lock)
            .field("control", &*self.shared.watch().borrow())
            .finish_non_exhaustive()
    }
}

impl TrafficCop {
    pub(super) fn new(shared: Arc<Shared>, (stop, task): Spawned) -> TrafficCop {
        TrafficCop { shared, stop, task }
    }

    /// Prepares to compete for a lease on an Azure blob: `CONTAINER/NAME`, or its URL (with a SAS, if
    /// need be). Account and credential come from the environment as `trafficcop run --blob` takes
    /// them (`AZURE_STORAGE_CONNECTION_STRING`, `AZURE_STORAGE_ACCOUNT` and so on, Entra ID); blob and
    /// container are created if they are missing. Nothing is sent yet.
    ///
    /// ```no_run
    /// # async fn rebuild_the_index() {}
    /// # async fn example() -> Result<(), trafficcop::Error> {
    /// let cop = trafficcop::TrafficCop::blob("locks/index")?.start().await?;
    /// let guard = cop.acquired().await?;
    /// if let Err(lost) = guard.run(rebuild_the_index()).await {
    ///     eprintln!("{lost}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A name that cannot be a blob's; no account or credential, or ones that contradict each other.
    pub fn blob(name: &str) -> Result<Builder, Error> {
        Builder::of_blob(name)
    }

    /// Prepares to compete for a lock on a file, which is created if it is missing. On a disk of this
    /// machine it is the kernel's lock; on a drive that machines share it is a lease, as
    /// `trafficcop run --file` decides it.
    ///
    /// # Errors
    /// A path that cannot be a lock: another's content, no regular file, no permission.
    pub fn file(path: impl AsRef<Path>) -> Result<Builder, Error> {
        Builder::of_file(path.as_ref())
    }

    /// Prepares to compete for the lock of a store of your own, or of one that was made with other
    /// settings ([`crate::lease::blob::Blob`], [`crate::lease::file::File`]).
    pub fn with_store(store: impl LeaseStore + 'static) -> Builder {
        Builder::of_store(Arc::new(store))
    }

    /// Waits for control. The instance competes from its start on; after a guard was dropped it
    /// competes no more until this is called again. While control lasts every call gives a guard of the
    /// same tenure, and control is given back when the last of them is dropped.
    ///
    /// Cancel-safe: who does not wait any more goes on competing.
    ///
    /// # Errors
    /// The store refused us, or was out of reach from the beginning; the competition is over.
    pub async fn acquired(&self) -> Result<Guard, Error> {
        self.shared.acquired().await
    }

    /// Whether we are in control now. Costs a read of the clock; ask before every step that must
    /// not run twice. It turns false at the moment at which a command would be sent SIGTERM, so
    /// what was begun before it has the grace and the margin of the budget to end.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.shared.is_in_time()
    }

    /// A channel that holds where we stand, and tells each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Control> {
        self.shared.watch()
    }

    /// Stops competing: says that the work under control has ended (guards that are left have lost
    /// it), gives the lease back and returns how it all ended.
    ///
    /// # Errors
    /// The task that competes ended early, because it panicked or its runtime was shut down: then
    /// the lease was not given back, and runs out.
    pub async fn stop(self) -> Result<Ending, Error> {
        // Before the stop: the drain that follows is then over at once, and the lease given back.
        self.shared.end_work();
        // It fails only if the competition has ended already.
        let _over = self.stop.send(());
        let ended = self.task.await;
        ended.map_err(|error| Error::Failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
