//! [`Guard`]: control as long as it lasts, and its end as the word that the work has ended.
//!
//! Given out by [`TrafficCop::acquired`](super::TrafficCop::acquired). When the last guard of a tenure
//! is dropped the lease is given back, and the instance competes no more until somebody asks for a
//! guard again: to the core it is cordoned meanwhile.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Poll;

use tokio::sync::mpsc::UnboundedSender;

use super::error::{Error, Lost};
use super::program::{Control, Shared};
use crate::clock::Instant;
use crate::core::Cordon;
use crate::util::lock;

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

    /// Says that the work goes on, where a [`watchdog`](super::Builder::watchdog) was asked for. Costs a
    /// store to memory; say it at least twice in its time.
    pub fn alive(&self) {
        // Not a later tenure's: whoever kept a guard beyond its own knows nothing of that one's work.
        if self.held.shared.token() == Some(self.held.token) {
            self.held.shared.said_alive();
        }
    }

    /// Resolves when control is lost, in doubt, or was given back by
    /// [`TrafficCop::stop`](super::TrafficCop::stop): end what needs it.
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
pub(super) async fn run_while<F: Future>(
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
pub(super) struct Guards {
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
    pub(super) fn told_by(cordons: UnboundedSender<Option<Cordon>>) -> Guards {
        Guards {
            cordons: Some(cordons),
            ..Guards::default()
        }
    }

    /// Whether this tenure had guards, and has none any more.
    pub(super) fn has_ended(&self, token: u64) -> bool {
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
    pub(super) fn resign(&mut self, why: &str) {
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
    pub(super) fn guards(&self) -> MutexGuard<'_, Guards> {
        lock(&self.guards)
    }

    /// Waits for control.
    pub(super) async fn acquired(self: &Arc<Shared>) -> Result<Guard, Error> {
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
