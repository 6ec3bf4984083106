//! The library's face: compete for control inside a program, instead of wrapping a command.
//!
//! Used by programs; `trafficcop run` does not need it. It drives the same [`drive`](crate::driver::drive)
//! with a workload that is the calling program itself: what a guardian would do by signals is done here
//! by [`TrafficCop::has_control`] turning false and by [`Guard::run`] dropping its future. Nothing here
//! can stop the program's own code, so the promise is only as good as its asking.
//!
//! Here are [`TrafficCop`], one instance that competes, as a task of the program's runtime; [`Guard`],
//! control as long as it lasts; and what is said when there is none. When the last guard of a tenure is
//! dropped the lease is given back, and the instance competes no more until somebody asks for a guard
//! again: to the core it is cordoned meanwhile.
//!
//! | file | purpose |
//! |---|---|
//! | `builder` | [`Builder`]: which lock, and how to compete for it |
//! | `connection` | [`Connection`]: the account and the credential that a program has |
//! | `error` | [`Error`], [`Lost`]: why there is no control, or none any more |
//! | `message` | [`MessageLock`]: the same for a message of a queue |
//! | `program` | the program as a workload, and what it shares with those above |
//! | `words` | what messages call the settings of a program |
//! | `worker` | [`Worker`]: takes messages from a queue |

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

use self::program::{Shared, Spawned};
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
/// Dropping it ends the competition as well, but as nobody then says that the work has ended, the
/// lease is kept for the grace of its budget (10 s on a lock that has none) before it is given back, or
/// until the last [`Guard`] is dropped.
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
    fn new(shared: Arc<Shared>, (stop, task): Spawned) -> TrafficCop {
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
        TrafficCop::builder().blob(name)
    }

    /// Names the storage account and the credential of a lease on a blob, instead of by the environment: for a
    /// program that has them from a secret store, or that works with two accounts.
    pub fn builder() -> Connection {
        Connection::default()
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

    /// Prepares to compete for the lock of a store of your own.
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

    /// Waits for control for `limit` at most; `None`: this instance was not given it in that time. The first answer
    /// of a store takes a round trip. The instance goes on competing, and may have control when this is called again:
    /// one that is not to, is stopped.
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
    /// As [`TrafficCop::acquired`].
    pub async fn try_acquire(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        match tokio::time::timeout(limit, self.acquired()).await {
            Ok(guard) => guard.map(Some),
            Err(_elapsed) => Ok(None),
        }
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
    /// it), and gives the lease back.
    ///
    /// # Errors
    /// The competition was over before, as [`TrafficCop::acquired`] reports it. The lease could not be given back, or
    /// the task that competes ended early, because it panicked or its runtime was shut down: then the lease runs out
    /// by itself.
    pub async fn stop(self) -> Result<(), Error> {
        // Where it stands by there is nothing to give back.
        let had_control = self.shared.token().is_some();
        // Before the stop: the drain that follows is then over at once, and the lease given back.
        self.shared.end_work();
        // It fails only if the competition has ended already.
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
/// Dropped, it says that the work has ended: the lease is given back at once, and this instance
/// competes again when it is asked for the next guard.
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
    /// The fencing token: greater than that of every tenure before. Give it to every resource that
    /// can refuse an older one.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// Whether this guard's control lasts. Costs a read of the clock; ask before every step that must
    /// not run twice. It turns false at the moment at which a command would be sent SIGTERM, so what
    /// was begun before it has the grace and the margin of the budget to end.
    #[must_use]
    pub fn has_control(&self) -> bool {
        // The deadline goes first: a later tenure's cannot be read while ours is still the present one.
        self.held.shared.is_in_time() && self.held.shared.token() == Some(self.held.token)
    }

    /// Says that the work goes on, where a [`watchdog`](Builder::watchdog) was asked for. Costs a
    /// store to memory; say it at least twice in its time.
    pub fn alive(&self) {
        // Not a later tenure's: whoever kept a guard beyond its own knows nothing of that one's work.
        if self.held.shared.token() == Some(self.held.token) {
            self.held.shared.said_alive();
        }
    }

    /// Resolves when control is lost, in doubt, or was given back by
    /// [`TrafficCop::stop`](TrafficCop::stop): end what needs it.
    pub async fn lost(&self) {
        let ours = Control::InControl {
            token: self.held.token,
        };
        let mut state = self.held.shared.watch();
        // Any other state, and not `Leaving` alone: who is not polled for long may see what came after
        // it. It fails only when there is nobody left to be told by, which is an end as well.
        let _gone = state.wait_for(|state| *state != ours).await;
    }

    /// Runs `future` while control lasts: it is dropped when control is lost, wherever it waits.
    ///
    /// What does not wait is not stopped: code that computes or blocks asks
    /// [`Guard::has_control`] itself.
    ///
    /// # Errors
    /// [`Lost`]: it was dropped before it was done.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        run_while(|| self.has_control(), self.lost(), future).await
    }
}

/// Runs `future` until `lost`, and does not begin a step of it without control.
async fn run_while<F: Future>(
    has_control: impl Fn() -> bool,
    lost: impl Future<Output = ()>,
    future: F,
) -> Result<F::Output, Lost> {
    let mut lost = pin!(lost);
    let mut future = pin!(future);
    poll_fn(|context| {
        // Before each step, because the future's own wake-up may come first. The clock is asked, too:
        // after a sleep of the machine it is the first to know.
        if lost.as_mut().poll(context).is_ready() || !has_control() {
            return Poll::Ready(Err(Lost));
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}

/// What all guards of one tenure have: dropped with the last of them.
struct GuardedTenure {
    shared: Arc<Shared>,
    token: u64,
}

impl Drop for GuardedTenure {
    fn drop(&mut self) {
        // One step to whoever begins to wait at this moment: the word that it competes must come after
        // ours that we do not, or it would wait for ever.
        let mut guards = self.shared.guards();
        self.shared.leave(self.token);
        // A guard that was kept beyond its tenure says nothing of the next one.
        if self.shared.token().is_none() {
            guards.resign("its work under control has ended");
        }
        // Whoever is woken locks it as well.
        drop(guards);
        self.shared.work_ended.notify_one();
    }
}

/// The guards that were given out, and those who wait for one.
#[derive(Default)]
struct Guards {
    // Those of the last tenure that had any. Weak, so that the last guard to be dropped ends it.
    last: Option<(u64, Weak<GuardedTenure>)>,
    // How many wait for one.
    waiting: usize,
    // We do not compete until somebody waits for one: control that nobody wants would be kept from
    // those who do.
    resigned: bool,
    // How the core is told of that; `None` for a message, which is not competed for.
    cordons: Option<UnboundedSender<Option<Cordon>>>,
}

impl Guards {
    fn told_by(cordons: UnboundedSender<Option<Cordon>>) -> Guards {
        Guards {
            cordons: Some(cordons),
            ..Guards::default()
        }
    }

    /// Whether this tenure had guards, and has none any more.
    fn has_ended(&self, token: u64) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(of, held)| *of == token && held.strong_count() == 0)
    }

    fn tell(&self, cordon: Option<Cordon>) {
        if let Some(cordons) = &self.cordons {
            // It fails only if the competition has ended already.
            let _over = cordons.send(cordon);
        }
    }

    /// Control is given back; whoever waits for it here waits behind all others.
    fn resign(&mut self, why: &str) {
        // To the core this machine must not have control: so it drains, releases and does not compete,
        // by rules that are tested for that.
        self.tell(Some(Cordon {
            why: why.to_owned(),
            before: Instant::FOREVER,
        }));
        self.resigned = true;
        // Said after it was taken back, and not left out: the tenure has to end in between.
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

/// One who waits for a guard; counted until it is dropped, also where its future was.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn begin(shared: &'a Shared) -> Waiting<'a> {
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

impl Shared {
    fn guards(&self) -> MutexGuard<'_, Guards> {
        lock(&self.guards)
    }

    /// Waits for control.
    async fn acquired(self: &Arc<Shared>) -> Result<Guard, Error> {
        // Watched before anything is asked, so that no change is missed in between.
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

    /// A guard of the present tenure, unless it has had its guards.
    fn guard(self: &Arc<Shared>) -> Option<Guard> {
        let mut guards = self.guards();
        let token = self.token()?;
        if let Some((of, held)) = &guards.last
            && *of == token
        {
            // It has had its guards, and is being given back: a new one would have nothing to guard.
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
