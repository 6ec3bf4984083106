//! The server that is to be reached: where its name leads, and why there is no TLS with it, in words.
//! Asked by the transport, and by what speaks AMQP.
//!
//! Names are looked up on threads of our own: one for each name, made with its first look-up and
//! kept. A name whose look-up hangs holds up nobody but itself. Where no thread is to be had, that is
//! an error as any other of a look-up: doubt, and never the end of the supervisor.

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

// By the name that each looks up. The system's resolver blocks, and the runtime's own pool for what
// blocks makes a thread whenever it needs one, and panics where it gets none: at the renewal that
// needed it. A thread that is there already is there at every renewal.
static THREADS: Mutex<BTreeMap<String, mpsc::Sender<Asker>>> = Mutex::new(BTreeMap::new());

// The system's resolver loads modules of the machine's (nss), which keep buffers on the stack.
const STACK: usize = 1024 * 1024;

// The pause before the next address is tried at the same time (RFC 8305, section 8).
const STAGGER: Duration = Duration::from_millis(250);

// From the first attempt to connect to the last moment at which one may succeed. The kernel sends a lost
// packet again after a second; a connection that takes longer leaves a renewal no time for another one.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_millis(2500);

/// Resolver of the HTTP library. Of several addresses of the server it returns first the one that answers first,
/// because the library gives each of them in turn an equal part of its time limit.
#[derive(Clone, Default)]
pub(super) struct Names {
    // Host and port of the present request, and its addresses. The library resolves proxies by the same way.
    server: Arc<Mutex<(String, u16, Vec<SocketAddr>)>>,
}

impl Names {
    /// Names the server of the next request.
    pub(super) fn expect(&self, url: &Url) {
        let mut server = lock(&self.server);
        let (host, port) = (url.host_str(), url.port_or_known_default());
        (server.0, server.1) = (host.unwrap_or_default().to_owned(), port.unwrap_or(0));
        server.2.clear();
    }

    /// Returns the addresses of the present request's server, if it has several.
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

/// Connects to one of these addresses: to each of them, with a pause in between, until one answers (RFC 8305).
///
/// # Errors
/// Each address with what became of it, if none answers within [`CONNECT_LIMIT`].
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
        Some((_, why)) => format!("{address}: {}", without_number(why)),
        None => format!(
            "{address}: no answer within {} s",
            CONNECT_LIMIT.as_secs_f32()
        ),
    };
    let outcomes: Vec<String> = addresses.iter().map(outcome).collect();
    let kind = failed.first().map(|(_, why)| why.kind());
    io::Error::new(kind.unwrap_or(io::ErrorKind::TimedOut), outcomes.join("; "))
}

fn without_number(why: &io::Error) -> String {
    let text = why.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The addresses of a host, by its name or its address, with this port.
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

/// Has the thread of this name look it up.
fn ask(host: &str) -> io::Result<oneshot::Receiver<Found>> {
    let (asker, answer) = oneshot::channel();
    let mut threads = lock(&THREADS);
    if let Some(thread) = threads.get(host) {
        // It lives as long as we do.
        let _ = thread.send(asker);
        return Ok(answer);
    }
    // Kept only once it runs: where no thread is to be had now, the next look-up tries again.
    let (thread, asked) = mpsc::channel();
    let name = host.to_owned();
    let started = std::thread::Builder::new()
        .name("names".into())
        .stack_size(STACK)
        .spawn(move || serve(&name, &asked));
    started.map_err(|why| {
        // Of this kind, because it passes: a request that was not sent is tried again.
        let why = format!("{host} cannot be looked up: no thread can be started: {why}");
        io::Error::new(io::ErrorKind::WouldBlock, why)
    })?;
    // It has just begun to listen.
    let _ = thread.send(asker);
    threads.insert(host.to_owned(), thread);
    Ok(answer)
}

fn serve(name: &str, asked: &mpsc::Receiver<Asker>) {
    while let Ok(first) = asked.recv() {
        // All who asked meanwhile get one answer: after a resolver that hung for a minute there would
        // be a look-up for each attempt of that minute before the present one had its turn.
        let mut askers: Vec<Asker> = std::iter::once(first).chain(asked.try_iter()).collect();
        // Whoever waited through a look-up that hung may have gone.
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
            // Whoever asked may have gone.
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

/// The TLS error among the causes of this one.
pub(super) fn tls_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // An error of I/O hides what it is made of: its source is that one's.
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// In words, with what to do; `server` is its name, and its port where that is known.
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
        // The second, where another authority has the name of one that is trusted.
        Bad::UnknownIssuer | Bad::BadSignature => format!(
            "TLS: the issuer of {server}'s certificate is not trusted on this machine: name the authority's certificate with --ca-file"
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

/// What went wrong, if it is TLS: for who has words of his own.
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

/// The verifier's own error, of a crate that we do not name.
fn is_authority(bad: &Bad) -> bool {
    format!("{bad:?}").contains("CaUsedAsEndEntity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_up_by_one_thread_however_often() {
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
    async fn an_address_needs_no_look_up_and_no_thread() {
        let found = addresses("192.0.2.7", 5671).await.expect("an address");
        assert_eq!(found, [SocketAddr::from(([192, 0, 2, 7], 5671))]);
        let found = addresses("::1", 80).await.expect("an address");
        assert_eq!(found.len(), 1);
        assert!(!THREADS.lock().unwrap().contains_key("::1"));
    }

    /// An address whose kernel answers no request to connect, because the listener's queue is full.
    fn silent() -> (std::net::TcpStream, std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let backlog = nix::sys::socket::Backlog::new(0).unwrap();
        nix::sys::socket::listen(&listener, backlog).unwrap();
        let address = listener.local_addr().unwrap();
        let queued = std::net::TcpStream::connect(address).unwrap();
        (queued, listener, address)
    }

    #[tokio::test]
    async fn a_silent_first_address_costs_a_quarter_of_a_second_and_is_named_in_the_error() {
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
        // `localhost` may have one address or two: what is checked is the order, not the number.
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
    async fn who_cannot_be_found_is_an_error() {
        let why = addresses("no-such-host.invalid", 80).await;
        let why = why.expect_err("nobody").to_string();
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
    fn it_is_found_however_deep() {
        let tls = || TlsError::InvalidCertificate(Bad::UnknownIssuer);
        assert_eq!(tls_cause(&tls()), Some(&tls()));
        let wrapped = io::Error::other(tls());
        assert_eq!(tls_cause(&wrapped), Some(&tls()));
        let deeper = io::Error::other(io::Error::other(tls()));
        assert_eq!(tls_cause(&deeper), Some(&tls()));
        assert_eq!(tls_cause(&io::Error::other("none")), None);
    }
}
