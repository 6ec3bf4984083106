//! Connections to servers: name look-up, the race between addresses, and messages for TLS failures.
//!
//! One thread for each name looks it up: one that hangs delays only requests for that name. If no thread can
//! start, that is doubt.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::{CertificateError as Bad, Error as TlsError};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use url::Url;

use trafficcop_core::TlsFailure;
use trafficcop_core::clock::{Instant, sleep};
use trafficcop_core::util::lock;

type Found = io::Result<Vec<SocketAddr>>;

type Asker = oneshot::Sender<Found>;

// The resolver blocks, and the runtime's pool for blocking work panics if it gets no thread. A thread that runs
// already is there for every renewal.
static THREADS: Mutex<BTreeMap<String, mpsc::Sender<Asker>>> = Mutex::new(BTreeMap::new());

// The machine's nss modules keep buffers on the stack.
const STACK: usize = 1024 * 1024;

// Pause before the next address is tried (RFC 8305, section 8).
const STAGGER: Duration = Duration::from_millis(250);

// The kernel sends a lost packet again after a second; a longer limit leaves a renewal no time for another
// connection.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_millis(2500);

/// Resolver of the HTTP library, which gives each address in turn a part of its time limit: so the address that
/// answers first comes first.
#[derive(Clone, Default)]
pub(super) struct Names {
    // Host, port and addresses of the current request; the library resolves proxies, too.
    server: Arc<Mutex<(String, u16, Vec<SocketAddr>)>>,
}

impl Names {
    pub(super) fn expect(&self, url: &Url) {
        let mut server = lock(&self.server);
        let (host, port) = (url.host_str(), url.port_or_known_default());
        (server.0, server.1) = (host.unwrap_or_default().to_owned(), port.unwrap_or(0));
        server.2.clear();
    }

    pub(super) fn tried(&self) -> Vec<SocketAddr> {
        lock(&self.server).2.clone()
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let server = Arc::clone(&self.server);
        Box::pin(async move {
            let mut found = addresses(name.as_str(), 0).await?;
            let port = lock(&server).1;
            if found.len() > 1 && port != 0 && lock(&server).0 == name.as_str() {
                found.iter_mut().for_each(|address| address.set_port(port));
                lock(&server).2.clone_from(&found);
                if let Ok(stream) = connect(&found).await
                    && let Ok(first) = stream.peer_addr()
                {
                    found.sort_by_key(|address| *address != first);
                }
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Connects to the address that answers first; attempts begin one after another (RFC 8305). The error lists all
/// of them.
pub async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let give_up_at = Instant::now() + CONNECT_LIMIT;
    let mut rest = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut failed: Vec<(SocketAddr, io::Error)> = Vec::new();
    loop {
        let next = rest.next();
        attempts.extend(next.map(|address| async move {
            let connected = TcpStream::connect(address).await;
            connected.map_err(|why| (address, why))
        }));
        let left = give_up_at.since(Instant::now());
        let pause = if rest.len() > 0 {
            STAGGER.min(left)
        } else {
            left
        };
        tokio::select! {
            biased;
            Some(answered) = attempts.next() => match answered {
                Ok(stream) => return Ok(stream),
                Err(failure) => failed.push(failure),
            },
            () = sleep(pause), if !attempts.is_empty() => {}
            else => {}
        }
        if (attempts.is_empty() && rest.len() == 0) || Instant::now() >= give_up_at {
            return Err(unconnected(addresses, &failed));
        }
    }
}

fn unconnected(addresses: &[SocketAddr], failed: &[(SocketAddr, io::Error)]) -> io::Error {
    let outcome = |address: &SocketAddr| match failed.iter().find(|(failed, _)| failed == address) {
        Some((_, why)) => format!("{address}: {}", without_number(&why.to_string())),
        None => format!(
            "{address}: no answer within {} s",
            CONNECT_LIMIT.as_secs_f32()
        ),
    };
    let outcomes: Vec<String> = addresses.iter().map(outcome).collect();
    let kind = failed.first().map(|(_, why)| why.kind());
    io::Error::new(kind.unwrap_or(io::ErrorKind::TimedOut), outcomes.join("; "))
}

pub(super) fn without_number(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or_default()
}

/// Looks up a host by its name or IP address.
pub async fn addresses(host: &str, port: u16) -> Found {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let answered = ask(host)?.await;
    let mut found = answered.map_err(|_| io::Error::other("the look-up was not finished"))??;
    for address in &mut found {
        address.set_port(port);
    }
    Ok(found)
}

fn ask(host: &str) -> io::Result<oneshot::Receiver<Found>> {
    let (asker, answer) = oneshot::channel();
    let mut threads = lock(&THREADS);
    if let Some(thread) = threads.get(host) {
        // The thread lives as long as the process.
        let _ = thread.send(asker);
        return Ok(answer);
    }
    let (thread, asked) = mpsc::channel();
    let name = host.to_owned();
    let started = std::thread::Builder::new()
        .name("names".into())
        .stack_size(STACK)
        .spawn(move || serve(&name, &asked));
    started.map_err(|why| {
        // This kind of error is temporary: the caller tries an unsent request again.
        let why = format!("{host} cannot be looked up: no thread can be started: {why}");
        io::Error::new(io::ErrorKind::WouldBlock, why)
    })?;
    let _ = thread.send(asker);
    threads.insert(host.to_owned(), thread);
    Ok(answer)
}

fn serve(name: &str, asked: &mpsc::Receiver<Asker>) {
    while let Ok(first) = asked.recv() {
        // All waiting requests get one answer: otherwise each attempt during a hang would need its own look-up
        // later.
        let mut askers: Vec<Asker> = std::iter::once(first).chain(asked.try_iter()).collect();
        askers.retain(|asker| !asker.is_closed());
        if askers.is_empty() {
            continue;
        }
        let found = look_up(name);
        for asker in askers {
            let answer = match &found {
                Ok(found) => Ok(found.clone()),
                Err(why) => Err(io::Error::new(why.kind(), why.to_string())),
            };
            let _ = asker.send(answer);
        }
    }
}

fn look_up(name: &str) -> Found {
    match (name, 0).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(why) => {
            let text = why.to_string();
            let text = text.trim_start_matches("failed to lookup address information: ");
            Err(io::Error::new(
                why.kind(),
                format!("cannot look up the name {name}: {text}"),
            ))
        }
    }
}

pub(super) fn tls_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // An I/O error hides its inner error: its `source` is that one's source.
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Describes a TLS failure, with advice; `server` is the name, with the port where known.
pub fn tls_refusal(server: &str, error: &TlsError) -> String {
    let bad = match error {
        TlsError::InvalidCertificate(bad) => bad,
        TlsError::InvalidMessage(_) => {
            return format!(
                "{server} does not speak TLS: begin its address with http:// (an emulator), or correct its port"
            );
        }
        _ => return format!("TLS with {server} failed: {error}"),
    };
    match bad {
        // The second, where another authority has a trusted one's name.
        Bad::UnknownIssuer | Bad::BadSignature => format!(
            "TLS: the issuer of {server}'s certificate is not trusted on this machine: name the authority's \
             certificate with --ca-file"
        ),
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
            format!("TLS: the certificate of {server} is for another name: use that name")
        }
        Bad::Expired | Bad::ExpiredContext { .. } => format!(
            "TLS: the certificate of {server} has expired: renew it, or correct this machine's clock"
        ),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            format!("TLS: the certificate of {server} is not valid yet: check this machine's clock")
        }
        Bad::Revoked => format!("TLS: the certificate of {server} was revoked: replace it"),
        other if is_authority(other) => format!(
            "TLS: {server} shows the certificate of an authority (CA:TRUE, as 'openssl req -x509' \
             makes it) as its own: use one that the authority has signed, and name the authority's with --ca-file"
        ),
        _ => format!("TLS: the certificate of {server} is refused: {error}"),
    }
}

/// Classifies a TLS failure; `None` for other errors.
pub fn tls_failure(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let bad = match tls_cause(error)? {
        TlsError::InvalidCertificate(bad) => bad,
        TlsError::InvalidMessage(_) => return Some(TlsFailure::NotSpoken),
        _ => return Some(TlsFailure::Other),
    };
    Some(match bad {
        Bad::UnknownIssuer | Bad::BadSignature => TlsFailure::UnknownIssuer,
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => TlsFailure::OtherName,
        Bad::Expired
        | Bad::ExpiredContext { .. }
        | Bad::NotValidYet
        | Bad::NotValidYetContext { .. } => TlsFailure::OutOfDate,
        other if is_authority(other) => TlsFailure::IsAuthority,
        _ => TlsFailure::Other,
    })
}

/// Recognises an error of the verifier, whose crate is no dependency here.
fn is_authority(bad: &Bad) -> bool {
    format!("{bad:?}").contains("CaUsedAsEndEntity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_name_has_one_look_up_thread() {
        for _ in 0..3 {
            let found = addresses("localhost", 443).await.expect("found");
            assert!(
                found
                    .iter()
                    .all(|found| found.ip().is_loopback() && found.port() == 443),
                "{found:?}"
            );
        }
        let threads = THREADS.lock().unwrap();
        assert_eq!(
            threads.keys().filter(|name| *name == "localhost").count(),
            1
        );
    }

    #[tokio::test]
    async fn address_needs_no_look_up_and_no_thread() {
        let found = addresses("192.0.2.7", 5671).await.expect("an address");
        assert_eq!(found, [SocketAddr::from(([192, 0, 2, 7], 5671))]);
        let found = addresses("::1", 80).await.expect("an address");
        assert_eq!(found.len(), 1);
        assert!(!THREADS.lock().unwrap().contains_key("::1"));
    }

    /// Returns an address that answers no request to connect: the listener's queue is full.
    fn silent() -> (std::net::TcpStream, std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let backlog = nix::sys::socket::Backlog::new(0).unwrap();
        nix::sys::socket::listen(&listener, backlog).unwrap();
        let address = listener.local_addr().unwrap();
        let queued = std::net::TcpStream::connect(address).unwrap();
        (queued, listener, address)
    }

    #[tokio::test]
    async fn silent_first_address_costs_a_quarter_of_a_second_and_is_named_in_the_error() {
        let (_queued, _full, first) = silent();
        let open = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let second = open.local_addr().unwrap();
        let began = Instant::now();
        let stream = connect(&[first, second]).await.expect("the second answers");
        assert_eq!(stream.peer_addr().unwrap(), second);
        assert!(Instant::now().since(began) < CONNECT_LIMIT / 2);
        drop(open);
        let why = connect(&[second, first])
            .await
            .expect_err("none answers")
            .to_string();
        let words = format!("{second}: Connection refused; {first}: no answer within 2.5 s");
        assert_eq!(why, words);
    }

    #[tokio::test]
    async fn names_return_the_address_that_answers_first_with_its_port() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = open.local_addr().unwrap().port();
        let names = Names::default();
        names.expect(&Url::parse(&format!("http://localhost:{port}/")).unwrap());
        let found: Vec<SocketAddr> = names
            .resolve("localhost".parse().unwrap())
            .await
            .expect("found")
            .collect();
        assert!(found[0].is_ipv4(), "{found:?}");
        assert_eq!(names.tried().is_empty(), found.len() < 2);
    }

    #[tokio::test]
    async fn unknown_host_is_an_error() {
        let why = addresses("no-such-host.invalid", 80).await;
        let why = why.expect_err("no host").to_string();
        assert!(
            why.starts_with("cannot look up the name no-such-host.invalid: "),
            "{why}"
        );
    }

    #[test]
    fn each_refusal_names_the_server_and_what_to_do() {
        for (error, words) in [
            (
                TlsError::InvalidCertificate(Bad::UnknownIssuer),
                "--ca-file",
            ),
            (
                TlsError::InvalidCertificate(Bad::NotValidForName),
                "another name",
            ),
            (TlsError::InvalidCertificate(Bad::Expired), "clock"),
            (TlsError::InvalidCertificate(Bad::NotValidYet), "clock"),
            (TlsError::InvalidCertificate(Bad::Revoked), "revoked"),
            (TlsError::InvalidCertificate(Bad::BadEncoding), "refused"),
            (
                TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "http://",
            ),
            (TlsError::HandshakeNotComplete, "failed"),
        ] {
            let text = tls_refusal("store.example", &error);
            assert!(
                text.contains("TLS") && text.contains("store.example"),
                "{text}"
            );
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("InvalidCertificate"), "{text}");
        }
    }

    #[test]
    fn nested_tls_error_is_found() {
        let tls = || TlsError::InvalidCertificate(Bad::UnknownIssuer);
        assert_eq!(tls_cause(&tls()), Some(&tls()));
        let wrapped = io::Error::other(tls());
        assert_eq!(tls_cause(&wrapped), Some(&tls()));
        let deeper = io::Error::other(io::Error::other(tls()));
        assert_eq!(tls_cause(&deeper), Some(&tls()));
        assert_eq!(tls_cause(&io::Error::other("none")), None);
    }
}
