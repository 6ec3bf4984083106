//! The sockets: the service manager's, and those that the commands get in its place.
//!
//! Made after the guardians were forked, so that no guardian has them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::core::WatchdogWord;
use crate::util::ours_in;

pub(crate) const VARIABLE: &str = "NOTIFY_SOCKET";
/// Variables for this process only. The command gets another socket; other child processes get none.
pub(crate) const PRIVATE: [&str; 3] = [VARIABLE, "WATCHDOG_USEC", "WATCHDOG_PID"];

pub(crate) struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub pid: u32,
}

impl<'a> Surroundings<'a> {
    #[must_use]
    pub(crate) fn ours(variable: &'a dyn Fn(&str) -> Option<OsString>) -> Surroundings<'a> {
        Surroundings {
            variable,
            pid: std::process::id(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn socket(&self) -> Option<OsString> {
        self.get(VARIABLE)
    }

    pub(super) fn watchdog(&self) -> Option<Duration> {
        let span = self.get("WATCHDOG_USEC")?;
        let ours = self.get("WATCHDOG_PID");
        let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
        // Feeding another process's watchdog would hide that this process hangs.
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

#[derive(Debug)]
pub(super) struct Socket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Socket {
    pub(super) fn open(name: &OsStr) -> io::Result<Socket> {
        let bytes = name.as_bytes();
        // As in sd_notify(3). A relative path would depend on the working directory.
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
        // A service manager that is stopped in a debugger must not stop this process.
        socket.set_nonblocking(true)?;
        Ok(Socket { socket, address })
    }

    /// Returns [`io::ErrorKind::WouldBlock`] if there is no room now.
    pub(super) fn send(&self, message: &str) -> io::Result<()> {
        let sent = self.socket.send_to_addr(message.as_bytes(), &self.address);
        sent.map(drop).map_err(|why| {
            // The kernel's memory is full, which is temporary like a full queue (EAGAIN).
            if why.raw_os_error() == Some(libc::ENOBUFS) {
                return io::ErrorKind::WouldBlock.into();
            }
            why
        })
    }
}

const PREFIX: &str = "trafficcop-notify.";
/// Name of the first socket; further ones have a number after it.
const NAME: &str = "notify";
/// Longest message of a command; the kernel cuts longer ones.
pub(super) const MESSAGE: usize = 8192;

const QUEUE: usize = 1024;

/// The sockets of the commands' `NOTIFY_SOCKET`, in a private directory.
///
/// Each concurrent command has its own, which identifies the sender. A message that is not understood is ignored.
#[derive(Debug)]
pub(super) struct Proxy {
    directory: PathBuf,
    sockets: Vec<UnixDatagram>,
}

impl Proxy {
    /// Tries the service manager's private directory before shared ones.
    pub(super) fn make(here: &Surroundings<'_>, commands: usize) -> io::Result<Proxy> {
        let own = here
            .get("RUNTIME_DIRECTORY")
            .and_then(|all| Some(OsString::from(std::env::split_paths(&all).next()?)));
        let places = [
            own,
            here.get("XDG_RUNTIME_DIR"),
            Some("/run".into()),
            here.get("TMPDIR"),
            Some("/tmp".into()),
        ];
        let mut why = io::Error::other("no directory for it");
        for place in places.into_iter().flatten().map(PathBuf::from) {
            match Proxy::make_in(&place, commands) {
                Ok(proxy) => return Ok(proxy),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn make_in(place: &Path, commands: usize) -> io::Result<Proxy> {
        if !place.is_absolute() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // An unpredictable name in a new directory: /tmp is shared.
        let name = format!("{PREFIX}{}.{:08x}", std::process::id(), fastrand::u32(..));
        let directory = place.join(name);
        // Access to the socket allows a READY=1 for this instance.
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let mut proxy = Proxy {
            directory,
            sockets: Vec::new(),
        };
        for number in 0..commands {
            let socket = UnixDatagram::bind(proxy.path(number))?;
            socket.set_nonblocking(true)?;
            proxy.sockets.push(socket);
        }
        // No other program removes the directory that a SIGKILL leaves behind.
        sweep(place);
        Ok(proxy)
    }

    pub(super) fn path(&self, number: usize) -> PathBuf {
        self.directory.join(match number {
            0 => NAME.to_owned(),
            _ => format!("{NAME}.{number}"),
        })
    }

    pub(super) fn sockets(&self) -> io::Result<Vec<UnixDatagram>> {
        self.sockets.iter().map(UnixDatagram::try_clone).collect()
    }

    pub(super) fn unheard(&self, number: usize) -> Vec<Vec<u8>> {
        let Some(socket) = self.sockets.get(number) else {
            return Vec::new();
        };
        let mut buffer = vec![0; MESSAGE];
        let messages = std::iter::from_fn(|| {
            let length = socket.recv(&mut buffer).ok()?;
            Some(buffer[..length].to_vec())
        });
        // A command that keeps sending must not delay the release.
        messages.take(QUEUE).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Removes the directories of killed instances, whose sockets no process has open.
fn sweep(place: &Path) {
    for directory in ours_in(place, PREFIX, Metadata::is_dir) {
        let connected =
            UnixDatagram::unbound().and_then(|probe| probe.connect(directory.join(NAME)));
        if connected.is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused) {
            remove(&directory);
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notification {
    pub(super) ready: bool,
    pub(super) stopping: bool,
    pub(super) status: Option<String>,
    pub(super) watchdog: Vec<WatchdogWord>,
}

impl Notification {
    /// Ignores `MAINPID`, `FDSTORE` and the like. Descriptors are not received, so the kernel closes them: the answer
    /// that `BARRIER` waits for.
    pub(super) fn read(message: &[u8]) -> Notification {
        let mut said = Notification::default();
        for line in String::from_utf8_lossy(message).lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => {
                    said.ready = true;
                    said.watchdog.push(WatchdogWord::Alive);
                }
                Some(("STOPPING", "1")) => said.stopping = true,
                Some(("STATUS", status)) => said.status = Some(status.to_owned()),
                Some(("WATCHDOG", "1")) => said.watchdog.push(WatchdogWord::Alive),
                Some(("WATCHDOG", "trigger")) => said.watchdog.push(WatchdogWord::Trigger),
                Some(("WATCHDOG_USEC", micros)) => {
                    said.watchdog.extend(micros.parse().ok().map(period));
                }
                Some(("EXTEND_TIMEOUT_USEC", micros)) => {
                    let more = micros.parse().ok().map(Duration::from_micros);
                    said.watchdog.extend(more.map(WatchdogWord::Extend));
                }
                _ => {}
            }
        }
        said
    }
}

/// Converts microseconds; the largest number means no end, as in systemd.
fn period(micros: u64) -> WatchdogWord {
    WatchdogWord::Period(match micros {
        u64::MAX => Duration::MAX,
        micros => Duration::from_micros(micros),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn surroundings<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.into())
        }
    }

    #[test]
    fn watchdog_is_fed_unless_it_names_another_process() {
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
    fn paths_and_abstract_names_are_reached_and_a_full_socket_does_not_block() {
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
            let full = (0..1_000_000)
                .find_map(|_| way.send("STATUS=x").err())
                .unwrap();
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            drop(socket);
            assert!(way.send("READY=1").is_err());
        }
        assert!(Socket::open(OsStr::new("vsock:2:1")).is_err());
    }

    #[test]
    fn ready_and_status_are_read_and_the_rest_is_dropped() {
        let said =
            Notification::read(b"STATUS=half done\nMAINPID=1\nWATCHDOG=1\nREADY=1\nFDSTORE=1\n");
        let status = Some("half done".to_owned());
        assert_eq!(
            said,
            Notification {
                ready: true,
                stopping: false,
                status,
                watchdog: vec![WatchdogWord::Alive, WatchdogWord::Alive],
            }
        );
        let words = |message: &[u8]| Notification::read(message).watchdog;
        let period = |span| [WatchdogWord::Period(span)];
        assert_eq!(words(b"WATCHDOG=trigger"), [WatchdogWord::Trigger]);
        let more = WatchdogWord::Extend(Duration::from_secs(3));
        assert_eq!(words(b"EXTEND_TIMEOUT_USEC=3000000"), [more]);
        assert_eq!(
            words(b"WATCHDOG_USEC=2500000"),
            period(Duration::from_millis(2500))
        );
        assert_eq!(words(b"WATCHDOG_USEC=0"), period(Duration::ZERO));
        assert_eq!(
            words(b"WATCHDOG_USEC=18446744073709551615"),
            period(Duration::MAX)
        );
        assert!(Notification::read(b"STOPPING=1").stopping);
        for message in [
            &b"READY=0"[..],
            b"",
            b"\xff\xfe",
            b"READY",
            b"STOPPING=0",
            b"WATCHDOG=0",
            b"WATCHDOG_USEC=soon",
            b"EXTEND_TIMEOUT_USEC=-1",
        ] {
            assert_eq!(Notification::read(message), Notification::default());
        }
    }

    #[test]
    fn directory_is_private_and_leftovers_are_swept() {
        let place = tempfile::tempdir().unwrap();
        let living = Proxy::make_in(place.path(), 2).unwrap();
        assert_eq!(
            fs::metadata(&living.directory).unwrap().mode() & 0o777,
            0o700
        );
        let dead = place.path().join(format!("{PREFIX}1.2"));
        fs::create_dir(&dead).unwrap();
        for name in [NAME, "notify.1"] {
            drop(UnixDatagram::bind(dead.join(name)).unwrap());
        }
        let next = Proxy::make_in(place.path(), 1).unwrap();
        assert!(!dead.exists() && living.path(1).exists() && next.path(0).exists());
        drop((living, next));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn each_command_has_its_own_socket() {
        let place = tempfile::tempdir().unwrap();
        let proxy = Proxy::make_in(place.path(), 2).unwrap();
        let somebody = UnixDatagram::unbound().unwrap();
        for text in [b"a", b"b"] {
            somebody.send_to(text, proxy.path(1)).unwrap();
        }
        assert_eq!(proxy.unheard(0), [b""; 0]);
        assert_eq!(proxy.unheard(1), [b"a", b"b"]);
        assert_eq!(proxy.unheard(1), [b""; 0]);
        assert_eq!(proxy.unheard(2), [b""; 0], "there is none");
    }
}
