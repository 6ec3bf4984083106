//! One session: its windows, links and transfers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::codec::Message;
use crate::codec::frame;
use crate::codec::performative::{Begin, Flow, Performative, Transfer};

use super::connection::Connection;
use super::engine::Engine;
use super::faults::On;
use super::namespace::Node;
use super::settle::Unsettled;

/// Transfers accepted before more are granted.
const WINDOW: u32 = 5000;
/// Messages from a sender before more credit.
pub(crate) const CREDIT: u32 = 1000;
/// Bytes in a frame besides a transfer's payload, at most.
const OVERHEAD: usize = 128;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) links: BTreeMap<u32, Link>,
    pub(crate) unsettled: BTreeMap<u32, Unsettled>,
    /// Whether the broker has ended it, and the client does not know that yet.
    pub(crate) ended: bool,
    next_incoming: u32,
    incoming_left: u32,
    next_outgoing: u32,
    remote_window: u32,
    next_delivery: u32,
    /// Waiting for the client's window.
    pending: VecDeque<(Transfer, Vec<u8>)>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) node: Node,
    pub(crate) end: LinkEnd,
    pub(crate) active: Instant,
}

#[derive(Debug)]
pub(crate) enum LinkEnd {
    In(In),
    Out(Out),
}

#[derive(Debug, Default)]
pub(crate) struct In {
    pub(crate) credit: u32,
    pub(crate) delivery_count: u32,
    pub(crate) partial: Option<Partial>,
}

#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) delivery: u32,
    pub(crate) format: u32,
    pub(crate) settled: bool,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) credit: u32,
    pub(crate) delivery_count: u32,
    pub(crate) drain: bool,
    /// 0 unsettled, 1 settled, 2 mixed. On a queue, 1 removes a delivered message.
    pub(crate) settle_mode: u8,
    pub(crate) target: Option<String>,
    /// Session whose messages it gets.
    pub(crate) of_session: Option<String>,
    /// Waiting for credit.
    pub(crate) outbox: VecDeque<Message>,
}

impl Session {
    pub(crate) fn new(begin: &Begin) -> Self {
        Self {
            links: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            ended: false,
            next_incoming: begin.next_outgoing_id,
            incoming_left: WINDOW,
            next_outgoing: 1,
            remote_window: begin.incoming_window,
            next_delivery: 0,
            pending: VecDeque::new(),
        }
    }

    pub(crate) fn begin(&self) -> Begin {
        Begin {
            remote_channel: None,
            next_outgoing_id: self.next_outgoing,
            incoming_window: WINDOW,
            outgoing_window: WINDOW,
            handle_max: Some(255),
        }
    }

    /// Forgets all links at the session's end.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.links.clear();
        self.unsettled.clear();
        self.pending.clear();
    }

    /// Returns the link for a node's replies: with this address, or else any.
    pub(crate) fn reply_link(&mut self, node: &Node, to: Option<&str>) -> Option<&mut Out> {
        let mut outs: Vec<&mut Out> = self
            .links
            .values_mut()
            .filter(|link| link.node == *node)
            .filter_map(|link| match &mut link.end {
                LinkEnd::Out(out) => Some(out),
                LinkEnd::In(_) => None,
            })
            .collect();
        let named = outs
            .iter()
            .position(|out| to.is_some() && out.target.as_deref() == to);
        match named {
            Some(at) => Some(outs.swap_remove(at)),
            None => outs.pop(),
        }
    }

    fn flow(&self) -> Flow {
        Flow {
            next_incoming_id: Some(self.next_incoming),
            incoming_window: self.incoming_left,
            next_outgoing_id: self.next_outgoing,
            outgoing_window: WINDOW,
            ..Flow::default()
        }
    }

    pub(crate) fn link_flow(&self, handle: u32) -> Option<Flow> {
        let (delivery_count, credit, drain) = match &self.links.get(&handle)?.end {
            LinkEnd::In(it) => (it.delivery_count, it.credit, false),
            LinkEnd::Out(it) => (it.delivery_count, it.credit, it.drain),
        };
        Some(Flow {
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(credit),
            drain,
            ..self.flow()
        })
    }

    pub(crate) fn can_send(&self) -> bool {
        self.pending.is_empty() && self.remote_window > 0
    }

    /// Splits a message into queued transfers; returns the delivery's number.
    pub(crate) fn deliver(
        &mut self,
        handle: u32,
        tag: Vec<u8>,
        settled: bool,
        message: &Message,
        max_frame: u32,
    ) -> u32 {
        let delivery = self.next_delivery;
        self.next_delivery = delivery.wrapping_add(1);
        let bytes = message.encode();
        let room = (max_frame as usize).saturating_sub(OVERHEAD).max(OVERHEAD);
        let mut pieces = bytes.chunks(room).peekable();
        let mut first = true;
        while let Some(piece) = pieces.next() {
            let transfer = Transfer {
                handle,
                delivery_id: first.then_some(delivery),
                delivery_tag: first.then(|| tag.clone()),
                message_format: first.then_some(0),
                settled: first.then_some(settled),
                more: pieces.peek().is_some(),
                aborted: false,
            };
            self.pending.push_back((transfer, piece.to_vec()));
            first = false;
        }
        delivery
    }

    /// Counts an incoming transfer; returns false if the window was closed.
    fn came(&mut self) -> bool {
        self.next_incoming = self.next_incoming.wrapping_add(1);
        match self.incoming_left.checked_sub(1) {
            Some(left) => {
                self.incoming_left = left;
                true
            }
            None => false,
        }
    }
}

impl Connection {
    pub(crate) fn flush(&mut self, channel: u16) {
        let mut frames = Vec::new();
        if let Some(session) = self.sessions.get_mut(&channel) {
            while session.remote_window > 0
                && let Some((transfer, payload)) = session.pending.pop_front()
            {
                session.remote_window -= 1;
                session.next_outgoing = session.next_outgoing.wrapping_add(1);
                let transfer = Performative::Transfer(transfer);
                frames.push(frame::encode(false, channel, &transfer, &payload));
            }
        }
        for frame in frames {
            self.write(frame);
        }
    }

    pub(crate) fn send_flow(&mut self, channel: u16, handle: u32) {
        let session = self.sessions.get(&channel);
        if let Some(flow) = session.and_then(|session| session.link_flow(handle)) {
            self.send(channel, &Performative::Flow(flow));
        }
    }
}

impl Engine {
    pub(crate) fn flow(&mut self, id: u64, channel: u16, flow: &Flow) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        let expected = flow.next_incoming_id.unwrap_or(1);
        session.remote_window = expected
            .wrapping_add(flow.incoming_window)
            .wrapping_sub(session.next_outgoing);
        let Some(handle) = flow.handle else {
            if flow.echo {
                let flow = Performative::Flow(session.flow());
                connection.send(channel, &flow);
            }
            return connection.flush(channel);
        };
        let Some(link) = session.links.get_mut(&handle) else {
            // Sent before the client saw the detach.
            return connection.flush(channel);
        };
        link.active = now;
        if let LinkEnd::Out(out) = &mut link.end {
            // Credit counts from the client's last known delivery count.
            let known = flow.delivery_count.unwrap_or(out.delivery_count);
            let limit = known.wrapping_add(flow.link_credit.unwrap_or(0));
            let credit = limit.wrapping_sub(out.delivery_count);
            // A reduced credit may be less than what was sent meanwhile.
            out.credit = if credit > u32::MAX / 2 { 0 } else { credit };
            let address = link.node.address();
            out.drain = flow.drain && self.faults.next(On::Drain, &address).is_none();
        }
        if flow.echo {
            connection.send_flow(channel, handle);
        }
        connection.flush(channel);
    }

    pub(crate) fn transfer(&mut self, id: u64, channel: u16, transfer: &Transfer, payload: &[u8]) {
        let (now, largest) = (self.now, self.settings.max_message_size);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        let handle = transfer.handle;
        if !session.came() {
            let text = "a transfer came and the window was closed".to_owned();
            return self.end(id, channel, "amqp:session:window-violation", text);
        }
        if session.incoming_left <= WINDOW / 2 {
            session.incoming_left = WINDOW;
            let flow = Performative::Flow(session.flow());
            connection.send(channel, &flow);
        }
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        let Some(link) = session.links.get_mut(&handle) else {
            // Sent before the client saw the detach, or without an attach; both are harmless.
            return;
        };
        link.active = now;
        let node = link.node.clone();
        let LinkEnd::In(end) = &mut link.end else {
            let text = format!("a transfer came on link {handle}, on which the client receives");
            return self.end(id, channel, "amqp:not-allowed", text);
        };
        let partial = match (&mut end.partial, transfer.delivery_id) {
            (Some(partial), _) => partial,
            (none, Some(delivery)) => none.insert(Partial {
                delivery,
                format: transfer.message_format.unwrap_or(0),
                settled: false,
                bytes: Vec::new(),
            }),
            (None, None) => {
                let text = "the first transfer of a delivery has no delivery-id".to_owned();
                return self.end(id, channel, "amqp:invalid-field", text);
            }
        };
        partial.settled |= transfer.settled == Some(true);
        if partial.bytes.len() as u64 <= largest {
            partial.bytes.extend(payload);
        }
        if transfer.more && !transfer.aborted {
            return;
        }
        let Some(partial) = end.partial.take() else {
            return;
        };
        if end.credit == 0 {
            let text = "a message came and there was no credit for it".to_owned();
            return self.end(id, channel, "amqp:link:transfer-limit-exceeded", text);
        }
        end.delivery_count = end.delivery_count.wrapping_add(1);
        end.credit -= 1;
        if end.credit <= CREDIT / 2 {
            end.credit = CREDIT;
            connection.send_flow(channel, handle);
        }
        if !transfer.aborted {
            self.received(id, channel, handle, &node, partial);
        }
    }
}
