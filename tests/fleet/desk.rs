//! How a process of the fleet asks the store, in virtual time: it lays a request on its desk, and waits
//! for the answer or the limit. Futures are polled by the fleet; dropping one leaves its request on
//! the wire.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::Failure;

use super::store::{Code, Id, Reply, Request};

/// The limit of one exchange.
const EXCHANGE: Duration = Duration::from_secs(5);

/// A process's way to the network and its view of the clock.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) now: Cell<Instant>,
    pub(crate) out: RefCell<Vec<(u64, Request)>>,
    pub(crate) wakes: RefCell<Vec<Instant>>,
    replies: RefCell<Vec<(u64, Reply)>>,
    slots: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ServiceError {
    Code(Code),
    Error {
        status: u16,
        retry_after: Option<Duration>,
    },
    Silence,
}

impl ServiceError {
    pub(crate) fn is_gone(self) -> bool {
        matches!(
            self,
            ServiceError::Code(Code::Mismatch | Code::NotPresent | Code::BlobNotFound)
        )
    }

    /// What was asked for may have been done.
    pub(crate) fn is_unclear(self) -> bool {
        match self {
            ServiceError::Code(_) => false,
            ServiceError::Error { status, .. } => !(400..500).contains(&status) || status == 408,
            ServiceError::Silence => true,
        }
    }

    pub(crate) fn doubt(self) -> Failure {
        Failure::Transient {
            why: String::new(),
            retry_after: match self {
                ServiceError::Error { retry_after, .. } => retry_after,
                _ => None,
            },
        }
    }
}

impl Desk {
    /// An answer has arrived.
    pub(crate) fn answered(&self, slot: u64, reply: Reply) {
        self.replies.borrow_mut().push((slot, reply));
    }

    /// Nobody waits for an answer any more.
    pub(crate) fn forget(&self) {
        self.replies.borrow_mut().clear();
    }

    pub(crate) async fn sleep(&self, span: Duration) {
        let until = self.now.get() + span;
        self.wakes.borrow_mut().push(until);
        poll_fn(|_| {
            if self.now.get() >= until {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    pub(crate) async fn exchange(
        &self,
        request: Request,
        give_up_at: Instant,
    ) -> Result<Reply, ServiceError> {
        let limit = give_up_at.min(self.now.get() + EXCHANGE);
        if self.now.get() >= limit {
            return Err(ServiceError::Silence);
        }
        let slot = self.slots.get();
        self.slots.set(slot + 1);
        self.out.borrow_mut().push((slot, request));
        self.wakes.borrow_mut().push(limit);
        let reply = poll_fn(|_| {
            let mut replies = self.replies.borrow_mut();
            if let Some(at) = replies.iter().position(|(theirs, _)| *theirs == slot) {
                return Poll::Ready(Some(replies.swap_remove(at).1));
            }
            if self.now.get() >= limit {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        })
        .await;
        match reply {
            None => Err(ServiceError::Silence),
            Some(Reply::Refused(code)) => Err(ServiceError::Code(code)),
            Some(Reply::Error {
                status,
                retry_after,
            }) => Err(ServiceError::Error {
                status,
                retry_after,
            }),
            Some(reply) => Ok(reply),
        }
    }

    /// Releases a lease until it is said or the time is up.
    pub(crate) async fn release_until(
        &self,
        spent: &Spent,
        give_up_at: Instant,
    ) -> Result<Returned, ServiceError> {
        let mut pause = Duration::from_millis(250);
        loop {
            let unclear = spent.unclear.replace(true);
            let release = Request::Release { id: spent.id };
            let trouble = match self.exchange(release, give_up_at).await {
                Ok(_) => return Ok(Returned::Done),
                Err(trouble) if !trouble.is_gone() => trouble,
                Err(_) if spent.had && !unclear => return Ok(Returned::Taken),
                Err(_) => return Ok(Returned::Done),
            };
            if !trouble.is_unclear() {
                spent.unclear.set(unclear);
            }
            let pause_now = match trouble {
                ServiceError::Error {
                    retry_after: Some(wished),
                    ..
                } => pause.max(wished),
                _ => pause,
            };
            if give_up_at.since(self.now.get()) <= pause_now {
                return Err(trouble);
            }
            self.sleep(pause_now).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}

/// What a guardian does with the will of a dead supervisor.
pub(crate) fn release_orphaned(desk: Rc<Desk>, id: Id) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        let give_up_at = desk.now.get() + Duration::from_secs(10);
        let _ = desk.release_until(&Spent::new(id, false), give_up_at).await;
    })
}

/// A lease that is being given back.
#[derive(Clone)]
pub(crate) struct Spent {
    pub(crate) id: Id,
    /// It was ours for certain.
    had: bool,
    /// A request to release it may have been carried out.
    pub(crate) unclear: Rc<Cell<bool>>,
}

impl Spent {
    pub(crate) fn new(id: Id, had: bool) -> Spent {
        Spent {
            id,
            had,
            unclear: Rc::default(),
        }
    }
}

/// What became of it.
#[derive(PartialEq, Eq)]
pub(crate) enum Returned {
    Done,
    /// It was not ours any more, and that was not our doing.
    Taken,
}
