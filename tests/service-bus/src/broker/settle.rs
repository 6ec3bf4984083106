//! Messages go out, dispositions come in and are answered.

use std::time::Duration;

use crate::codec::performative::{Disposition, Performative};
use crate::codec::state::{AmqpError, DeliveryState};
use crate::codec::{Guid, Message, Value};

use super::engine::{Answer, Engine, Request};
use super::faults::{Act, On};
use super::journal::{Event, Outcome, Way};
use super::namespace::{Node, Place, wall_millis};
use super::session::LinkEnd;
use super::store::{MessageState, Stored};
use super::{LOCK_LOST, LOCK_LOST_TEXT};

/// Lock time of a message in a session: longer than any test.
const UNDER_A_SESSION: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Clone, Debug)]
pub(crate) struct Unsettled {
    pub(crate) handle: u32,
    /// The lock; `None` for a reply of `$cbs` or `$management`.
    lock: Option<(Place, Guid)>,
}

struct Parcel {
    message: Message,
    tag: Vec<u8>,
    settled: bool,
    lock: Option<(Place, Guid)>,
}

impl Engine {
    /// Delivers all it can, one message to each link in turn, and answers drains.
    pub(crate) fn deliver_all(&mut self) {
        loop {
            let mut any = false;
            for (id, channel, handle) in self.takers() {
                any |= self.deliver_one(id, channel, handle);
            }
            if !any {
                break;
            }
        }
        self.answer_drains();
    }

    /// Lists the links with credit, on connections that are not frozen.
    fn takers(&self) -> Vec<(u64, u16, u32)> {
        let mut takers = Vec::new();
        for (id, connection) in self.connections.iter().filter(|(_, c)| !c.frozen) {
            for (channel, session) in connection.sessions.iter().filter(|(_, s)| s.can_send()) {
                for (handle, link) in &session.links {
                    if let LinkEnd::Out(out) = &link.end
                        && out.credit > 0
                    {
                        takers.push((*id, *channel, *handle));
                    }
                }
            }
        }
        takers
    }

    fn deliver_one(&mut self, id: u64, channel: u16, handle: u32) -> bool {
        let Some(parcel) = self.next_parcel(id, channel, handle) else {
            return false;
        };
        let address = parcel.lock.as_ref().map(|(place, _)| place.address());
        let act = address.and_then(|address| {
            let act = self.faults.next(On::Deliver, &address)?;
            self.log(Event::Faulted {
                on: On::Deliver,
                act: act.clone(),
            });
            Some(act)
        });
        if act == Some(Act::Cut) {
            self.cut(id);
            return true;
        }
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let max_frame = connection.max_frame;
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return false;
        };
        let Parcel {
            message,
            tag,
            settled,
            lock,
        } = parcel;
        let delivery = session.deliver(handle, tag, settled, &message, max_frame);
        if !settled {
            session
                .unsettled
                .insert(delivery, Unsettled { handle, lock });
        }
        if let Some(link) = session.links.get_mut(&handle) {
            link.active = now;
            if let LinkEnd::Out(out) = &mut link.end {
                out.credit -= 1;
                out.delivery_count = out.delivery_count.wrapping_add(1);
            }
        }
        connection.flush(channel);
        match act {
            Some(Act::Detach { condition }) => {
                let error = AmqpError::new(condition, "The link was detached by force.");
                self.detach(id, channel, handle, Some(error));
            }
            Some(Act::CutAfter) => {
                // Not cut: everything written goes out.
                self.connections.remove(&id);
                self.log(Event::Disconnected { connection: id });
                self.free_sessions(|holder| holder.connection == id);
            }
            Some(Act::Freeze) => self.freeze(id),
            _ => {}
        }
        true
    }

    /// Returns the next item for a link: a reply, or a message that is now locked (or removed).
    fn next_parcel(&mut self, id: u64, channel: u16, handle: u32) -> Option<Parcel> {
        let session = self.connections.get_mut(&id)?.sessions.get_mut(&channel)?;
        let link = session.links.get_mut(&handle)?;
        let LinkEnd::Out(out) = &mut link.end else {
            return None;
        };
        if out.credit == 0 {
            return None;
        }
        let (settle_mode, of_session) = (out.settle_mode, out.of_session.clone());
        let of_session = of_session.as_deref();
        let place = match &link.node {
            Node::Entity(place) => place.clone(),
            Node::Cbs | Node::Management(_) => {
                return Some(Parcel {
                    message: out.outbox.pop_front()?,
                    tag: Guid::new().0.to_vec(),
                    settled: settle_mode != 0,
                    lock: None,
                });
            }
        };
        let entity = self.namespace.entity(&place)?;
        if entity.settings.disabled || !entity.shelf(place.dead).has_ready(of_session) {
            return None;
        }
        let lock = match of_session {
            // It ends with the session's.
            Some(_) => UNDER_A_SESSION,
            None => entity.settings.lock,
        };
        let address = place.address();
        let shelf = self.namespace.shelf_mut(&place)?;
        if settle_mode == 1 {
            let (sequence, stored) = shelf.remove_next(of_session)?;
            let message = self.dressed(&place, sequence, &stored, None);
            self.log(Event::Removed { address, sequence });
            return Some(Parcel {
                message,
                tag: Guid::new().to_dotnet().to_vec(),
                settled: true,
                lock: None,
            });
        }
        let (sequence, token) = shelf.lock_next(of_session, self.now, lock)?;
        let stored = shelf.get(sequence)?.clone();
        let message = self.dressed(&place, sequence, &stored, Some(token));
        self.log(Event::Delivered {
            address,
            sequence,
            token,
            failed: stored.failed,
        });
        Some(Parcel {
            message,
            tag: token.to_dotnet().to_vec(),
            settled: false,
            lock: Some((place, token)),
        })
    }

    pub(crate) fn dressed(
        &self,
        place: &Place,
        sequence: u64,
        stored: &Stored,
        token: Option<Guid>,
    ) -> Message {
        let mut message = stored.message.clone();
        message.set_delivery_count(stored.failed);
        message.annotate("x-opt-sequence-number", Value::Long(sequence as i64));
        message.annotate("x-opt-enqueued-time", Value::Timestamp(stored.enqueued));
        if place.dead {
            message.annotate(
                "x-opt-deadletter-source",
                Value::string(place.entity.clone()),
            );
        }
        let session = stored.session.as_ref().filter(|_| !place.dead);
        let session =
            session.and_then(|session| self.namespace.entity(place)?.sessions.get(session));
        let session = session.and_then(|session| session.holder);
        if let MessageState::Locked { until, .. } = stored.state {
            let until = session.map_or(until, |holder| holder.until);
            message.annotate("x-opt-locked-until", Value::Timestamp(self.told(until)));
        }
        if let Some(token) = token
            && self.settings.token_annotation
        {
            let key = Value::symbol("x-opt-lock-token");
            message.delivery_annotations.push((key, Value::Uuid(token)));
        }
        message
    }

    /// Returns the wall-clock time for clients, in milliseconds since 1970.
    pub(crate) fn told(&self, until: std::time::Instant) -> i64 {
        let left = until.saturating_duration_since(self.now).as_millis() as i64;
        wall_millis() + left + self.skew
    }

    /// Answers drains: the remaining credit of such a link counts as used.
    fn answer_drains(&mut self) {
        let mut drained = Vec::new();
        for connection in self.connections.values_mut().filter(|c| !c.frozen) {
            let mut flows = Vec::new();
            for (channel, session) in &mut connection.sessions {
                if !session.can_send() {
                    continue;
                }
                for (handle, link) in &mut session.links {
                    let LinkEnd::Out(out) = &mut link.end else {
                        continue;
                    };
                    if out.drain {
                        out.delivery_count = out.delivery_count.wrapping_add(out.credit);
                        out.credit = 0;
                        flows.push((*channel, *handle));
                        drained.push(link.node.address());
                    }
                }
            }
            for (channel, handle) in flows {
                connection.send_flow(channel, handle);
                let session = connection.sessions.get_mut(&channel);
                let link = session.and_then(|session| session.links.get_mut(&handle));
                if let Some(LinkEnd::Out(out)) = link.map(|link| &mut link.end) {
                    out.drain = false;
                }
            }
        }
        for address in drained {
            self.log(Event::Drained { address });
        }
    }

    pub(crate) fn disposition(&mut self, id: u64, channel: u16, disposition: &Disposition) {
        let (first, last) = (
            disposition.first,
            disposition.last.unwrap_or(disposition.first),
        );
        // A sender only confirms what the broker has settled.
        if !disposition.receiver || last < first {
            return;
        }
        let now = self.now;
        let connection = self.connections.get_mut(&id);
        let Some(session) = connection.and_then(|c| c.sessions.get_mut(&channel)) else {
            return;
        };
        let range = session.unsettled.range(first..=last);
        let found: Vec<(u32, Unsettled)> = range.map(|(at, it)| (*at, it.clone())).collect();
        for (_, unsettled) in &found {
            if let Some(link) = session.links.get_mut(&unsettled.handle) {
                link.active = now;
            }
        }
        for (delivery, unsettled) in found {
            self.dispose(id, channel, delivery, unsettled, disposition);
        }
    }

    fn dispose(
        &mut self,
        id: u64,
        channel: u16,
        delivery: u32,
        unsettled: Unsettled,
        disposition: &Disposition,
    ) {
        let settled = disposition.settled;
        let state = match &disposition.state {
            Some(DeliveryState::Received) => return,
            None if !settled => return,
            Some(state) if unsettled.lock.is_some() => state.clone(),
            _ => {
                // A reply was read, or a delivery dropped without an outcome: its lock stays.
                return self.forget_delivery(id, channel, delivery, settled);
            }
        };
        let (Some((place, token)), Some((outcome, changes))) = (unsettled.lock, outcome_of(&state))
        else {
            return;
        };
        let address = place.address();
        let said = move |state: DeliveryState| {
            if settled {
                return Vec::new();
            }
            vec![Answer::Frame(
                channel,
                Performative::Disposition(Disposition {
                    receiver: false,
                    first: delivery,
                    last: Some(delivery),
                    settled: true,
                    state: Some(state),
                }),
            )]
        };
        self.play(Request {
            connection: id,
            on: On::Settle,
            address,
            link: Some((channel, unsettled.handle)),
            work: Box::new(move |engine| {
                let done = engine.settle(&place, token, &outcome, &changes, Way::Link);
                if settled {
                    engine.forget_delivery(id, channel, delivery, true);
                }
                said(if !done {
                    DeliveryState::Rejected(Some(AmqpError::new(LOCK_LOST, LOCK_LOST_TEXT)))
                } else if let Outcome::DeadLetter { .. } = outcome {
                    DeliveryState::Rejected(None)
                } else {
                    state
                })
            }),
            refuse: Box::new(move |_, error| said(DeliveryState::Rejected(Some(error)))),
        });
    }

    fn forget_delivery(&mut self, id: u64, channel: u16, delivery: u32, silent: bool) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        session.unsettled.remove(&delivery);
        if !silent {
            let answer = Performative::Disposition(Disposition {
                receiver: false,
                first: delivery,
                last: Some(delivery),
                settled: true,
                state: Some(DeliveryState::Accepted),
            });
            connection.send(channel, &answer);
        }
    }

    /// Hides an abandoned message, if its queue is set so.
    fn take_time(&mut self, place: &Place, sequence: u64) {
        let entity = self.namespace.entity(place);
        let takes = entity.map(|entity| entity.settings.abandon_takes);
        let Some(takes) = takes.filter(|takes| !takes.is_zero()) else {
            return;
        };
        if let Some(shelf) = self.namespace.shelf_mut(place) {
            shelf.hide(sequence);
        }
        let place = place.clone();
        self.later(
            takes,
            Box::new(move |engine| {
                if let Some(shelf) = engine.namespace.shelf_mut(&place) {
                    shelf.show(sequence);
                }
            }),
        );
    }

    /// Returns false if there is no such lock.
    pub(crate) fn settle(
        &mut self,
        place: &Place,
        token: Guid,
        outcome: &Outcome,
        changes: &Value,
        way: Way,
    ) -> bool {
        let address = place.address();
        let outcome = outcome.clone();
        match self.namespace.settle(place, token, &outcome, changes) {
            Some((sequence, events)) => {
                if outcome == Outcome::Abandon {
                    self.take_time(place, sequence);
                }
                self.log(Event::Settled {
                    address,
                    sequence,
                    token,
                    outcome,
                    way,
                });
                for event in events {
                    self.log(event);
                }
                true
            }
            None => {
                self.log(Event::SettleRefused {
                    address,
                    token,
                    outcome,
                    way,
                });
                false
            }
        }
    }
}

/// Translates a delivery state into the queue's outcome, with the requested changes.
fn outcome_of(state: &DeliveryState) -> Option<(Outcome, Value)> {
    Some(match state {
        DeliveryState::Received => return None,
        DeliveryState::Accepted => (Outcome::Complete, Value::Null),
        DeliveryState::Released => (Outcome::Release, Value::Null),
        DeliveryState::Modified {
            undeliverable_here: true,
            annotations,
            ..
        } => (Outcome::Defer, annotations.clone()),
        DeliveryState::Modified { annotations, .. } => (Outcome::Abandon, annotations.clone()),
        DeliveryState::Rejected(error) => {
            let info = |key: &str| {
                let value = error.as_ref()?.info.get(key)?;
                value.text().map(str::to_owned)
            };
            let outcome = Outcome::DeadLetter {
                reason: info("DeadLetterReason"),
                description: info("DeadLetterErrorDescription"),
            };
            (outcome, Value::Null)
        }
    })
}
