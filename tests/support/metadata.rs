//! A metadata service that announces and answers, well or badly, as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use super::await_for;

#[derive(Clone, Debug)]
pub(crate) enum Manner {
    Well,
    Status(u16),
    /// Instead of a document.
    Nonsense(&'static str),
    Hangs,
}

struct Service {
    manner: Manner,
    /// Name of the machine; if empty, the service does not tell.
    name: String,
    events: Vec<String>,
    asked: usize,
    approved: Vec<String>,
    /// Called when an approval arrives; its result is recorded.
    witness: Box<dyn Fn() -> String + Send>,
    seen: Vec<String>,
    hung: Vec<TcpStream>,
}

/// A service that ends with the test's process.
pub(crate) struct Metadata {
    service: Arc<Mutex<Service>>,
    pub(crate) url: String,
}

impl Metadata {
    /// Starts a service that calls the machine `name` and announces nothing.
    #[must_use]
    pub(crate) fn of(name: &str) -> Metadata {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let service = Arc::new(Mutex::new(Service {
            manner: Manner::Well,
            name: name.to_owned(),
            events: Vec::new(),
            asked: 0,
            approved: Vec::new(),
            witness: Box::new(String::new),
            seen: Vec::new(),
            hung: Vec::new(),
        }));
        let theirs = Arc::clone(&service);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let service = Arc::clone(&theirs);
                std::thread::spawn(move || {
                    let _ = serve(stream, &service);
                });
            }
        });
        Metadata { service, url }
    }

    fn service(&self) -> MutexGuard<'_, Service> {
        self.service.lock().expect("not poisoned")
    }

    pub(crate) fn answers(&self, manner: Manner) {
        self.service().manner = manner;
    }

    /// Announces only this from now on, for this machine.
    pub(crate) fn announce(&self, id: &str, kind: &str, machine: &str) {
        self.service().events = vec![format!(
            r#"{{"EventId": "{id}", "EventType": "{kind}", "ResourceType": "VirtualMachine",
                "Resources": ["{machine}"], "EventStatus": "Scheduled", "NotBefore": "",
                "Description": "a test", "EventSource": "Platform", "DurationInSeconds": 9}}"#
        )];
    }

    pub(crate) fn announce_nothing(&self) {
        self.service().events.clear();
    }

    pub(crate) fn witness(&self, witness: impl Fn() -> String + Send + 'static) {
        self.service().witness = Box::new(witness);
    }

    #[must_use]
    pub(crate) fn approved(&self) -> (Vec<String>, Vec<String>) {
        let service = self.service();
        (service.approved.clone(), service.seen.clone())
    }

    #[must_use]
    pub(crate) fn asked(&self) -> usize {
        self.service().asked
    }

    /// Waits until it was asked for events `times` times in sequence.
    pub(crate) fn await_asked(&self, times: usize) {
        let until = self.service().asked + times;
        await_for(
            "the metadata service to be asked",
            || (self.service().asked >= until).then_some(()),
            || format!("asked {} times", self.service().asked),
        );
    }
}

fn serve(stream: TcpStream, service: &Mutex<Service>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let (mut length, mut knows_the_word) = (0, false);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            knows_the_word |= header == "metadata: true" || header == "metadata:true";
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mut words = request.split_whitespace();
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let mut service = service.lock().expect("not poisoned");
        let (status, answer) = if !knows_the_word {
            // Like Azure's: this refuses requests that a program was tricked into.
            (400, String::new())
        } else {
            match (method, target) {
                ("GET", "/metadata/scheduledevents?api-version=2020-07-01") => {
                    service.asked += 1;
                    let events = service.events.join(",");
                    let document = format!(r#"{{"DocumentIncarnation": 1, "Events": [{events}]}}"#);
                    match service.manner {
                        Manner::Well => (200, document),
                        Manner::Status(status) => (status, String::new()),
                        Manner::Nonsense(text) => (200, text.to_owned()),
                        Manner::Hangs => {
                            service.hung.push(writer);
                            return Ok(());
                        }
                    }
                }
                ("POST", "/metadata/scheduledevents?api-version=2020-07-01") => {
                    let body: serde_json::Value =
                        serde_json::from_slice(&body).expect("an approval is JSON");
                    let id = body["StartRequests"][0]["EventId"].as_str();
                    let id = id.expect("an approval names its event").to_owned();
                    let seen = (service.witness)();
                    service.approved.push(id);
                    service.seen.push(seen);
                    (200, String::new())
                }
                ("GET", target) if target.starts_with("/metadata/instance/compute/name?") => {
                    match service.name.as_str() {
                        "" => (404, String::new()),
                        name => (200, name.to_owned()),
                    }
                }
                _ => (404, String::new()),
            }
        };
        drop(service);
        let length = answer.len();
        write!(
            writer,
            "HTTP/1.1 {status} .\r\ncontent-length: {length}\r\n\r\n{answer}"
        )?;
    }
}
