//! A supervisor as the world sees it: its end of the guardian's socket, and a record of its
//! driver's calls, for the world to carry out and judge.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use trafficcop::internals::driver::{Observation, Observer, Start, Workload};
use trafficcop::internals::run::CommandWorkload;
use trafficcop::{Instant, LeaseStore, OrphanRelease, RecordUpdate, StoreInfo};
use trafficcop_core::clock::sleep;
use trafficcop_core::{
    Cause, Deadlines, Ending, Exit, Failure, Grant, Notice, Unfit, WorkloadEvent,
};
use trafficcop_guardian::Peer;

use super::pair::Life;
use super::store::Request;

pub(crate) enum Did {
    /// A frame to its guardian.
    Sent(Vec<u8>, Option<OwnedFd>),
    /// A request to the service, if the store's network does not record it.
    Asked(Request),
    Started(Start),
    Ended(Ending),
    Extended(Deadlines),
    KilledGuardian,
    /// Kill of the rest of the tree, in the guardian's place.
    Swept,
    /// An attempt to get control.
    Competed,
    /// Whether its machine is fit, as it learnt.
    HeardOfFitness(bool),
    /// Loss of the lease, by the answer to a renewal.
    HeardLost {
        until: Option<Instant>,
    },
    /// Loss of the lease, by the answer to a release.
    ReleasedLost {
        until: Option<Instant>,
    },
    Released,
    Said(Notice),
    /// A deed that no supervisor may do.
    Wrong(&'static str),
}

pub(crate) struct Link {
    pub(crate) did: Vec<Did>,
    pub(crate) to_supervisor: Vec<u8>,
    /// Release information that its guardian got last.
    pub(crate) release_info: Vec<u8>,
    /// Token that the store granted last.
    pub(crate) token: Option<u64>,
    /// Whether SIGCHLD is pending: its guardian was stopped, was continued or ended.
    pub(crate) child: bool,
    /// The guardian's state when the supervisor is polled.
    pub(crate) guardian: Life,
    pub(crate) tree_lives: bool,
    /// The condition's answer now.
    pub(crate) is_fit: bool,
}

/// One supervisor's link: its guardian's process, and its observer.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Mutex<Link>>);

impl Handle {
    pub(crate) fn new() -> Handle {
        Handle(Arc::new(Mutex::new(Link {
            did: Vec::new(),
            to_supervisor: Vec::new(),
            release_info: Vec::new(),
            token: None,
            child: false,
            guardian: Life::Runs,
            tree_lives: false,
            is_fit: true,
        })))
    }

    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().expect("whole")
    }
}

/// The guardian's process. The world polls a supervisor on every event, so no waker is needed.
impl Peer for Handle {
    fn pid(&self) -> i32 {
        1
    }

    fn control_path(&self) -> Option<&Path> {
        None
    }

    fn send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> nix::Result<usize> {
        let mut link = self.link();
        if link.guardian == Life::Dead {
            return Err(Errno::EPIPE);
        }
        let descriptor = descriptor.map(|lock| lock.try_clone_to_owned().expect("a descriptor"));
        link.did.push(Did::Sent(bytes.to_vec(), descriptor));
        Ok(bytes.len())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize> {
        let mut link = self.link();
        if link.to_supervisor.is_empty() {
            return match link.guardian {
                Life::Dead => Ok(0),
                Life::Runs | Life::Stopped(_) => Err(Errno::EAGAIN),
            };
        }
        let length = buffer.len().min(link.to_supervisor.len());
        for (place, byte) in buffer.iter_mut().zip(link.to_supervisor.drain(..length)) {
            *place = byte;
        }
        Ok(length)
    }

    fn poll_socket(&mut self, _context: &mut Context<'_>, _full: bool) -> Poll<()> {
        let link = self.link();
        match !link.to_supervisor.is_empty() || link.guardian == Life::Dead {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn poll_children(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        match std::mem::take(&mut self.link().child) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn kill(&mut self) {
        self.link().did.push(Did::KilledGuardian);
    }

    fn take_over(&mut self) {
        self.kill();
    }

    fn sweep(&mut self, _long: bool) -> bool {
        let mut link = self.link();
        link.did.push(Did::Swept);
        !link.tree_lives
    }

    fn has_ended(&mut self) -> bool {
        self.link().guardian == Life::Dead
    }

    fn retire(&mut self) {}
}

pub(crate) struct Watching {
    pub(crate) handle: Handle,
    pub(crate) workload: CommandWorkload,
    /// Time at which its condition answers, if asked.
    pub(crate) answers_at: Option<Instant>,
}

#[async_trait]
impl Workload for Watching {
    fn start(&mut self, start: Start) {
        self.handle.link().did.push(Did::Started(start));
        self.workload.start(start);
    }

    fn extend(&mut self, deadlines: Deadlines) {
        self.handle.link().did.push(Did::Extended(deadlines));
        self.workload.extend(deadlines);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        self.workload.drain(signal, end_of_grace);
    }

    fn kill(&mut self) {
        self.workload.kill();
    }

    fn pass(&mut self, signal: i32) {
        self.workload.pass(signal);
    }

    fn pause(&mut self) {
        self.workload.pause();
    }

    fn forget_release_info(&mut self) {
        self.workload.forget_release_info();
    }

    fn gives_back(&mut self, cause: Option<&Cause>, exit: Option<Exit>) {
        self.workload.gives_back(cause, exit);
    }

    fn stand_by(&mut self) {
        self.workload.stand_by();
    }

    /// Asks the condition: only its answer, and the time until then, are simulated.
    fn ask(&mut self, give_up_at: Instant) {
        let now = Instant::now();
        let takes = [5, 20, 100, 4000, 9000][now.as_nanos() as usize % 5];
        self.answers_at = Some(give_up_at.min(now + Duration::from_millis(takes)));
    }

    fn tenure_over(&mut self, cause: &Cause) {
        self.workload.tenure_over(cause);
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        let Some(at) = self.answers_at else {
            return self.workload.next_event().await;
        };
        let wait = at.since(Instant::now());
        tokio::select! {
            biased;
            event = self.workload.next_event() => event,
            () = sleep(wait) => {
                self.answers_at = None;
                let mut link = self.handle.link();
                let is_fit = link.is_fit;
                link.did.push(Did::HeardOfFitness(is_fit));
                WorkloadEvent::Condition(is_fit.then_some(()).ok_or(Unfit::ProgramRefused))
            }
        }
    }
}

impl Observer for Handle {
    fn observe(&mut self, _now: Instant, observation: &Observation<'_>) {
        if let Observation::Notice { notice, .. } = observation {
            self.link().did.push(Did::Said((*notice).clone()));
        }
    }
}

pub(crate) struct Watched {
    pub(crate) handle: Handle,
    pub(crate) store: Arc<dyn LeaseStore>,
}

#[async_trait]
impl LeaseStore for Watched {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        self.handle.link().did.push(Did::Competed);
        let reply = self.store.acquire(give_up_at).await;
        if let Ok(grant) = &reply {
            self.handle.link().token = Some(grant.token);
        }
        reply
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let reply = self.store.renew(give_up_at).await;
        if let Err(Failure::Lost { until, .. }) = &reply {
            let until = *until;
            self.handle.link().did.push(Did::HeardLost { until });
        }
        reply
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        {
            let mut link = self.handle.link();
            if link.tree_lives {
                link.did.push(Did::Wrong("releases while its tree lives"));
            }
        }
        let reply = self.store.release(give_up_at).await;
        let did = match &reply {
            Err(Failure::Lost { until, .. }) => Did::ReleasedLost { until: *until },
            _ => Did::Released,
        };
        self.handle.link().did.push(did);
        reply
    }

    async fn update_record(&self, update: RecordUpdate, until: Instant) -> Result<(), Failure> {
        self.store.update_record(update, until).await
    }

    async fn leave(&self, give_up_at: Instant) {
        self.store.leave(give_up_at).await;
    }

    async fn until_free(&self) {
        self.store.until_free().await;
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        let orphan_release = self.store.orphan_release()?;
        let release_info = orphan_release.release_info.clone();
        self.handle.link().release_info = release_info.unwrap_or_default();
        Ok(orphan_release)
    }
}
