//! The supervisor's side of a pair's guardian (`src/guardian/handle.rs`) as the shipped driver's workload, and
//! what else the driver calls: each call is written down, for the world to carry it out and to judge it.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use trafficcop::internals::clock::sleep;
use trafficcop::internals::core::{Deadlines, Failure, Grant, Notice, WorkloadEvent};
use trafficcop::internals::driver::{Observation, Observer, Start, Workload};
use trafficcop::internals::guardian::liveness::{Beat, LivenessTimer};
use trafficcop::internals::guardian::wire::{Event as WireEvent, FRAME, Request};
use trafficcop::{Instant, LeaseStore, OrphanRelease, RecordUpdate, StoreInfo};

use super::pair::Life;

/// What a supervisor did, in its order.
pub(crate) enum Did {
    /// It sends this to its guardian.
    Sent(Vec<u8>),
    Started(Start),
    Extended(Deadlines),
    /// It kills its guardian, which is silent, and the tree.
    GaveUpGuardian,
    /// The guardian is dead: it kills what lives of the tree.
    Killed,
    /// The guardian is dead: it saw the tree empty.
    SawEmpty,
    /// It asks for control.
    Competed,
    /// It was told that the lease is lost, by the answer to a renewal.
    HeardLost {
        until: Option<Instant>,
    },
    /// ... by the answer to a release.
    ReleasedLost,
    Said(Notice),
    /// What no supervisor may do.
    Wrong(&'static str),
}

/// The supervisor's side of the guardian (`GuardianHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attendance {
    Well,
    Lost,
    Over,
}

/// What a supervisor shares with the world.
pub(crate) struct Link {
    pub(crate) did: Vec<Did>,
    pub(crate) to_supervisor: Vec<u8>,
    /// As they are when the supervisor is polled.
    pub(crate) guardian: Life,
    pub(crate) tree_lives: bool,
    attendance: Attendance,
    busy: bool,
    /// When the guardian kills on its own, as it was told last.
    kill_at: Instant,
    pulse: LivenessTimer,
    inbox: VecDeque<WorkloadEvent>,
}

/// One supervisor's driver sees it as its workload, its observer, and round its store.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Mutex<Link>>);

impl Handle {
    pub(crate) fn new() -> Handle {
        Handle(Arc::new(Mutex::new(Link {
            did: Vec::new(),
            to_supervisor: Vec::new(),
            guardian: Life::Runs,
            tree_lives: false,
            attendance: Attendance::Well,
            busy: false,
            kill_at: Instant::FOREVER,
            pulse: LivenessTimer::new(),
            inbox: VecDeque::new(),
        })))
    }

    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().expect("whole")
    }
}

impl Link {
    fn demand(&mut self, request: Request, payload: &[u8]) {
        if self.attendance == Attendance::Well && self.guardian != Life::Dead {
            let frame = request.encode();
            self.did.push(Did::Sent([&frame[..], payload].concat()));
        }
    }

    /// While the guardian runs it answers every ping: only else is its pulse worth following.
    fn feels_pulse(&self) -> bool {
        let runs = self.guardian == Life::Runs;
        self.attendance == Attendance::Well && self.busy && !(runs && self.pulse.is_answered())
    }

    fn read(&mut self) {
        if self.attendance != Attendance::Well {
            return;
        }
        let bytes = std::mem::take(&mut self.to_supervisor);
        for frame in bytes.as_chunks::<FRAME>().0 {
            let news = match WireEvent::decode(frame).expect("the guardian is of sound mind") {
                WireEvent::Pong(seq) => {
                    self.pulse.answered(seq);
                    continue;
                }
                WireEvent::Workload(news) => news,
                WireEvent::Ready | WireEvent::Unready { .. } => {
                    unreachable!("it is ready long since")
                }
            };
            match news {
                WorkloadEvent::Started { .. } => self.pulse.started(),
                WorkloadEvent::NotStarted { .. } | WorkloadEvent::TreeEmpty { .. } => {
                    self.busy = false;
                }
                _ => {}
            }
            self.inbox.push_back(news);
        }
        if self.guardian == Life::Dead {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.busy = false;
        self.attendance = Attendance::Lost;
        self.did.push(Did::GaveUpGuardian);
        self.inbox.push_back(WorkloadEvent::Lost);
    }

    /// What there is to tell, or how long to wait for it at most.
    fn look(&mut self) -> Result<WorkloadEvent, Option<Duration>> {
        self.read();
        let now = Instant::now();
        loop {
            if let Some(news) = self.inbox.pop_front() {
                return Ok(news);
            }
            match self.attendance {
                Attendance::Well if self.feels_pulse() => {
                    let beat = if now >= self.kill_at {
                        match self.pulse.hurry(now) {
                            Beat::Quiet => self.pulse.look(now),
                            beat => beat,
                        }
                    } else {
                        self.pulse.look(now)
                    };
                    match beat {
                        Beat::Quiet => {}
                        Beat::Ping(seq) => self.demand(Request::Ping(seq), &[]),
                        Beat::Silent => {
                            self.lose();
                            continue;
                        }
                    }
                    let next = self.pulse.next(now);
                    let deadline = (now < self.kill_at).then(|| self.kill_at.since(now));
                    return Err(Some(deadline.map_or(next, |deadline| next.min(deadline))));
                }
                Attendance::Lost if !self.tree_lives => {
                    self.did.push(Did::SawEmpty);
                    self.attendance = Attendance::Over;
                    return Ok(WorkloadEvent::TreeEmpty { at: now });
                }
                Attendance::Lost => {
                    self.did.push(Did::Killed);
                    return Err(None);
                }
                Attendance::Well | Attendance::Over => return Err(None),
            }
        }
    }
}

/// The driver's workload: the guardian's handle, and the store that knows what the guardian is to release.
pub(crate) struct Command {
    pub(crate) handle: Handle,
    pub(crate) store: Arc<dyn LeaseStore>,
}

#[async_trait]
impl Workload for Command {
    fn start(&mut self, start: Start) {
        let release_info = self.store.orphan_release().expect("it is no file");
        let release_info = release_info.release_info.expect("there is a lease");
        let mut link = self.handle.link();
        link.did.push(Did::Started(start));
        if link.attendance != Attendance::Well {
            let refused = WorkloadEvent::NotStarted { errno: 3 };
            return link.inbox.push_back(refused);
        }
        if std::mem::replace(&mut link.busy, true) {
            return link.did.push(Did::Wrong("starts a command beside another"));
        }
        link.pulse.starts();
        link.kill_at = start.deadlines.kill_at;
        let payload = [&start.token.to_le_bytes()[..], &release_info].concat();
        let request = Request::Start {
            program: 0,
            in_control: true,
            deadlines: start.deadlines,
            stop_signal: 15,
            env: 8,
            release_info: u32::try_from(release_info.len()).expect("short"),
            lock: false,
            input: false,
        };
        link.demand(request, &payload);
    }

    fn extend(&mut self, deadlines: Deadlines) {
        let mut link = self.handle.link();
        link.kill_at = deadlines.kill_at;
        link.did.push(Did::Extended(deadlines));
        link.demand(Request::Extend(deadlines), &[]);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        let request = Request::Drain {
            signal,
            end_of_grace,
        };
        self.handle.link().demand(request, &[]);
    }

    fn kill(&mut self) {
        self.handle.link().demand(Request::Kill, &[]);
    }

    fn pass(&mut self, _signal: i32) {}

    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {
        let request = Request::SetReleaseInfo { release_info: 0 };
        self.handle.link().demand(request, &[]);
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            let looked = self.handle.link().look();
            match looked {
                Ok(news) => return news,
                Err(wait) => until_polled_again(wait).await,
            }
        }
    }
}

/// The world polls a supervisor whenever something has come for it; besides that, after so long.
async fn until_polled_again(span: Option<Duration>) {
    let mut timer = pin!(async {
        match span {
            Some(span) => sleep(span).await,
            None => pending().await,
        }
    });
    let mut polled = false;
    poll_fn(|context| {
        let again = std::mem::replace(&mut polled, true);
        match timer.as_mut().poll(context) {
            Poll::Pending if !again => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

impl Observer for Handle {
    fn observe(&mut self, _now: Instant, observation: &Observation<'_>) {
        if let Observation::Notice { notice, .. } = observation {
            self.link().did.push(Did::Said((*notice).clone()));
        }
    }
}

/// The shipped store, with what was asked of it and what it answered.
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
        self.store.acquire(give_up_at).await
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
            if link.tree_lives && link.attendance != Attendance::Over {
                link.did.push(Did::Wrong("releases while its tree lives"));
            }
        }
        let reply = self.store.release(give_up_at).await;
        if let Err(Failure::Lost { .. }) = &reply {
            self.handle.link().did.push(Did::ReleasedLost);
        }
        reply
    }

    async fn update_record(&self, update: RecordUpdate, until: Instant) -> Result<(), Failure> {
        self.store.update_record(update, until).await
    }

    async fn leave(&self, give_up_at: Instant) {
        self.store.leave(give_up_at).await;
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        self.store.orphan_release()
    }
}
