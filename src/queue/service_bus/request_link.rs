//! A pair of links for requests and their answers, as `$cbs` and `$management` have it.
//!
//! Made by the engine for each connection. An answer is brought to the request whose identifier it
//! bears ([`super::correlation`]), and identifiers are never used again, on no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Target,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender, link::RecvError};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::close_signal::CloseSignal;
use super::correlation::Waiting;
use super::error;
use super::error::BusError;
use super::wire::{self, Answer};
use crate::azure::before;
use crate::clock::Instant;

/// See the module's text.
pub(super) struct RequestLink {
    /// Unlike any other of this process and of others.
    name: String,
    sender: Mutex<Sender>,
    waiting: Arc<Waiting<Answer>>,
    next: AtomicU64,
    end: Arc<CloseSignal>,
    reading: AbortHandle,
}

impl RequestLink {
    /// Attaches both links to `address`. `name` is unlike any other.
    pub(super) async fn attach(
        session: &mut SessionHandle<()>,
        address: &str,
        name: String,
        end: Arc<CloseSignal>,
    ) -> Result<RequestLink, BusError> {
        let sender = Sender::builder()
            .name(format!("{name}:requests"))
            .source(name.as_str())
            .target(address)
            // What the service says to a request is its answer.
            .sender_settle_mode(SenderSettleMode::Settled)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await
            .map_err(|error| error::amqp::attaching_sender(&error))?;
        let receiver = Receiver::builder()
            .name(format!("{name}:answers"))
            .source(address)
            .target(Target::builder().address(name.as_str()).build())
            .receiver_settle_mode(ReceiverSettleMode::First)
            .auto_accept(true)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(session)
            .await
            .map_err(|error| error::amqp::attaching_receiver(&error))?;
        let waiting = Arc::new(Waiting::new());
        let reading = tokio::spawn(read(receiver, Arc::clone(&waiting), Arc::clone(&end)));
        Ok(RequestLink {
            name,
            sender: Mutex::new(sender),
            waiting,
            next: AtomicU64::new(0),
            end,
            reading: reading.abort_handle(),
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask<const N: usize>(
        &self,
        marks: [(&str, SimpleValue); N],
        body: Value,
        give_up_at: Instant,
    ) -> Result<Answer, BusError> {
        let sent = Instant::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", self.name);
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
            let mut sender = self.sender.lock().await;
            sender.send(message).await
        };
        match before(give_up_at, sending).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let fault = error::amqp::sending(&error);
                self.end.now(fault.clone());
                return Err(BusError::Unsent(fault.why()));
            }
            None => {
                self.end.suspect(sent);
                return Err(BusError::Unanswered(
                    "the request could not be sent in time".into(),
                ));
            }
        }
        let answer = async {
            tokio::select! {
                biased;
                answer = expected.answer() => answer.ok_or_else(|| {
                    BusError::Unanswered("nobody reads the answers any more".into())
                }),
                why = self.end.wait() => Err(BusError::Unanswered(why.why())),
            }
        };
        before(give_up_at, answer).await.unwrap_or_else(|| {
            self.end.suspect(sent);
            let waited = Instant::now().since(sent).as_secs_f32();
            Err(BusError::Unanswered(format!("no answer in {waited:.1} s")))
        })
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Reads the answers, until there are none any more.
async fn read(mut receiver: Receiver, waiting: Arc<Waiting<Answer>>, end: Arc<CloseSignal>) {
    loop {
        match receiver.recv::<Body<Value>>().await {
            Ok(delivery) => {
                let known = wire::answer(delivery.into_message())
                    .is_some_and(|(id, answer)| waiting.answered(&id, answer));
                if !known {
                    tracing::debug!("an answer that nobody waits for: passed over");
                }
            }
            Err(RecvError::MessageDecode(error)) => {
                tracing::debug!(
                    "an answer that cannot be read ({}): passed over",
                    error.source
                );
            }
            Err(error) => return end.now(error::amqp::receiving(&error)),
        }
    }
}
