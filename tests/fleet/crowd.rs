//! Many standbys on one lock, in virtual time: the real state machine of each, the requests that
//! `crates/lease/src/blob` makes, and the model of a leased blob. Nothing fails by chance. It
//! measures how long a hand-over takes and how many requests reach the service.
//!
//! The fleet's tests and `cargo bench -- crowd` judge the figures.

use std::collections::BTreeMap;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{
    Action, Bell, Budget, Cause, Event, Exit, Failure, Grant, HoldPolicy, HolderInfo, IfLost,
    Notice, Ring, Rules, Tenure, WorkloadEvent,
};

use super::clock::{MILLI, SECOND, Time, nanos};
use super::service::{Service, at};
use super::store::{Code, Id, LeaseState, Record, Reply, Request};

const LEASE: Duration = Duration::from_secs(60);
const TERM: i32 = 15;
/// Pause after which a stopped or crashed instance starts again.
const AWAY: Time = SECOND;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) standbys: usize,
    pub(crate) poll: Duration,
    /// Time that a command takes to end.
    pub(crate) drain: Duration,
    pub(crate) started_within: Duration,
    /// The service refuses requests above its target, with this Retry-After.
    pub(crate) throttles: Option<Option<Duration>>,
    pub(crate) doorbell: bool,
    pub(crate) seed: u64,
}

/// A request, with what is needed to judge the answer.
#[derive(Clone, Copy, Debug)]
enum Errand {
    Look,
    Create,
    Acquire {
        known: Option<u64>,
    },
    Read,
    Sign {
        token: u64,
    },
    Renew {
        t0: Instant,
    },
    Announce,
    Release,
    /// Releases a lease that no life of this instance knows any more.
    ReleaseInfo {
        id: Id,
    },
}

enum Due {
    Join,
    Wake {
        armed: u64,
    },
    Tell(Event),
    Send(Errand, Request),
    Arrive(Errand, Request),
    Return(Errand, Reply),
    Rang(Ring),
    /// A standby's connection reaches the supposed holder.
    Connect(Bell),
}

struct Member {
    /// Number of this life; events of earlier lives are ignored.
    life: u64,
    tenure: Tenure,
    /// Number of the last wake-up; earlier ones are void.
    armed: u64,
    /// Lease id of this series of attempts, and of its tenure.
    id: Id,
    give_up_at: Instant,
    t0: Instant,
    record: Option<Record>,
    /// The core has reported that another has control.
    waits: bool,
    runs: bool,
    rings: bool,
    /// Listeners by rank: a member, and which of its lives.
    listeners: Vec<Option<(usize, u64)>>,
}

pub(crate) struct Crowd {
    plan: Plan,
    now: Time,
    dues: BTreeMap<(Time, u64), (usize, u64, Due)>,
    made: u64,
    members: Vec<Member>,
    pub(crate) service: Service,
    jitter: fastrand::Rng,
    /// Number of commands started, and the last start.
    controlled: (usize, Time),
    gave_up: usize,
}

impl Crowd {
    /// Makes a crowd whose members are all about to start; there is no blob yet.
    pub(crate) fn new(plan: Plan) -> Crowd {
        let mut jitter = fastrand::Rng::with_seed(plan.seed);
        let mut crowd = Crowd {
            members: (0..=plan.standbys)
                .map(|_| Member::new(plan, 0, 0, jitter.u64(..)))
                .collect(),
            plan,
            now: 0,
            dues: BTreeMap::new(),
            made: 0,
            service: Service::new(LEASE, plan.throttles),
            jitter,
            controlled: (0, 0),
            gave_up: 0,
        };
        for who in 0..crowd.members.len() {
            let when = crowd.jitter.u64(..nanos(plan.started_within));
            crowd.due(when, who, Due::Join);
        }
        crowd
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Counts instances that gave up unasked.
    pub(crate) fn gave_up(&self) -> usize {
        self.gave_up
    }

    /// Counts instances that know of another's control.
    pub(crate) fn standing_by(&self) -> usize {
        self.members.iter().filter(|member| member.waits).count()
    }

    pub(crate) fn run_until(&mut self, until: Time) {
        while let Some(entry) = self.dues.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((now, _), (who, life, due)) = entry.remove_entry();
            self.now = now;
            self.happen(who, life, due);
        }
        self.now = until;
    }

    /// Runs until every instance has looked twice.
    pub(crate) fn settle(&mut self) {
        self.run_until(self.now + 3 * nanos(self.plan.poll));
    }

    /// Runs until another command starts; returns how long the lock was free.
    ///
    /// # Panics
    ///
    /// If none starts within an hour.
    fn run_until_control(&mut self) -> Duration {
        let (tenures, limit) = (self.controlled.0, self.now + 3600 * SECOND);
        while self.controlled.0 == tenures {
            assert!(self.now < limit, "no instance gets control");
            self.run_until(self.now + MILLI);
        }
        Duration::from_nanos(self.controlled.1 - self.service.until_free())
    }

    /// Asks the holder to stop; returns the time from release to control.
    pub(crate) fn hand_over(&mut self) -> Duration {
        let holder = self.holder();
        self.tell(holder, Event::StopAsked(TERM));
        self.run_until_control()
    }

    /// Kills the holder's supervisor; its guardian ends the tree and releases.
    pub(crate) fn crash(&mut self) -> Duration {
        let holder = self.holder();
        let id = self.members[holder].id;
        let will = Due::Send(Errand::ReleaseInfo { id }, Request::Release { id });
        self.due(self.now + 20 * MILLI, holder, will);
        // The kernel closes its connections.
        self.ring(holder, Ring::Closed, 0);
        self.leave(holder);
        self.run_until_control()
    }

    /// Kills the holder's machine: the lease runs out.
    pub(crate) fn power_off(&mut self) -> Duration {
        let holder = self.holder();
        self.service.is_left_to_run_out();
        self.ring(holder, Ring::Silent, 3 * SECOND);
        self.leave(holder);
        self.run_until_control()
    }

    fn holder(&self) -> usize {
        let runs = self.members.iter().position(|member| member.runs);
        runs.expect("an instance is in control")
    }

    fn ring(&mut self, who: usize, ring: Ring, after: Time) {
        for (listener, life) in self.members[who].listeners.clone().into_iter().flatten() {
            let way = self.jitter.u64(MILLI / 10..MILLI);
            self.made += 1;
            let due = (listener, life, Due::Rang(ring));
            self.dues.insert((self.now + after + way, self.made), due);
        }
        if ring != Ring::Draining {
            self.members[who].listeners.clear();
        }
    }

    fn attend(&mut self, who: usize, bell: Option<Bell>) {
        let me = (who, self.members[who].life);
        for member in &mut self.members {
            for rank in &mut member.listeners {
                rank.take_if(|listener| *listener == me);
            }
        }
        if let Some(bell) = bell {
            let way = self.jitter.u64(MILLI / 5..2 * MILLI);
            self.due(self.now + way, who, Due::Connect(bell));
        }
    }

    fn connect(&mut self, who: usize, bell: Bell) {
        let me = (who, self.members[who].life);
        let rings = |member: &&mut Member| member.rings && u128::from(member.id) == bell.nonce;
        let ring = match self.members.iter_mut().find(rings) {
            Some(holder) => {
                let free = holder.listeners.iter().position(Option::is_none);
                let rank = free.unwrap_or(holder.listeners.len());
                if rank == holder.listeners.len() {
                    holder.listeners.push(None);
                }
                holder.listeners[rank] = Some(me);
                let rank = u32::try_from(rank).expect("few");
                Ring::Greeted { rank }
            }
            None => Ring::Silent,
        };
        self.due(self.now + MILLI, who, Due::Rang(ring));
    }

    fn leave(&mut self, who: usize) {
        self.attend(who, None);
        let life = self.members[who].life + 1;
        let (now, seed) = (self.now + AWAY, self.jitter.u64(..));
        self.members[who] = Member::new(self.plan, life, now, seed);
        self.due(now, who, Due::Join);
    }

    fn due(&mut self, when: Time, who: usize, due: Due) {
        self.made += 1;
        let life = self.members[who].life;
        self.dues.insert((when, self.made), (who, life, due));
    }

    fn send(&mut self, who: usize, errand: Errand, request: Request) {
        let there = self.latency();
        self.due(self.now + there, who, Due::Arrive(errand, request));
    }

    /// Draws the one-way latency within a data centre.
    fn latency(&mut self) -> Time {
        self.jitter.u64(MILLI..5 * MILLI)
    }

    fn happen(&mut self, who: usize, life: u64, due: Due) {
        let mine = life == self.members[who].life;
        match due {
            Due::Join if mine => {
                self.members[who].id = self.jitter.u64(..);
                self.tell(who, Event::Ticked);
            }
            Due::Wake { armed } if mine && armed == self.members[who].armed => {
                self.tell(who, Event::Ticked);
            }
            Due::Tell(event) if mine => self.tell(who, event),
            Due::Send(errand, request) if mine || matches!(errand, Errand::ReleaseInfo { .. }) => {
                self.send(who, errand, request);
            }
            Due::Arrive(errand, request) => {
                let reply = self.service.handle(self.now, request);
                let back = self.latency();
                self.made += 1;
                let due = (who, life, Due::Return(errand, reply));
                self.dues.insert((self.now + back, self.made), due);
            }
            Due::Return(errand @ Errand::ReleaseInfo { id }, Reply::Error { retry_after, .. }) => {
                let pause = Duration::from_millis(250).max(retry_after.unwrap_or_default());
                let release = Due::Send(errand, Request::Release { id });
                self.due(self.now + nanos(pause), who, release);
            }
            Due::Return(errand, reply) if mine => self.returned(who, errand, reply),
            Due::Connect(bell) if mine => self.connect(who, bell),
            Due::Rang(ring) if mine => {
                let actions = self.members[who].tenure.rang(at(self.now), ring);
                self.act(who, actions);
                self.acted(who);
            }
            Due::Join
            | Due::Wake { .. }
            | Due::Tell(_)
            | Due::Send(..)
            | Due::Return(..)
            | Due::Rang(_)
            | Due::Connect(_) => {}
        }
    }

    fn tell(&mut self, who: usize, event: Event) {
        if matches!(event, Event::Workload(WorkloadEvent::TreeEmpty { .. })) {
            self.members[who].runs = false;
        }
        let now = at(self.now);
        if event != Event::Ticked {
            let actions = self.members[who].tenure.step(now, Event::Ticked);
            self.act(who, actions);
        }
        let actions = self.members[who].tenure.step(now, event);
        self.act(who, actions);
        self.acted(who);
    }

    fn acted(&mut self, who: usize) {
        let member = &mut self.members[who];
        if let Some(ending) = member.tenure.ending() {
            self.gave_up += usize::from(ending.cause != Cause::Stopped(TERM));
            return self.leave(who);
        }
        member.armed += 1;
        let (wake_at, armed) = (member.tenure.wake_at(), member.armed);
        if wake_at < Instant::FOREVER {
            self.due(nanos(wake_at.since(at(0))), who, Due::Wake { armed });
        }
    }

    fn act(&mut self, who: usize, actions: Vec<Action>) {
        let id = self.members[who].id;
        for action in actions {
            match action {
                Action::Acquire { give_up_at } => {
                    self.members[who].give_up_at = give_up_at;
                    self.send(who, Errand::Look, Request::Look { lease: None });
                }
                Action::Renew { .. } => {
                    let t0 = at(self.now);
                    self.send(who, Errand::Renew { t0 }, Request::Renew { id });
                }
                Action::Start(_) => {
                    let others = self.members.iter().filter(|member| member.runs).count();
                    assert_eq!(others, 0, "two commands ran at once");
                    self.attend(who, None);
                    self.members[who].runs = true;
                    self.members[who].rings = self.plan.doorbell;
                    self.members[who].waits = false;
                    self.controlled = (self.controlled.0 + 1, self.now);
                    self.due(
                        self.now,
                        who,
                        Due::Tell(Event::Workload(WorkloadEvent::Started { pid: 1 })),
                    );
                }
                Action::Drain { .. } => self.ends(who, self.plan.drain),
                Action::Attend { bell } => self.attend(who, bell),
                Action::Kill => self.ends(who, Duration::ZERO),
                Action::Announce => {
                    self.ring(who, Ring::Draining, 0);
                    let record = self.members[who].record.expect("who drains had control");
                    let (etag, draining) = (None, true);
                    let record = Record { draining, ..record };
                    self.send(who, Errand::Announce, Request::Set { id, etag, record });
                }
                Action::Release { .. } => self.send(who, Errand::Release, Request::Release { id }),
                Action::Notify(Notice::StandingBy(_)) => self.members[who].waits = true,
                Action::Extend(_)
                | Action::Abandon
                | Action::StandBy
                | Action::TenureOver { .. }
                | Action::Notify(_) => {}
                Action::Withdraw { .. }
                | Action::Record { .. }
                | Action::Ask { .. }
                | Action::Look { .. } => {
                    unreachable!(
                        "only a holder is stopped, and it has no task and no condition: {action:?}"
                    )
                }
            }
        }
    }

    fn ends(&mut self, who: usize, after: Duration) {
        let when = self.now + nanos(after);
        self.due(
            when,
            who,
            Due::Tell(Event::Workload(WorkloadEvent::Exited(Exit::Code(0)))),
        );
        self.due(
            when,
            who,
            Due::Tell(Event::Workload(WorkloadEvent::TreeEmpty { at: at(when) })),
        );
    }

    /// Handles an answer: the steps of `crates/lease/src/blob/acquire.rs`, and what follows from
    /// the others.
    fn returned(&mut self, who: usize, errand: Errand, reply: Reply) {
        let id = self.members[who].id;
        match (errand, reply) {
            (Errand::Look, Reply::View { lease, record, .. }) if lease != LeaseState::Free => {
                self.refuse(
                    who,
                    Failure::Held(record.map_or_else(HolderInfo::default, |record| {
                        sight(record, self.plan.doorbell)
                    })),
                );
            }
            (Errand::Look, Reply::View { etag, record, .. }) => {
                self.members[who].record = record;
                self.acquire(who, Some(etag));
            }
            (Errand::Look, Reply::Refused(Code::BlobNotFound)) => {
                self.send(who, Errand::Create, Request::Create);
            }
            (Errand::Create, Reply::Etag(etag)) => self.acquire(who, Some(etag)),
            (Errand::Create, Reply::Refused(_)) => self.acquire(who, None),
            (Errand::Acquire { known }, Reply::Etag(etag)) if known == Some(etag) => {
                let record = self.members[who].record;
                self.sign(who, etag, record);
            }
            (Errand::Acquire { .. }, Reply::Etag(_)) => {
                self.send(who, Errand::Read, Request::Look { lease: Some(id) });
            }
            (Errand::Acquire { .. }, Reply::Refused(_)) => {
                self.members[who].record = None;
                self.refuse(who, Failure::Held(HolderInfo::default()));
            }
            (Errand::Read, Reply::View { etag, record, .. }) => self.sign(who, etag, record),
            (Errand::Sign { token }, Reply::Etag(_)) => {
                let t0 = self.members[who].t0;
                let (failed, grant) = (0, Event::Acquired);
                self.tell(who, grant(Ok(Grant { t0, token, failed })));
            }
            (Errand::Renew { t0 }, reply) => {
                let reply = match reply {
                    Reply::Etag(_) => Ok(()),
                    Reply::Refused(_) => Err(lost()),
                    other => Err(doubt(other)),
                };
                self.tell(who, Event::Renewed { t0, reply });
            }
            (Errand::Release, Reply::Done) => {
                self.ring(who, Ring::Released, 0);
                self.members[who].rings = false;
                self.members[who].id = self.jitter.u64(..);
                self.tell(who, Event::Released(Ok(())));
            }
            (Errand::Announce | Errand::ReleaseInfo { .. }, _) => {}
            (Errand::Release, Reply::Refused(_)) => {
                self.members[who].id = self.jitter.u64(..);
                self.tell(who, Event::Released(Err(lost())));
            }
            // A request under the lease is repeated after a pause.
            (Errand::Release, Reply::Error { retry_after, .. }) => {
                let pause = Duration::from_millis(250).max(retry_after.unwrap_or_default());
                let due = Due::Send(errand, Request::Release { id });
                self.due(self.now + nanos(pause), who, due);
            }
            (Errand::Read | Errand::Sign { .. }, Reply::Error { retry_after, .. }) => {
                let pause = Duration::from_millis(300).max(retry_after.unwrap_or_default());
                let stop_at = self.members[who].give_up_at - Duration::from_secs(1);
                if at(self.now) + pause < stop_at {
                    let look = Request::Look { lease: Some(id) };
                    self.due(self.now + nanos(pause), who, Due::Send(Errand::Read, look));
                } else {
                    // Released once, in the background; otherwise it would have to run out.
                    self.send(who, Errand::ReleaseInfo { id }, Request::Release { id });
                    self.members[who].id = self.jitter.u64(..);
                    self.refuse(who, doubt(reply));
                }
            }
            (Errand::Look | Errand::Create | Errand::Acquire { .. }, Reply::Error { .. }) => {
                self.refuse(who, doubt(reply));
            }
            (errand, reply) => unreachable!("{errand:?} was answered by {reply:?}"),
        }
    }

    fn acquire(&mut self, who: usize, known: Option<u64>) {
        self.members[who].t0 = at(self.now);
        let id = self.members[who].id;
        self.send(who, Errand::Acquire { known }, Request::Acquire { id });
    }

    fn sign(&mut self, who: usize, etag: u64, before: Option<Record>) {
        let id = self.members[who].id;
        let token = before.map_or(0, |record| record.token) + 1;
        let record = Record {
            token,
            holder: who,
            series: id,
            draining: false,
        };
        self.members[who].record = Some(record);
        let etag = Some(etag);
        self.send(
            who,
            Errand::Sign { token },
            Request::Set { id, etag, record },
        );
    }

    fn refuse(&mut self, who: usize, failure: Failure) {
        self.tell(who, Event::Acquired(Err(failure)));
    }
}

impl Member {
    fn new(plan: Plan, life: u64, now: Time, seed: u64) -> Member {
        let rules = Rules {
            budget: Some(Budget::for_lease(LEASE)),
            poll: Some(plan.poll),
            wait: None,
            patience: Duration::from_secs(30),
            auth_patience: std::time::Duration::from_secs(300),
            grace: plan.drain + Duration::from_secs(1),
            stop_signal: TERM,
            if_lost: IfLost::Compete,
            hold_policy: HoldPolicy::default(),
            once: None,
            on_terminal: false,
            seed,
        };
        Member {
            life,
            tenure: Tenure::new(rules, at(now)),
            armed: 0,
            id: seed,
            give_up_at: Instant::FOREVER,
            t0: Instant::ZERO,
            record: None,
            waits: false,
            runs: false,
            rings: false,
            listeners: Vec::new(),
        }
    }
}

/// Returns what a standby learns from a record.
fn sight(record: Record, doorbell: bool) -> HolderInfo {
    let bell = Bell {
        address: ([10, 0, 0, 1], 1).into(),
        nonce: u128::from(record.series),
    };
    HolderInfo {
        bell: doorbell.then_some(Box::new(bell)),
        holder: Some(record.holder.to_string()),
        token: Some(record.token),
        draining: record.draining,
        ..HolderInfo::default()
    }
}

fn lost() -> Failure {
    Failure::Lost {
        until: None,
        why: String::new(),
    }
}

/// Returns the failure for an answer that says nothing about the lease.
fn doubt(reply: Reply) -> Failure {
    let retry_after = match reply {
        Reply::Error { retry_after, .. } => retry_after,
        _ => None,
    };
    Failure::Transient {
        why: format!("{reply:?}"),
        retry_after,
    }
}
