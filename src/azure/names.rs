//! Names of hosts, looked up on threads of our own: one for each name, made with its first look-up
//! and kept. The system's resolver blocks, and the runtime's own pool for what blocks makes a thread
//! whenever it needs one, and panics where it gets none: at the renewal that needed it.
//!
//! Asked by the transport, and by what speaks AMQP. A name whose look-up hangs holds up nobody but
//! itself. Where no thread is to be had, that is an error as any other of a look-up: doubt, and never
//! the end of the supervisor.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::oneshot;

type Found = io::Result<Vec<SocketAddr>>;

/// Who waits for an answer.
type Asker = oneshot::Sender<Found>;

/// The threads that were made, by the name that each looks up.
static THREADS: Mutex<BTreeMap<String, mpsc::Sender<Asker>>> = Mutex::new(BTreeMap::new());

/// The system's resolver: much of it is other people's code, with buffers on the stack.
const STACK: usize = 1024 * 1024;

/// For the transport.
pub(super) struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = addresses(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The addresses of a host, by its name or its address, with this port.
///
/// # Errors
/// Why there are none.
pub(crate) async fn addresses(host: &str, port: u16) -> Found {
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
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = threads.get(host) {
        // It lives as long as we do.
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
        let why = format!("{host} cannot be looked up: no thread can be started: {why}");
        io::Error::new(io::ErrorKind::WouldBlock, why)
    })?;
    // It has just begun to listen.
    let _ = thread.send(asker);
    threads.insert(host.to_owned(), thread);
    Ok(answer)
}

/// The thread's life.
fn serve(name: &str, asked: &mpsc::Receiver<Asker>) {
    while let Ok(first) = asked.recv() {
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
    Ok((name, 0).to_socket_addrs()?.collect())
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

    #[tokio::test]
    async fn who_cannot_be_found_is_an_error() {
        let why = addresses("no-such-host.invalid", 80).await;
        assert!(why.is_err(), "{why:?}");
    }
}
