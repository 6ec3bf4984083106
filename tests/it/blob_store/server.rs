//! A blob service that plays a script, and fails the test if another request comes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::time::{OffsetDateTime, parse_rfc7231, to_rfc7231};
use trafficcop::Instant;
use trafficcop::{Account, AuthOptions};
use trafficcop_core::Failure;
use trafficcop_lease::Competitor;
use trafficcop_lease::blob::{Blob, BlobLock, Target};
use trafficcop_lease::once::Task;
use trafficcop_lease::record::Candidate;

/// A key that must never appear anywhere: "a very secret key of ours".
pub(crate) const SECRET: &str = "YSB2ZXJ5IHNlY3JldCBrZXkgb2Ygb3Vycw==";

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Instant,
    pub(crate) op: String,
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) from: u16,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Debug)]
enum Fate {
    Answer,
    /// Closes the connection without a reply.
    Drop,
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    echo: bool,
    named: bool,
    mirror: bool,
    fate: Fate,
}

impl Reply {
    fn new(status: u16) -> Reply {
        Reply {
            status,
            headers: vec![("x-ms-version".into(), "2026-04-06".into())],
            body: String::new(),
            echo: false,
            named: true,
            mirror: false,
            fate: Fate::Answer,
        }
    }
    pub(crate) fn with(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.into(), value.into()));
        self
    }
    pub(crate) fn without_version(mut self) -> Reply {
        self.headers.clear();
        self
    }
    pub(crate) fn nameless(self) -> Reply {
        Reply {
            named: false,
            ..self
        }
    }
    /// Answers with the id of another request.
    pub(crate) fn misnamed(self) -> Reply {
        let other = "99999999-2222-3333-4444-555555555555";
        self.nameless().with("x-ms-client-request-id", other)
    }
    pub(crate) fn meta(self, name: &str, value: &str) -> Reply {
        self.with(&format!("x-ms-meta-{name}"), value)
    }
}

fn view(state: &str, etag: &str) -> Reply {
    Reply::new(200)
        .with("x-ms-lease-state", state)
        .with("etag", etag)
}
pub(crate) fn free() -> Reply {
    view("available", "\"1\"").meta("trafficcop_token", "0")
}
pub(crate) fn seen(state: &str, etag: &str) -> Reply {
    view(state, etag)
}
/// A leased lock with the last metadata that were sent: the effect of a write whose reply was lost.
pub(crate) fn as_written() -> Reply {
    Reply {
        mirror: true,
        ..view("leased", "\"2\"")
    }
}
pub(crate) fn leased() -> Reply {
    view("leased", "\"1\"")
}
/// An acquired lease with the requested id, and the ETag of [`free`].
pub(crate) fn acquired() -> Reply {
    Reply {
        echo: true,
        ..Reply::new(201).with("etag", "\"1\"")
    }
}
pub(crate) fn renewed() -> Reply {
    Reply {
        echo: true,
        ..Reply::new(200)
    }
}
pub(crate) fn done() -> Reply {
    Reply::new(200).with("etag", "\"2\"")
}
pub(crate) fn created() -> Reply {
    Reply::new(201).with("etag", "\"1\"")
}
pub(crate) fn answer(status: u16) -> Reply {
    Reply::new(status)
}
pub(crate) fn error(status: u16, code: &str) -> Reply {
    Reply {
        body: format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>"),
        ..Reply::new(status)
            .with("x-ms-error-code", code)
            .with("content-type", "application/xml")
    }
}
pub(crate) fn page(status: u16) -> Reply {
    Reply {
        headers: vec![("content-type".into(), "text/html".into())],
        body: "<html><body>Please log in</body></html>".into(),
        ..Reply::new(status)
    }
}
pub(crate) fn lost() -> Reply {
    Reply {
        fate: Fate::Drop,
        ..Reply::new(0)
    }
}
pub(crate) fn hang() -> Reply {
    Reply {
        fate: Fate::Hang,
        ..Reply::new(0)
    }
}

#[derive(Default)]
struct Play {
    script: VecDeque<(&'static str, Reply)>,
    seen: Vec<Request>,
    wrong: Vec<String>,
    clock: Option<i64>,
    lenient: bool,
    /// Requests that it refused because of their dates.
    misdated: Vec<String>,
    ids: Vec<String>,
}

impl Play {
    /// Whether the date is more than fifteen minutes off, which the service refuses.
    fn is_misdated(&self, request: &Request) -> bool {
        let Some(ahead) = self.clock.filter(|_| !self.lenient) else {
            return false;
        };
        let date = parse_rfc7231(request.header("x-ms-date")).expect("a date");
        (date.unix_timestamp() - now() - ahead).abs() > 15 * 60
    }

    fn next(&mut self, request: &Request) -> Reply {
        let wrong = match self.script.pop_front() {
            Some((op, reply)) if op == request.op => return reply,
            Some((op, _)) => format!("{op} was to come, not {request:?}"),
            None => format!("nothing was to come, not {request:?}"),
        };
        self.wrong.push(wrong);
        answer(418)
    }
}

pub(crate) fn date(ahead: i64) -> String {
    let date = OffsetDateTime::from_unix_timestamp(now() + ahead).expect("a date");
    to_rfc7231(&date)
}

pub(crate) fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

pub(crate) struct Server {
    pub(crate) port: u16,
    play: Arc<Mutex<Play>>,
}

impl Server {
    pub(crate) fn start(script: Vec<(&'static str, Reply)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let play = Arc::new(Mutex::new(Play {
            script: script.into(),
            ..Play::default()
        }));
        let shared = Arc::clone(&play);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let play = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &play));
            }
        });
        Server { port, play }
    }

    pub(crate) fn then(&self, script: Vec<(&'static str, Reply)>) {
        self.locked().script.extend(script);
    }

    /// Sets its clock ahead; other dates are refused from now on.
    pub(crate) fn keeps_time(&self, ahead: i64) {
        self.locked().clock = Some(ahead);
    }

    pub(crate) fn ignores_dates(&self) {
        self.locked().lenient = true;
    }

    pub(crate) fn misdated(&self) -> Vec<String> {
        self.locked().misdated.clone()
    }

    /// Returns the ids of all requests, even those refused for their dates.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.locked().ids.clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.locked().seen.clone()
    }

    pub(crate) fn of(&self, op: &str) -> Vec<Request> {
        self.seen().into_iter().filter(|r| r.op == op).collect()
    }

    pub(crate) async fn comes(&self, op: &str) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.of(op).is_empty() {
            assert!(Instant::now() < limit, "no {op} came: {:#?}", self.seen());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that the whole script was played, and nothing else came.
    #[track_caller]
    pub(crate) fn played(&self) {
        let play = self.locked();
        assert!(play.wrong.is_empty(), "{:#?}", play.wrong);
        let left: Vec<_> = play.script.iter().map(|(op, _)| *op).collect();
        assert!(left.is_empty(), "never came: {left:?}");
    }

    pub(crate) fn account(&self) -> Account {
        let string = format!(
            "AccountName=testacct;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:{}/testacct",
            self.port
        );
        let get = |name: &str| (name == "AZURE_STORAGE_CONNECTION_STRING").then(|| string.clone());
        Account::find(&get, &AuthOptions::default(), None).expect("an account")
    }

    pub(crate) fn blob(&self) -> Blob {
        open(&self.lock())
    }

    /// Makes a store on this server, for a task to be done once.
    pub(crate) fn blob_for(&self, task: Task) -> Blob {
        let competitor = Competitor {
            task: Some(task),
            ..competitor()
        };
        Blob::open(&self.lock(), &competitor).expect("a store")
    }

    pub(crate) fn lock(&self) -> BlobLock {
        BlobLock {
            target: Target::parse("locks/job").expect("a target"),
            account: self.account(),
            create: true,
            page_blob: None,
        }
    }
}

pub(crate) fn open(lock: &BlobLock) -> Blob {
    Blob::open(lock, &competitor()).expect("a store")
}

fn competitor() -> Competitor {
    let candidate = Candidate {
        identity: "box-1".into(),
        host: "box".into(),
        pid: 42,
        command: "echo höme".into(),
        bell: None,
    };
    Competitor::new(candidate, Duration::from_secs(30))
}

pub(crate) fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns the reason of a fatal failure, and whether a right is missing.
pub(crate) fn fatal(failure: &Failure) -> (&str, bool) {
    match failure {
        Failure::Fatal { why, denied } => (why, *denied),
        other => panic!("not fatal: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn transient(failure: &Failure) -> &str {
    match failure {
        Failure::Transient { why, .. } => why,
        other => panic!("not transient: {other:?}"),
    }
}

fn serve(stream: &TcpStream, play: &Mutex<Play>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let reply = {
            let mut play = play.lock().unwrap_or_else(PoisonError::into_inner);
            play.ids
                .push(request.header("x-ms-client-request-id").to_owned());
            if play.is_misdated(&request) {
                play.misdated.push(request.op.clone());
                error(403, "AuthenticationFailed")
            } else {
                play.seen.push(request.clone());
                play.next(&request)
            }
        };
        let reply = match play.lock().unwrap_or_else(PoisonError::into_inner).clock {
            Some(ahead) if !reply.headers.iter().any(|(name, _)| name == "date") => {
                reply.with("date", &date(ahead))
            }
            _ => reply,
        };
        match reply.fate {
            Fate::Drop => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            Fate::Hang => {
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
            Fate::Answer => {}
        }
        let mut text = format!("HTTP/1.1 {} X\r\n", reply.status);
        for (name, value) in &reply.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if reply.mirror {
            let play = play.lock().unwrap_or_else(PoisonError::into_inner);
            let written = play.seen.iter().rev().find(|r| r.op == "metadata");
            for (name, value) in written.iter().flat_map(|r| &r.headers) {
                if name.starts_with("x-ms-meta-") {
                    text.push_str(&format!("{name}: {value}\r\n"));
                }
            }
        }
        if reply.echo {
            let id = match request.header("x-ms-proposed-lease-id") {
                "" => request.header("x-ms-lease-id"),
                id => id,
            };
            text.push_str(&format!("x-ms-lease-id: {id}\r\n"));
        }
        if reply.named {
            let id = request.header("x-ms-client-request-id");
            text.push_str(&format!("x-ms-client-request-id: {id}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n", reply.body.len()));
        if request.op != "look" {
            text.push_str(&reply.body);
        }
        let mut stream = stream;
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|n| n.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let op = match (method.as_str(), headers.get("x-ms-lease-action")) {
        ("HEAD", _) => "look".to_owned(),
        (_, Some(action)) => action.clone(),
        ("PUT", _) if query.contains("comp=metadata") => "metadata".to_owned(),
        ("PUT", _) if query.contains("restype=container") => "container".to_owned(),
        ("PUT", _) => "create".to_owned(),
        (other, _) => other.to_owned(),
    };
    Some(Request {
        at: Instant::now(),
        op,
        target,
        headers,
        from: reader.get_ref().peer_addr().ok()?.port(),
    })
}
