//! The service manager's socket, and what else it has put into our environment.
//!
//! Used by the service manager's task. A message is sent at once, or not at all.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// Where the service manager listens.
pub const VARIABLE: &str = "NOTIFY_SOCKET";
/// What is between the service manager and us: the command gets a socket of ours instead, and
/// everything else that we run gets none of it.
pub const PRIVATE: [&str; 3] = [VARIABLE, "WATCHDOG_USEC", "WATCHDOG_PID"];

/// What we were started with.
pub struct Surroundings<'a> {
    /// A variable of our environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Our process id.
    pub pid: u32,
}

impl<'a> Surroundings<'a> {
    /// Those of this process, with its environment.
    #[must_use]
    pub fn ours(variable: &'a dyn Fn(&str) -> Option<OsString>) -> Surroundings<'a> {
        Surroundings {
            variable,
            pid: std::process::id(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Where the service manager listens, if there is one that does.
    pub(super) fn socket(&self) -> Option<OsString> {
        self.get(VARIABLE)
    }

    /// How often the service manager wants a sign of life at the least.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        let span = self.get("WATCHDOG_USEC")?;
        let ours = self.get("WATCHDOG_PID");
        let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
        if ours.is_some_and(|pid| number(&pid) != Some(u64::from(self.pid))) {
            return None;
        }
        let span = number(&span).filter(|micros| *micros > 0);
        if span.is_none() {
            tracing::warn!("WATCHDOG_USEC is no number of microseconds: no watchdog is fed");
        }
        span.map(Duration::from_micros)
    }
}

/// The way to the service manager.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Socket {
    /// A way to the socket of this name: a path, or an abstract name after '@'.
    pub(super) fn open(name: &OsStr) -> io::Result<Socket> {
        let bytes = name.as_bytes();
        let address = match bytes.first() {
            Some(b'@') => SocketAddr::from_abstract_name(&bytes[1..])?,
            Some(b'/') => SocketAddr::from_pathname(Path::new(name))?,
            _ => {
                return Err(io::Error::other(
                    "it is neither a path nor an abstract name",
                ));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Socket { socket, address })
    }

    /// Sends a message; [`io::ErrorKind::WouldBlock`] if there is no room for it now.
    pub(super) fn send(&self, message: &str) -> io::Result<()> {
        let sent = self.socket.send_to_addr(message.as_bytes(), &self.address);
        sent.map(drop).map_err(|why| {
            if why.raw_os_error() == Some(libc::ENOBUFS) {
                return io::ErrorKind::WouldBlock.into();
            }
            why
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.into())
        }
    }

    #[test]
    fn a_watchdog_is_ours_if_it_names_us_or_nobody() {
        let watchdog = |pairs: &[(&str, &str)]| {
            let variable = surroundings(pairs);
            Surroundings {
                variable: &variable,
                pid: 7,
            }
            .watchdog()
        };
        let span = Some(Duration::from_secs(2));
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "2000000")]), span);
        let named = |pid| watchdog(&[("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", pid)]);
        assert_eq!(named("7"), span);
        assert_eq!(named("8"), None);
        assert_eq!(watchdog(&[]), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "soon")]), None);
    }

    #[test]
    fn paths_and_abstract_names_are_reached_and_a_full_one_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("trafficcop-test-{}", std::process::id());
        let there = UnixDatagram::bind(&path).unwrap();
        let hidden = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&hidden).unwrap();
        for (name, socket) in [
            (path.into_os_string(), there),
            (format!("@{name}").into(), hidden),
        ] {
            let way = Socket::open(&name).unwrap();
            way.send("READY=1").unwrap();
            let mut bytes = [0; 16];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"READY=1");
            // Nobody reads: some day there is no room.
            let full = (0..1_000_000)
                .find_map(|_| way.send("STATUS=x").err())
                .unwrap();
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            drop(socket);
            assert!(way.send("READY=1").is_err());
        }
        assert!(Socket::open(OsStr::new("vsock:2:1")).is_err());
    }
}
