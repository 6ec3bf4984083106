//! Opens the socket of `--listen` before anything else is started, so that an instance without one does not
//! compete.
//!
//! The socket is close-on-exec, so neither guardian nor command has it. A socket on which another process answers
//! is never taken away.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, listen, socket,
};

use crate::util::is_same_file;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The kernel replaces port 0.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("--listen {0}: it is in use: is another instance running here? Name another address")]
    InUse(Address),
    #[error("--listen {at}: {why}: {advice}")]
    System {
        at: Address,
        why: io::Error,
        advice: &'static str,
    },
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(super) socket: Socket,
    /// Address with the real port.
    pub(super) address: Address,
    pub(super) place: Option<BoundPath>,
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Listener, BindError> {
        let (socket, address, place) = match address {
            Address::Tcp(wanted) => {
                let socket = TcpListener::bind(wanted).map_err(|why| refusal(address, why))?;
                let real = socket.local_addr().unwrap_or(*wanted);
                (Socket::Tcp(socket), Address::Tcp(real), None)
            }
            Address::Unix(path) => {
                let socket = bind_path(path).map_err(|why| refusal(address, why))?;
                let place = BoundPath::of(path);
                (Socket::Unix(socket), address.clone(), place)
            }
        };
        let listener = Listener {
            socket,
            address,
            place,
        };
        listener
            .prepare()
            .map_err(|why| refusal(&listener.address, why))?;
        Ok(listener)
    }

    /// Sets the longest queue: a client that finds it full tries again a second later, or never.
    fn prepare(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(socket) => {
                listen(socket, Backlog::MAXCONN)?;
                socket.set_nonblocking(true)
            }
            Socket::Unix(socket) => {
                listen(socket, Backlog::MAXCONN)?;
                socket.set_nonblocking(true)
            }
        }
    }
}

fn refusal(address: &Address, why: io::Error) -> BindError {
    let at = address.clone();
    let advice = match (why.kind(), address) {
        // Most likely two instances on one machine have the same unit or crontab line.
        (io::ErrorKind::AddrInUse, _) => return BindError::InUse(at),
        (io::ErrorKind::PermissionDenied, Address::Tcp(_)) => {
            "ports below 1024 need root: take a greater one"
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            "this machine has no such address: take one that it has"
        }
        (io::ErrorKind::NotFound, Address::Unix(_)) => "create its directory first",
        _ => "name another address",
    };
    BindError::System { at, why, advice }
}

/// Binds the path, replacing a socket whose owner was killed.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    let in_the_way = match UnixListener::bind(path) {
        Err(why) if why.kind() == io::ErrorKind::AddrInUse => why,
        bound => return bound,
    };
    // Note the file before the test: only a socket that was found deserted is removed.
    let Some(found) = BoundPath::of(path) else {
        return UnixListener::bind(path);
    };
    if !is_deserted(path) {
        return Err(in_the_way);
    }
    // If two instances replace it at the same time, the second bind rightly fails.
    found.remove();
    UnixListener::bind(path)
}

fn is_deserted(path: &Path) -> bool {
    // A blocking connect to a full queue could wait for ever; such a socket is in use.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let knocked = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .and_then(|knocking| connect(knocking.as_raw_fd(), &UnixAddr::new(path)?));
    knocked == Err(Errno::ECONNREFUSED)
}

#[derive(Debug)]
pub(super) struct BoundPath {
    path: PathBuf,
    file: Metadata,
}

impl BoundPath {
    fn of(path: &Path) -> Option<BoundPath> {
        Some(BoundPath {
            path: path.to_owned(),
            // By the name alone the next instance's socket would be removed.
            file: path.symlink_metadata().ok()?,
        })
    }

    pub(super) fn remove(&self) {
        let there = self.path.symlink_metadata();
        if there.is_ok_and(|there| is_same_file(&there, &self.file)) {
            // On a failure the next instance replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_the_kernel_chose_is_known_and_in_use() {
        let any = Address::Tcp(([127, 0, 0, 1], 0).into());
        let first = Listener::bind(&any).expect("a port");
        let Address::Tcp(real) = &first.address else {
            panic!("not TCP");
        };
        assert_ne!(real.port(), 0);
        let refused = Listener::bind(&first.address).expect_err("in use");
        let line = refused.to_string();
        assert!(line.contains("in use") && line.contains(&real.to_string()));
    }

    #[test]
    fn deserted_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).expect("a socket");
        assert!(matches!(Listener::bind(&address), Err(BindError::InUse(_))));
        drop(first);
        assert!(path.exists(), "as if its owner had been killed");
        let second = Listener::bind(&address).expect("replaced");
        second.place.as_ref().expect("a path").remove();
        assert!(!path.exists());
    }

    #[test]
    fn socket_with_a_full_queue_is_in_use_and_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let stranger = UnixListener::bind(&path).expect("a socket");
        listen(&stranger, Backlog::new(0).expect("a backlog")).expect("listens");
        let mut clients = Vec::new();
        loop {
            let flags = SockFlag::SOCK_NONBLOCK;
            let client =
                socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
            let address = UnixAddr::new(&path).expect("an address");
            if connect(client.as_raw_fd(), &address) == Err(Errno::EAGAIN) {
                break;
            }
            clients.push(client);
        }
        let (told, received) = std::sync::mpsc::channel();
        let address = Address::Unix(path.clone());
        std::thread::spawn(move || told.send(Listener::bind(&address).map(drop)));
        let bound = received.recv_timeout(std::time::Duration::from_secs(20));
        assert!(matches!(bound, Ok(Err(BindError::InUse(_)))), "{bound:?}");
        assert!(path.exists());
    }

    #[test]
    fn file_that_replaced_the_socket_is_not_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let first = Listener::bind(&Address::Unix(path.clone())).expect("a socket");
        // Renamed first, so that the file system does not reuse the inode number.
        std::fs::rename(&path, directory.path().join("elsewhere")).expect("renamed");
        std::fs::write(&path, "another's").expect("written");
        first.place.as_ref().expect("a path").remove();
        assert!(path.exists());
    }

    #[test]
    fn failed_bind_names_the_remedy() {
        let nowhere = Address::Unix("/nowhere/at/all/socket".into());
        let line = Listener::bind(&nowhere)
            .expect_err("no directory")
            .to_string();
        assert!(line.contains("create its directory first"), "{line}");
        let foreign = Address::Tcp(([192, 0, 2, 1], 0).into());
        let line = Listener::bind(&foreign).expect_err("not ours").to_string();
        assert!(line.contains("no such address"), "{line}");
    }
}
