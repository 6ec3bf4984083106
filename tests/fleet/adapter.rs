//! What `src/lease/blob.rs` does, in virtual time: the same requests in the same order, with the
//! same memory of what may be ours.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{Failure, Grant, HolderInfo};

use super::desk::{Desk, Returned, ServiceError, Spent};
use super::store::{Code, Id, LeaseState, Record, Reply, Request};

/// How long a request may be on its way.
const LATE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    proposed: Option<Id>,
    perhaps: Option<Instant>,
    held: Option<(Id, Record)>,
    spent: Option<Spent>,
    /// The lease of which it is known how much is left of it.
    breaking: Option<Id>,
    floor: u64,
}

pub(crate) struct Adapter {
    desk: Rc<Desk>,
    holder: usize,
    lease: Duration,
    state: RefCell<State>,
    /// Ids are never given twice in a schedule.
    ids: Rc<Cell<Id>>,
}

impl Adapter {
    pub(crate) fn new(
        desk: Rc<Desk>,
        holder: usize,
        lease: Duration,
        ids: Rc<Cell<Id>>,
    ) -> Adapter {
        Adapter {
            desk,
            holder,
            lease,
            state: RefCell::default(),
            ids,
        }
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// The lease that a guardian would give back for us.
    pub(crate) fn release_info(&self) -> Option<Id> {
        self.state().held.map(|(id, _)| id)
    }

    fn begin(&self) -> (Id, Option<Spent>) {
        let mut state = self.state();
        if state.held.take().is_some() {
            state.proposed = None;
            state.perhaps = None;
        }
        let id = *state.proposed.get_or_insert_with(|| {
            self.ids.set(self.ids.get() + 1);
            self.ids.get()
        });
        (id, state.spent.clone())
    }

    pub(crate) async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        let desk = &self.desk;
        let (id, spent) = self.begin();
        if let Some(spent) = spent {
            let limit = give_up_at.min(desk.now.get() + Duration::from_secs(1));
            spent.unclear.set(true);
            let release = Request::Release { id: spent.id };
            match desk.exchange(release, limit).await {
                Err(trouble) if !trouble.is_gone() => {}
                _ => self.state().spent = None,
            }
        }
        let (lease, etag, record) = match desk
            .exchange(Request::Look { lease: None }, give_up_at)
            .await
        {
            Ok(Reply::View {
                lease,
                etag,
                record,
            }) => (lease, Some(etag), record),
            Err(ServiceError::Code(Code::BlobNotFound)) => {
                match desk.exchange(Request::Create, give_up_at).await {
                    Ok(Reply::Etag(etag)) => (LeaseState::Free, Some(etag), None),
                    Err(ServiceError::Code(Code::BlobAlreadyExists)) => {
                        (LeaseState::Free, None, None)
                    }
                    Err(trouble) => return Err(trouble.doubt()),
                    Ok(other) => unreachable!("{other:?} to a create"),
                }
            }
            Err(trouble) => return Err(trouble.doubt()),
            Ok(other) => unreachable!("{other:?} to a look"),
        };
        self.seen(record);
        let may_be_ours = {
            let perhaps = self.state().perhaps;
            perhaps.is_some_and(|sent| desk.now.get() < sent + self.lease + LATE)
        };
        if lease != LeaseState::Free && !may_be_ours {
            return Err(Failure::Held(sight(record)));
        }
        let t0 = desk.now.get();
        let earlier = self.state().perhaps.replace(t0);
        let got = match desk.exchange(Request::Acquire { id }, give_up_at).await {
            Ok(Reply::Etag(etag)) => etag,
            Ok(other) => unreachable!("{other:?} to an acquire"),
            Err(trouble) => {
                if let ServiceError::Code(_) = trouble {
                    self.state().perhaps = earlier;
                }
                return Err(match trouble {
                    ServiceError::Code(Code::LeaseAlreadyPresent | Code::LeaseIsBreaking) => {
                        Failure::Held(match lease {
                            LeaseState::Free => HolderInfo::default(),
                            LeaseState::Leased | LeaseState::Breaking => sight(record),
                        })
                    }
                    trouble => trouble.doubt(),
                });
            }
        };
        let known = (etag == Some(got)).then_some((got, record));
        match self.sign(id, known, give_up_at).await {
            Ok(record) => {
                let mut state = self.state();
                state.held = Some((id, record));
                state.perhaps = None;
                state.proposed = None;
                Ok(Grant {
                    t0,
                    token: record.token,
                    failed: 0,
                })
            }
            Err(failure) => {
                {
                    let mut state = self.state();
                    state.perhaps = None;
                    state.proposed = None;
                    state.spent = Some(Spent::new(id, false));
                }
                let spent = Spent::new(id, false);
                if desk.release_until(&spent, give_up_at).await.is_ok() {
                    self.state().spent = None;
                }
                Err(failure)
            }
        }
    }

    fn seen(&self, record: Option<Record>) {
        let mut state = self.state();
        state.floor = state.floor.max(record.map_or(0, |record| record.token));
    }

    async fn sign(
        &self,
        id: Id,
        mut known: Option<(u64, Option<Record>)>,
        give_up_at: Instant,
    ) -> Result<Record, Failure> {
        let desk = &self.desk;
        let left = give_up_at.since(desk.now.get());
        let stop_at = give_up_at - (left / 4).min(Duration::from_secs(1));
        let mut written: Option<Record> = None;
        loop {
            let (etag, there) = match known.take() {
                Some(known) => known,
                None => match desk
                    .exchange(Request::Look { lease: Some(id) }, stop_at)
                    .await
                {
                    Ok(Reply::View { etag, record, .. }) => (etag, record),
                    Ok(other) => unreachable!("{other:?} to a look"),
                    Err(trouble) => {
                        self.again(trouble, stop_at).await?;
                        continue;
                    }
                },
            };
            if let Some(ours) = written
                && there == Some(ours)
            {
                return Ok(ours);
            }
            self.seen(there);
            let token = self.state().floor + 1;
            let record = Record {
                token,
                holder: self.holder,
                series: id,
                draining: false,
            };
            let set = Request::Set {
                id,
                etag: Some(etag),
                record,
            };
            match desk.exchange(set, stop_at).await {
                Ok(_) => {
                    self.seen(Some(record));
                    return Ok(record);
                }
                Err(trouble) => {
                    written = Some(record);
                    if !matches!(trouble, ServiceError::Code(Code::ConditionNotMet)) {
                        self.again(trouble, stop_at).await?;
                    } else if desk.now.get() >= stop_at {
                        return Err(trouble.doubt());
                    }
                }
            }
        }
    }

    async fn again(&self, trouble: ServiceError, stop_at: Instant) -> Result<(), Failure> {
        if trouble.is_gone() {
            return Err(Failure::Transient {
                why: String::new(),
                retry_after: None,
            });
        }
        let mut pause = Duration::from_millis(300);
        if let ServiceError::Error {
            retry_after: Some(wished),
            ..
        } = trouble
        {
            pause = pause.max(wished);
        }
        if stop_at.since(self.desk.now.get()) <= pause {
            return Err(trouble.doubt());
        }
        self.desk.sleep(pause).await;
        Ok(())
    }

    pub(crate) async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let lost = |until| Failure::Lost {
            until,
            why: String::new(),
        };
        let Some((id, _)) = self.state().held else {
            return Err(lost(None));
        };
        let trouble = match self.desk.exchange(Request::Renew { id }, give_up_at).await {
            Ok(_) => return Ok(()),
            Err(trouble) => trouble,
        };
        if let ServiceError::Code(Code::LeaseIsBrokenAndCannotBeRenewed) = trouble {
            let until = match self.rest_of_breaking(give_up_at).await {
                Ok(until) => until,
                Err(trouble) if self.state().breaking == Some(id) => return Err(trouble.doubt()),
                Err(_) => None,
            };
            let mut state = self.state();
            state.breaking = until.map(|_| id);
            state.held = state.held.filter(|_| until.is_some());
            return Err(lost(until));
        }
        if trouble.is_gone() {
            self.state().held = None;
            return Err(lost(None));
        }
        Err(trouble.doubt())
    }

    async fn rest_of_breaking(&self, give_up_at: Instant) -> Result<Option<Instant>, ServiceError> {
        let desk = &self.desk;
        let limit = give_up_at.min(desk.now.get() + Duration::from_secs(1));
        let look = desk.exchange(Request::Look { lease: None }, limit).await;
        let etag = match look {
            Ok(Reply::View {
                lease: LeaseState::Breaking,
                etag,
                ..
            }) => etag,
            Err(trouble) if !trouble.is_gone() => return Err(trouble),
            _ => return Ok(None),
        };
        let asked = desk.now.get();
        match desk.exchange(Request::RestOfBreaking { etag }, limit).await {
            Ok(Reply::Rest(seconds)) => {
                let rest = Duration::from_secs(seconds).min(self.lease);
                let rest = rest.checked_sub(Duration::from_secs(1));
                Ok(rest.map(|rest| asked + rest))
            }
            Err(ServiceError::Code(_)) => Ok(None),
            Err(trouble) => Err(trouble),
            Ok(other) => unreachable!("{other:?} to a break"),
        }
    }

    pub(crate) async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        let spent = {
            let mut state = self.state();
            let held = state.held.take().map(|(id, _)| Spent::new(id, true));
            let perhaps = state.perhaps.take().and(state.proposed);
            let ours = held.or(perhaps.map(|id| Spent::new(id, false)));
            let Some(spent) = ours.or(state.spent.clone()) else {
                return Ok(());
            };
            state.proposed = None;
            state.spent = Some(spent.clone());
            spent
        };
        let returned = self.desk.release_until(&spent, give_up_at).await;
        let returned = returned.map_err(ServiceError::doubt)?;
        self.state().spent = None;
        match returned {
            Returned::Done => Ok(()),
            Returned::Taken => Err(Failure::Lost {
                until: None,
                why: String::new(),
            }),
        }
    }

    pub(crate) async fn announce(&self, give_up_at: Instant) -> Result<(), Failure> {
        let Some((id, mut record)) = self.state().held else {
            return Ok(());
        };
        record.draining = true;
        let set = Request::Set {
            id,
            etag: None,
            record,
        };
        self.desk
            .exchange(set, give_up_at)
            .await
            .map(drop)
            .map_err(ServiceError::doubt)
    }
}

fn sight(record: Option<Record>) -> HolderInfo {
    HolderInfo {
        holder: None,
        token: record.map(|record| record.token),
        draining: record.is_some_and(|record| record.draining),
        ..HolderInfo::default()
    }
}
