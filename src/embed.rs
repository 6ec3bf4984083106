//! The library's interface: competes for control inside a program.
//!
//! It runs [`drive`](crate::driver::drive) with the program as the workload. Nothing here can stop the
//! program's own code: the promise holds only if the program asks.
//!
//! Without guards the lease is given back, and the core takes the instance for cordoned until the program
//! waits again.

mod builder;
mod connection;
mod error;
mod message;
mod program;
mod words;
mod worker;

use std::fmt;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use self::program::{SharedProgram, Spawned};
use crate::clock::Instant;
use crate::core::{Cause, Cordon, Ending};
use crate::lease::LeaseStore;
use crate::util::lock;

pub use builder::Builder;
pub use connection::{AccountCredential, Connection};
pub use error::{Error, Lost};
pub use message::MessageLock;
pub use program::Control;
pub use worker::{Worker, WorkerBuilder};

/// One instance that competes for control inside a program.
///
/// Keep it as long as the work. Dropping it ends control, too: [`Guard::run`] drops its future. The lease is
/// given back when the last [`Guard`] is dropped, or after the grace
/// ([`Budget::grace_on_loss`](crate::Budget::grace_on_loss); 10 s for a lock without a lease).
///
/// If the program crashes, or ends without [`TrafficCop::stop`], no guardian gives its lease back: it runs out by
/// itself. A local file's lock is free at once.
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
/// drop(guard); // The work has ended: another instance has its turn.
/// assert!(!cop.has_control());
/// cop.stop().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the competition ends when it is dropped"]
pub struct TrafficCop {
    shared: Arc<SharedProgram>,
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
    fn new(shared: Arc<SharedProgram>, (stop, task): Spawned) -> TrafficCop {
        TrafficCop { shared, stop, task }
    }

    /// Prepares to compete for a lease on an Azure blob, `CONTAINER/NAME` or its URL, with the environment's
    /// account and credential. Creates blob and container if they are missing. Sends nothing yet.
    ///
    /// # Errors
    /// If the name is invalid, or account and credential are missing or contradictory.
    pub fn blob(name: &str) -> Result<Builder, Error> {
        TrafficCop::builder().blob(name)
    }

    /// Starts with a storage account and a credential, instead of the environment's.
    pub fn builder() -> Connection {
        Connection::default()
    }

    /// Prepares to compete for a lock on a file, created if missing: the kernel's lock on a local disk, a
    /// lease on a shared drive.
    ///
    /// # Errors
    /// If the path cannot be a lock: foreign content, no regular file, no permission.
    pub fn file(path: impl AsRef<Path>) -> Result<Builder, Error> {
        Builder::of_file(path.as_ref())
    }

    /// Prepares to compete for the lock of a custom store.
    pub fn with_store(store: impl LeaseStore + 'static) -> Builder {
        Builder::of_store(Arc::new(store))
    }

    /// Waits for control. After a tenure, only this makes the instance compete again. Every call during a
    /// tenure returns a guard of it.
    ///
    /// Cancel-safe: the instance goes on competing.
    ///
    /// # Errors
    /// If the store refuses at the first contact, or does not answer within 30 s: the competition is over. Later it
    /// survives outages, and a refused credential for five minutes.
    pub async fn acquired(&self) -> Result<Guard, Error> {
        self.shared.acquired().await
    }

    /// Waits for control for at most `limit`; `None` without it, or without an answer of the store. The instance
    /// goes on competing: stop it if it should not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), trafficcop::Error> {
    /// # let directory = tempfile::tempdir().expect("a directory");
    /// # let path = directory.path().join("nightly.lock");
    /// use std::time::Duration;
    /// use trafficcop::TrafficCop;
    ///
    /// let cop = TrafficCop::file(&path)?.start().await?;
    /// match cop.try_acquire(Duration::from_secs(5)).await? {
    ///     Some(guard) => println!("in control, token {}", guard.token()),
    ///     None => println!("another instance does it"),
    /// }
    /// cop.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Like [`TrafficCop::acquired`].
    pub async fn try_acquire(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        match tokio::time::timeout(limit, self.acquired()).await {
            Ok(guard) => guard.map(Some),
            Err(_elapsed) => Ok(None),
        }
    }

    /// Returns whether this instance is in control; only reads the clock. Ask before every step that must not
    /// run twice. It turns false when a command would get SIGTERM: the step has the grace and the margin to
    /// end.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.shared.is_in_time()
    }

    /// Returns a channel with the current state and every change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Control> {
        self.shared.watch()
    }

    /// Stops competing and gives the lease back, also under guards that are left: they lose control. From an
    /// `Arc`, [`Arc::into_inner`] takes the instance.
    ///
    /// A store that does not answer delays it by up to 10 s. After a loss, guards that are left delay it by up to
    /// the grace, too.
    ///
    /// # Errors
    /// If this instance was in control and could not give the lease back (it then expires), the competition was
    /// over, or its task panicked or lost its runtime. Once control is lost or the last guard is dropped, `Ok`
    /// proves no release.
    pub async fn stop(self) -> Result<(), Error> {
        // A standby has nothing to give back.
        let had_control = self.shared.token().is_some();
        // First, so that the drain is over at once.
        self.shared.end_work();
        // Fails only if the competition is over.
        let _over = self.stop.send(());
        let ended = self.task.await;
        let ending = ended.map_err(|error| Error::Failed(error.to_string()))?;
        match ending.cause {
            Cause::Stopped(_) if ending.released || !had_control => Ok(()),
            _ => Err(Error::of_ending(&self.shared.lock, &ending)),
        }
    }
}

/// Control over the lock, while it lasts.
///
/// Dropping it gives the lease back. The instance competes again when the program waits for the next guard.
#[must_use = "control is given back when the guard is dropped"]
pub struct Guard {
    held: Arc<GuardedTenure>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", &self.held.shared.lock)
            .field("token", &self.held.token)
            .field("has_control", &self.has_control())
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Returns the fencing token, greater than any earlier one. Pass it to every resource that can refuse an
    /// older one.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// Returns whether this guard's control lasts; see [`TrafficCop::has_control`].
    #[must_use]
    pub fn has_control(&self) -> bool {
        // The deadline first: while this tenure is current it cannot be a later tenure's.
        self.held.shared.is_in_time() && self.held.shared.token() == Some(self.held.token)
    }

    /// Tells a [`watchdog`](Builder::watchdog) that the work goes on; only writes to memory. Call it at least
    /// twice in the watchdog's time.
    pub fn alive(&self) {
        if self.held.shared.token() == Some(self.held.token) {
            self.held.shared.said_alive();
        }
    }

    /// Resolves when control is lost, in doubt or given back: end the work then.
    pub async fn lost(&self) {
        let ours = Control::InControl {
            token: self.held.token,
        };
        let mut state = self.held.shared.watch();
        // Any other state: a future that is rarely polled may miss `Leaving`. An error is an end, too.
        let _gone = state.wait_for(|state| *state != ours).await;
    }

    /// Runs `future` while control lasts, then drops it where it waits.
    ///
    /// Code that computes or blocks is not stopped: it asks [`Guard::has_control`] itself.
    ///
    /// # Errors
    /// [`Lost`] if the future was dropped before it was done.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        run_while(|| self.has_control(), self.lost(), future).await
    }
}

async fn run_while<F: Future>(
    has_control: impl Fn() -> bool,
    lost: impl Future<Output = ()>,
    future: F,
) -> Result<F::Output, Lost> {
    let mut lost = pin!(lost);
    let mut future = pin!(future);
    poll_fn(|context| {
        // Before each step: the future's own wake-up may come first, and after a sleep the clock knows first.
        if lost.as_mut().poll(context).is_ready() || !has_control() {
            return Poll::Ready(Err(Lost));
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}

struct GuardedTenure {
    shared: Arc<SharedProgram>,
    token: u64,
}

impl Drop for GuardedTenure {
    fn drop(&mut self) {
        // One lock for both steps: a waiter that begins now must compete after this resigns, or it waits for
        // ever.
        let mut guards = self.shared.guards();
        self.shared.leave(self.token);
        // A guard that outlived its tenure must not end the next one.
        if self.shared.token().is_none() {
            guards.resign("its work under control has ended");
        }
        // The notified task takes this lock, too.
        drop(guards);
        self.shared.work_ended.notify_one();
    }
}

#[derive(Default)]
struct Guards {
    // Weak, so that dropping the last guard ends the tenure.
    last: Option<(u64, Weak<GuardedTenure>)>,
    waiting: usize,
    // Not competing until a waiter comes: unused control would be kept from other instances.
    resigned: bool,
    // `None` for a message, which is not competed for.
    cordons: Option<UnboundedSender<Option<Cordon>>>,
}

impl Guards {
    fn telling(cordons: UnboundedSender<Option<Cordon>>) -> Guards {
        Guards {
            cordons: Some(cordons),
            ..Guards::default()
        }
    }

    fn has_ended(&self, token: u64) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(of, held)| *of == token && held.strong_count() == 0)
    }

    fn tell(&self, cordon: Option<Cordon>) {
        if let Some(cordons) = &self.cordons {
            let _over = cordons.send(cordon);
        }
    }

    /// Gives control back; a waiter of this instance queues behind all others.
    fn resign(&mut self, why: &str) {
        // A cordon: the core's tested rules then drain, release and do not compete.
        self.tell(Some(Cordon {
            why: why.to_owned(),
            before: Instant::FOREVER,
        }));
        self.resigned = true;
        // After the cordon, not instead of it: the tenure has to end in between.
        if self.waiting > 0 {
            self.compete();
        }
    }

    fn compete(&mut self) {
        if std::mem::take(&mut self.resigned) {
            self.tell(None);
        }
    }
}

/// Counted until it or its future is dropped.
struct Waiting<'a>(&'a SharedProgram);

impl<'a> Waiting<'a> {
    fn begin(shared: &'a SharedProgram) -> Waiting<'a> {
        let mut guards = shared.guards();
        guards.waiting += 1;
        guards.compete();
        Waiting(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.guards().waiting -= 1;
    }
}

impl SharedProgram {
    fn guards(&self) -> MutexGuard<'_, Guards> {
        lock(&self.guards)
    }

    async fn acquired(self: &Arc<SharedProgram>) -> Result<Guard, Error> {
        // Subscribed first, so that no change is missed.
        let mut state = self.watch();
        let _waiting = Waiting::begin(self);
        loop {
            if *state.borrow_and_update() == Control::Ended {
                break;
            }
            if let Some(guard) = self.guard() {
                return Ok(guard);
            }
            if state.changed().await.is_err() {
                break;
            }
        }
        Err(self.ending().map_or_else(
            || Error::Failed("its runtime was shut down, or it panicked".to_owned()),
            |ending| Error::of_ending(&self.lock, ending),
        ))
    }

    fn guard(self: &Arc<SharedProgram>) -> Option<Guard> {
        let mut guards = self.guards();
        let token = self.token()?;
        if let Some((of, held)) = &guards.last
            && *of == token
        {
            // It is being given back: a new guard would guard nothing.
            let held = held.upgrade()?;
            return Some(Guard { held });
        }
        let held = Arc::new(GuardedTenure {
            shared: Arc::clone(self),
            token,
        });
        guards.last = Some((token, Arc::downgrade(&held)));
        Some(Guard { held })
    }
}

#[cfg(test)]
mod tests;
