//! A foreign client for storage queues, independent of the code under test. An account SAS made
//! once signs it, so that a request is only text.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::azurite::{ACCOUNT, queues};
use super::blob::{VERSION, account_sas};
use super::{WAIT_LIMIT, await_for};

fn sas() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| account_sas('q', "rwdlacup"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) id: String,
    pub(crate) text: String,
    /// Number of times that it was taken.
    pub(crate) count: u32,
    pub(crate) expires: String,
    /// Pop receipt, if it was taken, not peeked.
    pub(crate) receipt: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: String,
}

impl Mailbox {
    #[must_use]
    pub(crate) fn named(name: &str) -> Mailbox {
        Mailbox { name: name.into() }
    }

    #[must_use]
    pub(crate) fn fresh() -> Mailbox {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mailbox = Mailbox::named(&format!("jobs-{}-{number}", std::process::id()));
        mailbox.create();
        mailbox
    }

    #[must_use]
    pub(crate) fn poison(&self) -> Mailbox {
        Mailbox::named(&format!("{}-poison", self.name))
    }

    fn ask(&self, method: &str, path: &str, query: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", queues().port)).expect("Azurite");
        stream
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("a time limit");
        let text = format!(
            "{method} /{ACCOUNT}/{}{path}?{query}&{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Connection: close\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\
             x-ms-version: {VERSION}\r\n\r\n{body}",
            self.name,
            sas(),
            body.len(),
        );
        stream.write_all(text.as_bytes()).expect("Azurite reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("Azurite answers");
        let answer = String::from_utf8(bytes).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { joined(body) } else { body.into() };
        (status.expect("a status"), body)
    }

    fn demand(&self, method: &str, path: &str, query: &str, body: &str) -> String {
        let (status, answer) = self.ask(method, path, query, body);
        assert!(
            status < 300,
            "{method} {}{path} {query}: {status} {answer}",
            self.name
        );
        answer
    }

    pub(crate) fn create(&self) {
        self.demand("PUT", "", "", "");
    }

    pub(crate) fn delete(&self) {
        self.demand("DELETE", "", "", "");
    }

    #[must_use]
    pub(crate) fn exists(&self) -> bool {
        self.ask("GET", "", "comp=metadata", "").0 == 200
    }

    /// Puts a text with no more escapes than necessary.
    pub(crate) fn put(&self, text: &str) {
        self.put_with("", text);
    }

    pub(crate) fn put_for(&self, seconds: u32, text: &str) {
        self.put_with(&format!("messagettl={seconds}"), text);
    }

    fn put_with(&self, query: &str, text: &str) {
        let text = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('\r', "&#xD;");
        let body = format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>");
        self.demand("POST", "/messages", query, &body);
    }

    /// Returns the messages that are visible now (32 at most), without taking them.
    #[must_use]
    pub(crate) fn visible(&self) -> Vec<Letter> {
        letters(&self.demand("GET", "/messages", "peekonly=true&numofmessages=32", ""))
    }

    /// Takes one message as another worker.
    pub(crate) fn take(&self, seconds: u32) -> Option<Letter> {
        let query = format!("visibilitytimeout={seconds}");
        letters(&self.demand("GET", "/messages", &query, "")).pop()
    }

    /// Waits until another worker can take one.
    pub(crate) fn await_take(&self, seconds: u32) -> Letter {
        await_for(
            &format!("a message of {} to be visible", self.name),
            || self.take(seconds),
            String::new,
        )
    }

    /// Waits until all have expired. Azurite drops them when the queue is read.
    pub(crate) fn await_none(&self) {
        await_for(
            &format!("the messages of {} to expire", self.name),
            || (self.visible().is_empty() && self.count() == 0).then_some(()),
            String::new,
        );
    }

    /// Deletes all messages as an operator does, locked ones too.
    pub(crate) fn clear(&self) {
        self.demand("DELETE", "/messages", "", "");
    }

    /// Counts all messages, locked ones too.
    #[must_use]
    pub(crate) fn count(&self) -> u32 {
        let mut stream = TcpStream::connect(("127.0.0.1", queues().port)).expect("Azurite");
        let text = format!(
            "GET /{ACCOUNT}/{}?comp=metadata&{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Connection: close\r\nx-ms-version: {VERSION}\r\n\r\n",
            self.name,
            sas(),
        );
        stream.write_all(text.as_bytes()).expect("Azurite reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("Azurite answers");
        let count = answer.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("x-ms-approximate-messages-count")
                .then(|| value.trim().parse().ok())?
        });
        count.unwrap_or_else(|| panic!("no count: {answer}"))
    }
}

fn joined(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
        if size == 0 {
            break;
        }
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}

fn letters(xml: &str) -> Vec<Letter> {
    let part = |text: &str, name: &str| -> Option<String> {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (inner, _) = rest.split_once(&format!("</{name}>"))?;
        let plain = inner
            .replace("&#xD;", "\r")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&apos;", "'");
        Some(plain.replace("&amp;", "&"))
    };
    let all = xml.split("<QueueMessage>").skip(1);
    all.map(|message| Letter {
        id: part(message, "MessageId").expect("an id"),
        text: part(message, "MessageText").unwrap_or_default(),
        count: part(message, "DequeueCount")
            .and_then(|count| count.parse().ok())
            .expect("a count"),
        expires: part(message, "ExpirationTime").expect("an expiry"),
        receipt: part(message, "PopReceipt"),
    })
    .collect()
}
