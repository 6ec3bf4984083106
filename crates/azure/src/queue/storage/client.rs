//! Requests to the queue service, and the encoding of message text.
//!
//! It must never retry, never accept an answer that lacks what the service always sends, and never change a
//! text that it does not decode.

use azure_core::base64;
use azure_core::http::RequestContent;
use azure_core::xml::{from_xml, to_xml};
use azure_storage_queue::models::{
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, QueueMessage,
    ReceivedMessage, ReceivedMessages,
};
use azure_storage_queue::{QueueClient, QueueClientOptions};
use time::OffsetDateTime;

use crate::account::malformed;
use crate::queue::{About, Unreadable, date};
use crate::{
    API_VERSION, Account, AccountError, ServiceError, below, header, limited, of_the_service,
    unhurried,
};
use trafficcop_core::clock::Instant;

// The default is seven days: dead letters would vanish before anyone looks.
const FOR_EVER: i32 = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) id: String,
    pub(super) receipt: String,
    pub(super) attempt: u32,
    pub(super) text: String,
    pub(super) about: About,
    pub(super) expires: Option<OffsetDateTime>,
    /// Whether it expires before its lock ends: no other worker can get it.
    pub(super) is_last: bool,
}

pub(super) struct QueueApi {
    /// Address of the queue, without a secret.
    pub(super) name: String,
    client: QueueClient,
}

impl QueueApi {
    pub(super) fn new(account: &Account, queue: &str) -> Result<QueueApi, AccountError> {
        let url = below(account.endpoint(), queue);
        let options = QueueClientOptions {
            client_options: account.client_options(),
            version: API_VERSION.to_owned(),
        };
        let client = QueueClient::new(account.authorised(&url), None, Some(options));
        let client = client.map_err(|error| {
            let why = ServiceError::of(&error).why();
            malformed("the queue's address", format!("cannot be used: {why}"))
        })?;
        let name = url.to_string();
        Ok(QueueApi { name, client })
    }

    pub(super) async fn look(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        let answer = limited(give_up_at, self.client.get_properties(None)).await?;
        of_the_service(answer.headers())
    }

    pub(super) async fn create(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        match limited(give_up_at, self.client.create(None)).await {
            Ok(answer) => of_the_service(answer.headers()),
            // The queue exists with other metadata.
            Err(error) if error.code() == Some("QueueAlreadyExists") => Ok(()),
            Err(error) => Err(error),
        }
    }

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
        // Up to 32 messages of 64 KiB need more time on a slow line than other requests.
        let answer = unhurried(give_up_at, self.client.receive_messages(Some(options))).await?;
        of_the_service(answer.headers())?;
        read(answer.body().as_ref())
    }

    /// Makes the message visible again `seconds` from now; returns the new receipt.
    pub(super) async fn update(
        &self,
        id: &str,
        receipt: &str,
        seconds: i32,
        give_up_at: Instant,
    ) -> Result<String, ServiceError> {
        // Without a body the text stays, and need not be sent.
        let update = self.client.update_message(id, receipt, seconds, None);
        let answer = limited(give_up_at, update).await?;
        header(answer.headers(), "x-ms-popreceipt")
            .map(str::to_owned)
            .ok_or_else(|| ServiceError::foreign("a pop receipt", answer.headers()))
    }

    pub(super) async fn delete(
        &self,
        id: &str,
        receipt: &str,
        give_up_at: Instant,
    ) -> Result<(), ServiceError> {
        let delete = self.client.delete_message(id, receipt, None);
        of_the_service(limited(give_up_at, delete).await?.headers())
    }

    /// Puts a message with exactly this text; it never expires.
    pub(super) async fn put(&self, text: &str, give_up_at: Instant) -> Result<(), ServiceError> {
        let content = RequestContent::from(written(text)?);
        let options = QueueClientSendMessageOptions {
            message_time_to_live: Some(FOR_EVER),
            ..Default::default()
        };
        let put = self.client.send_message(content, Some(options));
        of_the_service(limited(give_up_at, put).await?.headers())
    }
}

fn written(text: &str) -> Result<Vec<u8>, ServiceError> {
    let message = QueueMessage {
        message_text: Some(text.to_owned()),
    };
    let xml = to_xml(&message).map_err(|error| ServiceError::of(&error))?;
    Ok(escaped(&xml))
}

fn read(xml: &[u8]) -> Result<Vec<Received>, ServiceError> {
    // Unreadable messages may be locked; they return when the lock expires.
    let list: ReceivedMessages = from_xml(escaped(xml))
        .map_err(|_| ServiceError::Silence("unknown: the messages cannot be read".to_owned()))?;
    list.items.into_iter().flatten().map(told).collect()
}

// XML readers turn carriage returns into line feeds, but the body must stay unchanged.
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

fn told(message: ReceivedMessage) -> Result<Received, ServiceError> {
    let lacks = |what| ServiceError::Silence(format!("unknown: a message without {what}"));
    let id = message.message_id.ok_or_else(|| lacks("an id"))?;
    // It becomes part of a path.
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(lacks("a proper id"));
    }
    // An attempt 0 would run once more than --max-attempts says.
    let count = message.dequeue_count.unwrap_or(1).max(1);
    // The service writes "never" as the year 9999.
    let expires = message.expiration_time.filter(|at| at.year() < 9999);
    let locked_until = message.time_next_visible;
    Ok(Received {
        id,
        receipt: message.pop_receipt.ok_or_else(|| lacks("a pop receipt"))?,
        attempt: u32::try_from(count).unwrap_or(u32::MAX),
        // The parser reads an empty element as none.
        text: message.message_text.unwrap_or_default(),
        about: About {
            enqueued: message.insertion_time.and_then(date),
            locked_until: locked_until.and_then(date),
            expires: expires.and_then(date),
            ..About::default()
        },
        // In whole seconds, by one clock: one second more is later whatever was cut off.
        is_last: matches!((expires, locked_until), (Some(end), Some(lock)) if lock > end),
        expires,
    })
}

/// How the text of a message becomes the bytes of its body; as it is typed, with its help.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Decode every message; dead-letter one that is not base64
    // White space is passed over.
    Base64,
    /// Pass every message on as it was sent
    Text,
}

impl Encoding {
    pub(super) fn read(self, text: &str, most: usize) -> Result<Vec<u8>, Unreadable> {
        let bytes = match self {
            Encoding::Text => text.as_bytes().to_vec(),
            Encoding::Base64 => {
                let dense: String = text.split_ascii_whitespace().collect();
                canonical(&dense).ok_or_else(|| Unreadable {
                    reason: "NotBase64",
                    detail: format!("the text of {} bytes is not base64", text.len()),
                })?
            }
        };
        // The limit is for what the command gets.
        if bytes.len() > most {
            return Err(Unreadable {
                reason: "TooLarge",
                detail: format!(
                    "the body of {} bytes is larger than the {most} allowed",
                    bytes.len()
                ),
            });
        }
        Ok(bytes)
    }
}

/// Decodes base64 exactly as an encoder writes it.
fn canonical(text: &str) -> Option<Vec<u8>> {
    let bytes = base64::decode(text).ok()?;
    // The decoder accepts stray bits, which no encoder writes.
    (base64::encode(&bytes) == text).then_some(bytes)
}

/// Whether the text may be base64: many words of plain text are, too.
pub(super) fn is_ambiguous(text: &str) -> bool {
    canonical(text).is_some_and(|bytes| !bytes.is_empty())
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
    fn message_is_parsed_as_the_service_writes_it() {
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
    fn time_outside_of_the_years_of_a_date_is_left_out() {
        let before = "<InsertionTime>Fri, 31 Dec -0001 23:59:59 GMT</InsertionTime>\
             <PopReceipt>A</PopReceipt>";
        let told = read(message("1", before).as_bytes()).expect("readable");
        assert_eq!(told[0].about.enqueued, None);
    }

    #[test]
    fn messages_that_the_service_cannot_have_written_are_refused() {
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
    fn text_survives_any_xml_reader() {
        for (text, within) in [
            ("", "<MessageText/>"),
            ("a<&>\"", "<MessageText>a&lt;&amp;&gt;\"</MessageText>"),
            (" \r\n\r", "<MessageText> &#xD;\n&#xD;</MessageText>"),
        ] {
            let xml = String::from_utf8(written(text).expect("writable")).expect("text");
            assert!(xml.contains(within), "{xml}");
        }
    }

    const PLENTY: usize = 1 << 20;

    #[test]
    fn encoded_bodies_are_decoded_and_others_stay_unchanged() {
        let all: Vec<u8> = (0..=255).cycle().take(48 * 1024).collect();
        for bytes in [
            b"hello".as_slice(),
            b"{\"id\":42}",
            &[0x69, 0xb7, 0x1d],
            b"",
            "grüße, grüße!".as_bytes(),
            &all,
        ] {
            let text = base64::encode(bytes);
            let read = Encoding::Base64.read(&text, PLENTY);
            assert_eq!(read.as_deref(), Ok(bytes));
            let read = Encoding::Text.read(&text, PLENTY);
            assert_eq!(read.as_deref(), Ok(text.as_bytes()));
            assert_eq!(is_ambiguous(&text), !bytes.is_empty());
        }
    }

    #[test]
    fn only_text_as_an_encoder_writes_it_is_base64() {
        for text in ["aGVsbG8", "aGVsbG9=", "_-8eyJhIjoxfQ==", "aGVsbG8=\n"] {
            assert!(!is_ambiguous(text), "{text:?}");
        }
        let wrapped = Encoding::Base64.read("aGVs\r\nbG8=\n", PLENTY);
        assert_eq!(wrapped.as_deref(), Ok(b"hello".as_slice()));
        assert_eq!(Encoding::Base64.read("", PLENTY), Ok(Vec::new()));
        for text in ["test!", "aGVsbG8", "{}"] {
            let said = Encoding::Base64.read(text, PLENTY).expect_err(text);
            assert_eq!(said.reason, "NotBase64");
            assert!(
                !said.detail.contains(text),
                "bodies stay out of messages: {said}"
            );
        }
    }

    #[test]
    fn body_limit_counts_decoded_bytes() {
        assert!(Encoding::Base64.read("aGVsbG8=", 5).is_ok());
        let said = Encoding::Base64.read("aGVsbG8=", 4).expect_err("too large");
        assert_eq!(said.reason, "TooLarge");
        assert!(Encoding::Text.read("aGVsbG8=", 5).is_err());
    }
}
