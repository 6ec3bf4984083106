//! A proxy between an instance and the store that fails on command.
//!
//! It understands just enough HTTP/1.1 to lose exactly one reply, and logs everything with its
//! arrival on CLOCK_BOOTTIME. It must never repair anything: a request that it does not forward
//! stays unforwarded.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use azure_core::time::{OffsetDateTime, parse_rfc7231, to_rfc7231};
use nix::sys::socket::{setsockopt, sockopt::Linger};
use trafficcop::Instant;

use super::WAIT_LIMIT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Acquire,
    Renew,
    Release,
    OtherLease,
    SetMetadata,
    /// Gets properties or metadata.
    Look,
    Create,
    /// Messages of a queue.
    Take,
    /// A message's visibility or text.
    Update,
    Put,
    DeleteMessage,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Holds everything back until the mode changes.
    Freeze,
    /// Present and new ones.
    Cut,
    Delay(Duration),
    Answer(u16, &'static str, &'static str),
    /// Like the store, with this status and error code.
    Refuse(u16, &'static str),
    /// Forwards reads; refuses the rest like the store, with this status and error code.
    RefuseWrites(u16, &'static str),
}

/// Treatment of the next request of a kind, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Forwards it, drops its reply and closes the connection.
    LoseReply,
    DelayReply(Duration),
    Answer(u16, &'static str, &'static str),
    /// The answer to the last request of its kind, without the store.
    Repeat,
    /// Gives no answer until the proxy ends, without the store.
    Swallow,
    /// Refuses it like the store, with this status and error code, without the store.
    Refuse(u16, &'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) call: Call,
    pub(crate) path: String,
    /// Arrival, in nanoseconds of CLOCK_BOOTTIME.
    pub(crate) at: u64,
    /// Lease id that it had or proposed, if any.
    pub(crate) lease_id: Option<String>,
    pub(crate) receipt: Option<String>,
    pub(crate) status: Option<u16>,
    /// Whether it reached the client.
    pub(crate) delivered: bool,
    /// Time at which it was passed on, if it was.
    pub(crate) delivered_at: u64,
}

struct ProxyState {
    mode: Mode,
    fates: Vec<(Call, Fate)>,
    log: Vec<Seen>,
    clients: BTreeMap<u64, TcpStream>,
    date: Option<i64>,
    /// Seconds by which the store's clock is ahead; dates are checked only if set.
    clock: Option<i64>,
    /// Ids of requests are removed from answers.
    nameless: bool,
    /// Last reply to each kind of request.
    last: Vec<(Call, Message)>,
    over: bool,
}

struct SharedProxy {
    state: Mutex<ProxyState>,
    changed: Condvar,
    upstream: Option<u16>,
}

impl SharedProxy {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn pass_frost(&self) -> MutexGuard<'_, ProxyState> {
        self.changed
            .wait_while(self.lock(), |state| {
                state.mode == Mode::Freeze && !state.over
            })
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<SharedProxy>,
}

impl Proxy {
    #[must_use]
    pub(crate) fn before(upstream: u16) -> Proxy {
        Proxy::start(Some(upstream), Mode::Pass)
    }

    #[must_use]
    pub(crate) fn alone(mode: Mode) -> Proxy {
        assert!(matches!(mode, Mode::Freeze | Mode::Cut | Mode::Answer(..)));
        Proxy::start(None, mode)
    }

    fn start(upstream: Option<u16>, mode: Mode) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = ProxyState {
            mode,
            fates: Vec::new(),
            log: Vec::new(),
            clients: BTreeMap::new(),
            date: None,
            clock: None,
            nameless: false,
            last: Vec::new(),
            over: false,
        };
        let shared = Arc::new(SharedProxy {
            state: Mutex::new(state),
            changed: Condvar::new(),
            upstream,
        });
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &ours));
        Proxy { port, shared }
    }

    pub(crate) fn set(&self, mode: Mode) {
        let mut state = self.shared.lock();
        if mode == Mode::Cut {
            for client in state.clients.values() {
                reset(client);
            }
        }
        state.mode = mode;
        self.shared.changed.notify_all();
    }

    pub(crate) fn set_date(&self, seconds: i64) {
        self.shared.lock().date = Some(seconds);
    }

    /// Sets the store's clock ahead, and refuses dates more than fifteen minutes off it (Azurite
    /// does not check dates).
    pub(crate) fn keeps_time(&self, ahead: i64) {
        self.shared.lock().clock = Some(ahead);
    }

    pub(crate) fn strips_request_ids(&self) {
        self.shared.lock().nameless = true;
    }

    #[must_use]
    pub(crate) fn misdated(&self) -> Vec<Call> {
        let log = self.log();
        let refused = log.iter().filter(|seen| seen.status == Some(403));
        refused.map(|seen| seen.call).collect()
    }

    pub(crate) fn next(&self, call: Call, fate: Fate) {
        self.shared.lock().fates.push((call, fate));
    }

    #[must_use]
    pub(crate) fn log(&self) -> Vec<Seen> {
        self.shared.lock().log.clone()
    }

    #[must_use]
    pub(crate) fn receipts(&self) -> Vec<String> {
        let log = self.log();
        log.into_iter().filter_map(|seen| seen.receipt).collect()
    }

    /// Waits for a request, past or future, and returns it.
    pub(crate) fn await_seen(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(seen) = state.log.iter().find(|seen| wanted(seen)) {
                return seen.clone();
            }
            assert!(
                Instant::now().since(begin) < WAIT_LIMIT,
                "waited {WAIT_LIMIT:?} in vain for {what} at the proxy\n{:#?}",
                state.log
            );
            let turn = self
                .shared
                .changed
                .wait_timeout(state, Duration::from_millis(200));
            state = turn.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Waits for the next answer to such a request.
    pub(crate) fn await_next(&self, call: Call) -> Seen {
        let now = Instant::now().as_nanos();
        self.await_seen(&format!("an answered {call:?}"), |seen| {
            seen.call == call && seen.at > now && seen.delivered
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        for client in state.clients.values() {
            let _ = client.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
        drop(state);
        // Wakes the accepting thread, which sees the end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn reset(client: &TcpStream) {
    let _ = setsockopt(
        client,
        Linger,
        &nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        },
    );
    let _ = client.shutdown(Shutdown::Both);
}

fn accept(listener: &TcpListener, shared: &Arc<SharedProxy>) {
    for number in 0.. {
        let Ok((client, _)) = listener.accept() else {
            return;
        };
        let mut state = shared.lock();
        if state.over {
            return;
        }
        if state.mode == Mode::Cut {
            reset(&client);
            continue;
        }
        let Ok(copy) = client.try_clone() else {
            return;
        };
        state.clients.insert(number, copy);
        drop(state);
        let ours = Arc::clone(shared);
        std::thread::spawn(move || {
            let _ = serve(&client, &ours);
            let _ = client.shutdown(Shutdown::Both);
            ours.lock().clients.remove(&number);
        });
    }
}

/// Head (including the empty line) and body, byte for byte.
#[derive(Clone)]
struct Message {
    head: String,
    body: Vec<u8>,
}

impl Message {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn set_date(&mut self, date: &str) {
        let lines = self.head.lines().map(|line| match line.split_once(':') {
            Some((name, _)) if name.eq_ignore_ascii_case("date") => format!("Date: {date}\r\n"),
            _ => format!("{line}\r\n"),
        });
        self.head = lines.collect();
    }

    fn remove(&mut self, name: &str) {
        let is_named = |line: &&str| {
            let named = line.split_once(':');
            named.is_some_and(|(key, _)| key.eq_ignore_ascii_case(name))
        };
        let lines = self.head.lines().filter(|line| !is_named(line));
        self.head = lines.map(|line| format!("{line}\r\n")).collect();
    }

    fn is_last(&self) -> bool {
        self.header("connection") == Some("close")
    }

    /// Reads the next message; `None` at the end of the stream between messages.
    fn read(from: &mut impl BufRead, bodiless: bool) -> io::Result<Option<Message>> {
        let mut message = Message {
            head: String::new(),
            body: Vec::new(),
        };
        while !message.head.ends_with("\r\n\r\n") {
            if from.read_line(&mut message.head)? == 0 {
                return Ok(None);
            }
        }
        if bodiless {
            return Ok(Some(message));
        }
        if let Some(length) = message.header("content-length") {
            message.body = vec![0; length.parse().map_err(io::Error::other)?];
            from.read_exact(&mut message.body)?;
        } else if message.header("transfer-encoding").is_some() {
            while !message.body.ends_with(b"\r\n0\r\n\r\n") && message.body != b"0\r\n\r\n" {
                if from.read_until(b'\n', &mut message.body)? == 0 {
                    return Ok(None);
                }
            }
        }
        Ok(Some(message))
    }

    fn write(&self, mut to: &TcpStream) -> io::Result<()> {
        let mut bytes = self.head.clone().into_bytes();
        bytes.extend(&self.body);
        to.write_all(&bytes)
    }

    fn path(&self) -> &str {
        let target = self.head.split(' ').nth(1).unwrap_or_default();
        target.split('?').next().unwrap_or_default()
    }

    fn receipt(&self) -> Option<String> {
        let (_, rest) = self.head.lines().next()?.split_once("popreceipt=")?;
        rest.split(['&', ' ']).next().map(str::to_owned)
    }

    fn call(&self) -> Call {
        let mut words = self.head.split(' ');
        let method = words.next().unwrap_or_default();
        let target = words.next().unwrap_or_default();
        let lease = target.contains("comp=lease");
        if target.contains("/messages?") || target.contains("/messages/") {
            return match method {
                "GET" => Call::Take,
                "PUT" => Call::Update,
                "POST" => Call::Put,
                "DELETE" => Call::DeleteMessage,
                _ => Call::Other,
            };
        }
        match (method, self.header("x-ms-lease-action")) {
            ("PUT", Some(action)) if lease => match action.to_lowercase().as_str() {
                "acquire" => Call::Acquire,
                "renew" => Call::Renew,
                "release" => Call::Release,
                _ => Call::OtherLease,
            },
            ("PUT", _) if target.contains("comp=metadata") => Call::SetMetadata,
            ("PUT", _) if !target.contains("comp=") => Call::Create,
            ("HEAD" | "GET", _) if !target.contains("restype=") => Call::Look,
            _ => Call::Other,
        }
    }
}

fn answer(
    client: &TcpStream,
    head_only: bool,
    status: u16,
    kind: &str,
    body: &str,
) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} By The Proxy\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let body = if head_only {
        Vec::new()
    } else {
        body.as_bytes().to_vec()
    };
    Message { head, body }.write(client)
}

/// Refuses like the store: the error code and the store's time are in headers.
fn refuse(
    client: &TcpStream,
    head_only: bool,
    status: u16,
    code: &str,
    date: &str,
) -> io::Result<()> {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><HeaderName>x-ms-version</HeaderName></Error>"
    );
    let head = format!(
        "HTTP/1.1 {status} By The Proxy\r\nContent-Type: application/xml\r\n\
         x-ms-error-code: {code}\r\nx-ms-version: 2021-12-02\r\nDate: {date}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let body = if head_only {
        Vec::new()
    } else {
        body.into_bytes()
    };
    Message { head, body }.write(client)
}

fn date_of(seconds: i64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(seconds).expect("a moment");
    azure_core::time::to_rfc7231(&at)
}

fn date(ahead: i64) -> String {
    let now = OffsetDateTime::now_utc() + Duration::from_secs(ahead.unsigned_abs());
    let past = OffsetDateTime::now_utc() - Duration::from_secs(ahead.unsigned_abs());
    to_rfc7231(if ahead < 0 { &past } else { &now })
}

fn is_misdated(request: &Message, ahead: i64) -> bool {
    let ours = request
        .header("x-ms-date")
        .and_then(|text| parse_rfc7231(text).ok());
    let theirs = parse_rfc7231(&date(ahead)).expect("a date");
    ours.is_some_and(|ours| (ours - theirs).unsigned_abs() > Duration::from_secs(15 * 60))
}

fn serve(client: &TcpStream, shared: &SharedProxy) -> io::Result<()> {
    let mut requests = BufReader::new(client);
    while let Some(request) = Message::read(&mut requests, false)? {
        let head_only = request.head.starts_with("HEAD ");
        let call = request.call();
        let index = note(shared, call, &request);
        let (mode, fate, clock) = {
            let mut state = shared.pass_frost();
            if state.over || state.mode == Mode::Cut {
                return Ok(());
            }
            let planned = state.fates.iter().position(|(kind, _)| *kind == call);
            (
                state.mode.clone(),
                planned.map(|at| state.fates.remove(at).1),
                state.clock,
            )
        };
        let refusal = match (&mode, &fate) {
            _ if clock.is_some_and(|ahead| is_misdated(&request, ahead)) => {
                Some((403, "AuthenticationFailed"))
            }
            (Mode::Refuse(status, code), _) => Some((*status, *code)),
            (Mode::RefuseWrites(status, code), _) if request.head.starts_with("PUT ") => {
                Some((*status, *code))
            }
            (_, Some(Fate::Refuse(status, code))) => Some((*status, *code)),
            _ => None,
        };
        if let Some((status, code)) = refusal {
            // Before the client can see it: it may repeat the request and be answered before this
            // thread continues.
            shared.lock().log[index].status = Some(status);
            refuse(client, head_only, status, code, &date(clock.unwrap_or(0)))?;
            shared.lock().log[index].delivered = true;
            shared.changed.notify_all();
            if request.is_last() {
                return Ok(());
            }
            continue;
        }
        if let Mode::Answer(status, kind, body) = mode {
            answer(client, head_only, status, kind, body)?;
            if request.is_last() {
                return Ok(());
            }
            continue;
        }
        if let Some(Fate::Answer(status, kind, body)) = fate {
            answer(client, head_only, status, kind, body)?;
            if request.is_last() {
                return Ok(());
            }
            continue;
        }
        if fate == Some(Fate::Swallow) {
            let state = shared.lock();
            drop(shared.changed.wait_while(state, |state| !state.over));
            return Ok(());
        }
        if fate == Some(Fate::Repeat) {
            let last = shared
                .lock()
                .last
                .iter()
                .find(|(kind, _)| *kind == call)
                .cloned();
            let (_, reply) = last.expect("an answer before this one");
            reply.write(client)?;
            continue;
        }
        let Some(port) = shared.upstream else {
            return Ok(());
        };
        // A new connection for each request: one that the store has closed would lose a request
        // unintentionally.
        let server = &mut BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
        request.write(server.get_ref())?;
        let Some(mut reply) = Message::read(server, head_only)? else {
            return Ok(());
        };
        if let Some(seconds) = shared.lock().date {
            reply.set_date(&date_of(seconds));
        }
        if let Some(ahead) = clock {
            reply.set_date(&date(ahead));
        }
        {
            let mut state = shared.lock();
            if state.nameless {
                reply.remove("x-ms-client-request-id");
            }
            state.last.retain(|(kind, _)| *kind != call);
            state.last.push((call, reply.clone()));
        }
        let status = reply
            .head
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok());
        shared.lock().log[index].status = status;
        let delay = match (&fate, &mode) {
            (Some(Fate::LoseReply), _) => {
                shared.changed.notify_all();
                return client.shutdown(Shutdown::Both);
            }
            (Some(Fate::DelayReply(delay)), _) | (_, Mode::Delay(delay)) => *delay,
            _ => Duration::ZERO,
        };
        std::thread::sleep(delay);
        drop(shared.pass_frost());
        reply.write(client)?;
        {
            let seen = &mut shared.lock().log[index];
            seen.delivered = true;
            seen.delivered_at = Instant::now().as_nanos();
        }
        shared.changed.notify_all();
        if request.is_last() || reply.is_last() {
            return Ok(());
        }
    }
    Ok(())
}

fn note(shared: &SharedProxy, call: Call, request: &Message) -> usize {
    let id = request
        .header("x-ms-lease-id")
        .or(request.header("x-ms-proposed-lease-id"));
    let mut state = shared.lock();
    state.log.push(Seen {
        call,
        path: request.path().to_owned(),
        at: Instant::now().as_nanos(),
        lease_id: id.map(Into::into),
        receipt: request.receipt(),
        status: None,
        delivered: false,
        delivered_at: 0,
    });
    shared.changed.notify_all();
    state.log.len() - 1
}
