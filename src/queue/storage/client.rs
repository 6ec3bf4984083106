//! The exchanges with the queue service that the store is made of, one method each.
//!
//! Called by the storage queue and its locks. Must never retry, and must never take an answer for
//! the service's that lacks what the service always says.

use azure_core::http::headers::{HeaderName, Headers};
use azure_core::http::{ClientOptions, RequestContent, Url};
use azure_core::time::to_rfc3339;
use azure_core::xml::{from_xml, to_xml};
use azure_storage_queue::models::{
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, QueueMessage,
    ReceivedMessage, ReceivedMessages,
};
use azure_storage_queue::{QueueClient, QueueClientOptions};

use crate::azure::{ServiceError, limited, unhurried};
use crate::clock::Instant;
use crate::queue::About;

/// A message never expires that was put with this.
const FOR_EVER: i32 = -1;

/// A message as the service told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) id: String,
    pub(super) receipt: String,
    pub(super) attempt: u32,
    pub(super) text: String,
    pub(super) about: About,
}

/// The official client for one queue.
pub(super) struct QueueApi {
    client: QueueClient,
}

impl QueueApi {
    /// Makes the client; nothing is sent. The URL may hold a secret.
    pub(super) fn new(queue: Url, options: &ClientOptions) -> Result<QueueApi, ServiceError> {
        let options = QueueClientOptions {
            client_options: options.clone(),
            ..QueueClientOptions::default()
        };
        let client = QueueClient::new(queue, None, Some(options));
        let client = client.map_err(|error| ServiceError::of(&error))?;
        Ok(QueueApi { client })
    }

    /// Whether the queue is there: its properties, which are of no interest.
    pub(super) async fn look(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        let answer = limited(give_up_at, self.client.get_properties(None)).await?;
        ours(answer.headers())
    }

    /// Creates the queue; that it is there already is success.
    pub(super) async fn create(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        match limited(give_up_at, self.client.create(None)).await {
            Ok(answer) => ours(answer.headers()),
            // With metadata of its own.
            Err(trouble) if trouble.code() == Some("QueueAlreadyExists") => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Takes up to `most` messages (32 at most) that become visible again after `seconds`.
    pub(super) async fn take(
        &self,
        most: usize,
        seconds: i32,
        give_up_at: Instant,
    ) -> Result<Vec<Received>, ServiceError> {
        let options = QueueClientReceiveMessagesOptions {
            number_of_messages: i32::try_from(most.clamp(1, 32)).ok(),
            visibility_timeout: Some(seconds),
            ..Default::default()
        };
        let answer = unhurried(give_up_at, self.client.receive_messages(Some(options))).await?;
        ours(answer.headers())?;
        read(answer.body().as_ref())
    }

    /// Makes the message visible again after `seconds` from now, its text untouched; the receipt
    /// that is valid from now on.
    pub(super) async fn update(
        &self,
        id: &str,
        receipt: &str,
        seconds: i32,
        give_up_at: Instant,
    ) -> Result<String, ServiceError> {
        let update = self.client.update_message(id, receipt, seconds, None);
        let answer = limited(give_up_at, update).await?;
        header(answer.headers(), "x-ms-popreceipt")
            .map(str::to_owned)
            .ok_or_else(|| ServiceError::foreign("a pop receipt", answer.headers()))
    }

    /// Deletes the message.
    pub(super) async fn delete(
        &self,
        id: &str,
        receipt: &str,
        give_up_at: Instant,
    ) -> Result<(), ServiceError> {
        let delete = self.client.delete_message(id, receipt, None);
        ours(limited(give_up_at, delete).await?.headers())
    }

    /// Puts a message with exactly this text into the queue, which stays there until somebody
    /// deletes it.
    pub(super) async fn put(&self, text: &str, give_up_at: Instant) -> Result<(), ServiceError> {
        let content = RequestContent::from(written(text)?);
        let options = QueueClientSendMessageOptions {
            message_time_to_live: Some(FOR_EVER),
            ..Default::default()
        };
        let put = self.client.send_message(content, Some(options));
        ours(limited(give_up_at, put).await?.headers())
    }
}

/// A message as it is sent.
fn written(text: &str) -> Result<Vec<u8>, ServiceError> {
    let message = QueueMessage {
        message_text: Some(text.to_owned()),
    };
    let xml = to_xml(&message).map_err(|error| ServiceError::of(&error))?;
    Ok(escaped(&xml))
}

/// The messages of an answer.
fn read(xml: &[u8]) -> Result<Vec<Received>, ServiceError> {
    let list: ReceivedMessages = from_xml(escaped(xml))
        .map_err(|_| ServiceError::Silence("unknown: the messages cannot be read".to_owned()))?;
    list.items.into_iter().flatten().map(told).collect()
}

/// Carriage returns as references: a reader of XML makes line feeds of those that are not, and a
/// body is handed over, and put aside, as it is.
fn escaped(xml: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(xml.len());
    for byte in xml {
        match byte {
            b'\r' => bytes.extend(b"&#xD;"),
            other => bytes.push(*other),
        }
    }
    bytes
}

/// The service names the version of its interface in every answer; a portal does not.
fn ours(headers: &Headers) -> Result<(), ServiceError> {
    match header(headers, "x-ms-version") {
        Some(_) => Ok(()),
        None => Err(ServiceError::foreign("its version", headers)),
    }
}

fn header<'a>(headers: &'a Headers, name: &'static str) -> Option<&'a str> {
    headers.get_optional_str(&HeaderName::from_static(name))
}

fn told(message: ReceivedMessage) -> Result<Received, ServiceError> {
    let lacks = |what| ServiceError::Silence(format!("unknown: a message without {what}"));
    let id = message.message_id.ok_or_else(|| lacks("an id"))?;
    // It becomes part of a path.
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(lacks("a proper id"));
    }
    let count = message.dequeue_count.unwrap_or(1).max(1);
    Ok(Received {
        id,
        receipt: message.pop_receipt.ok_or_else(|| lacks("a pop receipt"))?,
        attempt: u32::try_from(count).unwrap_or(u32::MAX),
        text: message.message_text.unwrap_or_default(),
        about: About {
            enqueued: message.insertion_time.as_ref().map(to_rfc3339),
            locked_until: message.time_next_visible.as_ref().map(to_rfc3339),
            // The service's word for never.
            expires: message
                .expiration_time
                .filter(|at| at.year() < 9999)
                .as_ref()
                .map(to_rfc3339),
            ..About::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(inside: &str) -> String {
        let head = "<?xml version=\"1.0\" encoding=\"utf-8\"?>";
        format!("{head}<QueueMessagesList>{inside}</QueueMessagesList>")
    }

    fn message(id: &str, rest: &str) -> String {
        list(&format!(
            "<QueueMessage><MessageId>{id}</MessageId>{rest}</QueueMessage>"
        ))
    }

    #[test]
    fn a_message_is_read_as_the_service_writes_it() {
        let xml = message(
            "5f0c1a1e-0000-4000-8000-000000000001",
            "<InsertionTime>Fri, 09 Oct 2026 21:04:30 GMT</InsertionTime>\
             <ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>\
             <PopReceipt>AgAAAA==</PopReceipt>\
             <TimeNextVisible>Fri, 09 Oct 2026 21:05:31 GMT</TimeNextVisible>\
             <DequeueCount>3</DequeueCount><MessageText> a\r\n&lt;b&gt;&#xD; </MessageText>",
        );
        let told = read(xml.as_bytes()).expect("readable").remove(0);
        assert_eq!((told.receipt.as_str(), told.attempt), ("AgAAAA==", 3));
        assert_eq!(told.text, " a\r\n<b>\r ");
        let about = told.about;
        assert_eq!(about.enqueued.as_deref(), Some("2026-10-09T21:04:30Z"));
        assert_eq!(about.locked_until.as_deref(), Some("2026-10-09T21:05:31Z"));
        assert_eq!(about.expires, None, "never");
        assert_eq!(read(list("").as_bytes()), Ok(Vec::new()));
    }

    #[test]
    fn what_the_service_cannot_have_written_is_not_believed() {
        for xml in [
            message("1", ""),
            message("../other/messages/1", "<PopReceipt>A</PopReceipt>"),
            message("", "<PopReceipt>A</PopReceipt>"),
            list("<QueueMessage><PopReceipt>A</PopReceipt></QueueMessage>"),
            list("<QueueMessage>"),
        ] {
            let said = read(xml.as_bytes());
            assert!(
                matches!(said, Err(ServiceError::Silence(_))),
                "{xml}: {said:?}"
            );
        }
    }

    #[test]
    fn a_text_is_written_so_that_any_reader_of_xml_gets_it_back() {
        for (text, within) in [
            ("", "<MessageText/>"),
            ("a<&>\"", "<MessageText>a&lt;&amp;&gt;\"</MessageText>"),
            (" \r\n\r", "<MessageText> &#xD;\n&#xD;</MessageText>"),
        ] {
            let xml = String::from_utf8(written(text).expect("writable")).expect("text");
            assert!(xml.contains(within), "{xml}");
        }
    }
}
