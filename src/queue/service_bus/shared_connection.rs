//! The connection that there is at the moment, for everybody who needs it.
//!
//! The connection task says what it is; locks ask for it and wait.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::engine::Service;
use super::error::BusError;
use crate::azure::before;
use crate::clock::Instant;

/// See the module's text.
pub(super) struct SharedConnection {
    state: watch::Sender<State>,
    /// Somebody waits for a connection.
    pub(super) hurry: Notify,
}

#[derive(Clone, Default)]
struct State {
    service: Option<Arc<dyn Service>>,
    /// Why there is no connection.
    trouble: Option<BusError>,
    /// How many attempts have failed.
    failures: u64,
}

impl SharedConnection {
    pub(super) fn new() -> SharedConnection {
        SharedConnection {
            state: watch::Sender::new(State::default()),
            hurry: Notify::new(),
        }
    }

    /// There is a connection.
    pub(super) fn up(&self, service: Arc<dyn Service>) {
        self.state.send_modify(|state| {
            state.service = Some(service);
            state.trouble = None;
        });
    }

    /// There is none any more.
    pub(super) fn down(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.service = None;
            state.trouble = Some(why);
        });
    }

    /// An attempt to connect has failed.
    pub(super) fn failed(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.trouble = Some(why);
            state.failures += 1;
        });
    }

    /// How many attempts have failed.
    pub(super) fn failures(&self) -> u64 {
        self.state.borrow().failures
    }

    /// Why there is no connection, if there is none.
    pub(super) fn trouble(&self) -> Option<BusError> {
        let state = self.state.borrow();
        let none = || BusError::Unsent("there is no connection yet".into());
        match &state.service {
            Some(_) => None,
            None => Some(state.trouble.clone().unwrap_or_else(none)),
        }
    }

    /// The connection, once there is one, and once there is another than the one that has ended.
    pub(super) async fn service(
        &self,
        ended: Option<&Arc<dyn Service>>,
        give_up_at: Instant,
    ) -> Result<Arc<dyn Service>, BusError> {
        let good = |state: &State| {
            let service = state.service.as_ref()?;
            let is_it = ended.is_some_and(|ended| Arc::ptr_eq(ended, service));
            (!is_it).then(|| Arc::clone(service))
        };
        let mut state = self.state.subscribe();
        if good(&state.borrow()).is_none() {
            self.hurry.notify_one();
        }
        let up = state.wait_for(|state| good(state).is_some());
        let up = before(give_up_at, up).await;
        let service = up.and_then(|state| good(&*state.ok()?));
        service.ok_or_else(|| {
            self.trouble()
                .unwrap_or_else(|| BusError::Unsent("too late".into()))
        })
    }

    /// Waits until there is a connection, or an attempt fails after the first `failures`.
    pub(super) async fn tried(&self, failures: u64) -> Result<(), BusError> {
        let mut state = self.state.subscribe();
        if state.borrow().service.is_none() {
            self.hurry.notify_one();
        }
        let tried = state
            .wait_for(|state| state.service.is_some() || state.failures > failures)
            .await;
        match tried {
            Ok(state) if state.service.is_some() => Ok(()),
            Ok(state) => Err(state
                .trouble
                .clone()
                .unwrap_or_else(|| BusError::Unsent(String::new()))),
            Err(_) => Err(BusError::Unsent("the queue is closed".into())),
        }
    }

    /// Ends when an attempt fails after the first `failures`: why.
    pub(super) async fn failing(&self, failures: u64) -> BusError {
        let mut state = self.state.subscribe();
        let failed = state.wait_for(|state| state.failures > failures).await;
        let trouble = failed.ok().and_then(|state| state.trouble.clone());
        trouble.unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }
}
