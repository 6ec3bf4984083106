//! A pair of links for requests and their answers, as `$cbs` and `$management` have it.
//!
//! An answer counts only for the request that it names, by an identifier that is never used again. Pairing by
//! order could turn a refused renewal into a success.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Target,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender, link::RecvError, link::SendError};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::error::BusError;
use super::stream::ConnectionState;
use super::wire::{self, LinkAnswer};
use trafficcop_azure::before;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

pub(super) struct RequestLink {
    /// Unique among all links of all processes.
    name: String,
    sender: tokio::sync::Mutex<Sender>,
    waiting: Arc<Waiting<LinkAnswer>>,
    next: AtomicU64,
    state: Arc<ConnectionState>,
    reading: AbortHandle,
}

impl RequestLink {
    /// Attaches both links to `address`. `name` must be unique.
    pub(super) async fn attach(
        session: &mut SessionHandle<()>,
        address: &str,
        name: String,
        state: Arc<ConnectionState>,
    ) -> Result<RequestLink, BusError> {
        let sender = Sender::builder()
            .name(format!("{name}:requests"))
            .source(name.as_str())
            .target(address)
            // Sent settled: the service answers with a message, not with a disposition.
            .sender_settle_mode(SenderSettleMode::Settled)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await?;
        let receiver = Receiver::builder()
            .name(format!("{name}:answers"))
            .source(address)
            .target(Target::builder().address(name.as_str()).build())
            .receiver_settle_mode(ReceiverSettleMode::First)
            .auto_accept(true)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await?;
        let waiting = Arc::new(Waiting::new());
        // One reader: a caller that gives up must not take another's answer along.
        let reading = tokio::spawn(read(receiver, Arc::clone(&waiting), Arc::clone(&state)));
        Ok(RequestLink {
            name,
            sender: tokio::sync::Mutex::new(sender),
            waiting,
            next: AtomicU64::new(0),
            state,
            reading: reading.abort_handle(),
        })
    }

    pub(super) async fn ask<const N: usize>(
        &self,
        marks: [(&str, SimpleValue); N],
        body: Value,
        give_up_at: Instant,
    ) -> Result<LinkAnswer, BusError> {
        let sent = Instant::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", self.name);
        // Before sending: the answer may come first.
        let mut expected = self.waiting.expect(id.clone());
        let mut properties = Properties::new();
        properties.message_id = Some(MessageId::String(id));
        properties.reply_to = Some(self.name.clone());
        let marks = marks.map(|(key, value)| (key.to_owned(), value));
        let marks = marks.into_iter().collect::<OrderedMap<_, _>>();
        let message = Message::builder()
            .properties(properties)
            .application_properties(ApplicationProperties(marks))
            .body(AmqpValue(body))
            .build();
        let sending = async {
            // A send that hangs on a dead socket holds up those behind it.
            let mut sender = self.sender.lock().await;
            sender.send(message).await
        };
        match before(give_up_at, sending).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let unsent = matches!(
                    error,
                    SendError::MessageSizeExceeded(_) | SendError::MessageEncodeError
                );
                let error = BusError::from(error);
                // The link refused to carry it: other callers lose nothing.
                if unsent {
                    return Err(error);
                }
                self.state.close(error.clone());
                // It was never handed to the connection: it can be repeated on the next one.
                return Err(BusError::Unsent(error.why()));
            }
            None => {
                self.state.suspect(sent);
                return Err(BusError::Unanswered(
                    "the request could not be sent in time".into(),
                ));
            }
        }
        let answer = async {
            tokio::select! {
                biased;
                answer = expected.answer() => answer.ok_or_else(|| {
                    BusError::Unanswered("the reader of the answers has ended".into())
                }),
                why = self.state.closed() => Err(BusError::Unanswered(why.why())),
            }
        };
        before(give_up_at, answer).await.unwrap_or_else(|| {
            self.state.suspect(sent);
            let waited = Instant::now().since(sent).as_secs_f32();
            Err(BusError::Unanswered(format!("no answer in {waited:.1} s")))
        })
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        // The reader holds the link, and with it the connection: nothing else ends it.
        self.reading.abort();
    }
}

async fn read(
    mut receiver: Receiver,
    waiting: Arc<Waiting<LinkAnswer>>,
    state: Arc<ConnectionState>,
) {
    loop {
        match receiver.recv::<Body<Value>>().await {
            Ok(delivery) => {
                let known = wire::answer(delivery.into_message())
                    .is_some_and(|(id, answer)| waiting.answered(&id, answer));
                if !known {
                    tracing::debug!("ignored an answer without a request");
                }
            }
            // One request runs into its time limit; the link still works.
            Err(RecvError::MessageDecode(error)) => {
                tracing::debug!("ignored an answer that cannot be read ({})", error.source);
            }
            Err(error) => return state.close(error.into()),
        }
    }
}

pub(super) struct Waiting<A> {
    open: Mutex<HashMap<String, oneshot::Sender<A>>>,
}

impl<A> Waiting<A> {
    pub(super) fn new() -> Waiting<A> {
        Waiting {
            open: Mutex::new(HashMap::new()),
        }
    }

    /// Reserves a place for the answer to `id`, until it is dropped.
    pub(super) fn expect(&self, id: String) -> Expected<'_, A> {
        let (sender, answer) = oneshot::channel();
        lock(&self.open).insert(id.clone(), sender);
        Expected {
            waiting: self,
            id,
            answer,
        }
    }

    /// Passes an answer on; returns whether a caller waited for it.
    pub(super) fn answered(&self, id: &str, answer: A) -> bool {
        let waiter = lock(&self.open).remove(id);
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.open).len()
    }
}

pub(super) struct Expected<'a, A> {
    waiting: &'a Waiting<A>,
    id: String,
    answer: oneshot::Receiver<A>,
}

impl<A> Expected<'_, A> {
    pub(super) async fn answer(&mut self) -> Option<A> {
        (&mut self.answer).await.ok()
    }
}

impl<A> Drop for Expected<'_, A> {
    fn drop(&mut self) {
        // A connection of months must not fill with callers that gave up.
        lock(&self.waiting.open).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_counts_only_for_the_request_it_names() {
        let waiting = Waiting::new();
        let mut first = waiting.expect("1".into());
        let mut second = waiting.expect("2".into());
        assert!(waiting.answered("2", "two"));
        assert!(!waiting.answered("2", "two again"));
        assert!(!waiting.answered("3", "three"));
        assert!(!waiting.answered("", "nobody"));
        assert!(waiting.answered("1", "one"));
        assert_eq!(first.answer().await, Some("one"));
        assert_eq!(second.answer().await, Some("two"));
    }

    #[tokio::test]
    async fn late_answer_is_ignored() {
        let waiting = Waiting::new();
        drop(waiting.expect("1".into()));
        let mut next = waiting.expect("2".into());
        assert!(!waiting.answered("1", 200));
        assert!(waiting.answered("2", 410));
        assert_eq!(next.answer().await, Some(410));
        drop(next);
        assert_eq!(waiting.len(), 0);
    }
}
