//! The socket that the command finds in its `NOTIFY_SOCKET`: in a directory that only we can enter.
//! Where several commands run at the same time, each has one of its own, so that we know which it was.
//!
//! Made by the service manager's task after the guardians were forked, so that no guardian has it. What the command
//! says is data: a message that is not understood is passed over.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use super::socket::Surroundings;

/// How the directories begin.
const PREFIX: &str = "trafficcop-notify.";
/// What the socket in them is called; further ones have a number after it.
const NAME: &str = "notify";
/// The longest message of a command's; what is longer is cut off by the kernel.
pub(super) const MESSAGE: usize = 8192;

/// How many messages are taken from a socket at once.
const QUEUE: usize = 1024;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Proxy {
    directory: PathBuf,
    /// One for each command that can run at the same time.
    sockets: Vec<UnixDatagram>,
}

impl Proxy {
    /// Makes one in the first directory that will do: what the service manager keeps for us goes
    /// before what is everybody's.
    pub(super) fn make(here: &Surroundings<'_>, commands: usize) -> io::Result<Proxy> {
        let own = here.get("RUNTIME_DIRECTORY").map(|list| {
            let list = list.to_string_lossy().into_owned();
            OsString::from(list.split(':').next().unwrap_or_default())
        });
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
        let name = format!("{PREFIX}{}.{:08x}", std::process::id(), fastrand::u32(..));
        let directory = place.join(name);
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
        sweep(place);
        Ok(proxy)
    }

    /// Where the command with this number finds its own.
    pub(super) fn path(&self, number: usize) -> PathBuf {
        self.directory.join(match number {
            0 => NAME.to_owned(),
            _ => format!("{NAME}.{number}"),
        })
    }

    /// The sockets, for those who wait for them.
    pub(super) fn sockets(&self) -> io::Result<Vec<UnixDatagram>> {
        self.sockets.iter().map(UnixDatagram::try_clone).collect()
    }

    /// What the command with this number has said and nobody has received yet. Never more than a socket
    /// can have in it: who goes on talking is not listened to for ever.
    pub(super) fn unheard(&self, number: usize) -> Vec<Vec<u8>> {
        let Some(socket) = self.sockets.get(number) else {
            return Vec::new();
        };
        let mut buffer = vec![0; MESSAGE];
        let messages = std::iter::from_fn(|| {
            let length = socket.recv(&mut buffer).ok()?;
            Some(buffer[..length].to_vec())
        });
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

/// Removes what instances that were killed have left: sockets that nobody has open.
fn sweep(place: &Path) {
    let ours = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == ours);
        let is_dead = || {
            let probe = UnixDatagram::unbound()?;
            probe.connect(entry.path().join(NAME))
        };
        if is_ours && is_dead().is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused) {
            remove(&entry.path());
        }
    }
}

/// What a message of the command's says that is passed on, or counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// It is ready.
    pub(super) ready: bool,
    /// What it does.
    pub(super) status: Option<String>,
}

impl Said {
    /// Reads a message. `MAINPID`, `WATCHDOG`, `FDSTORE` and the rest are between us and the service
    /// manager; descriptors that come along are not taken, and so closed by the kernel (which is
    /// the answer that `BARRIER` waits for).
    pub(super) fn read(message: &[u8]) -> Said {
        let mut said = Said::default();
        for line in String::from_utf8_lossy(message).lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => said.ready = true,
                Some(("STATUS", status)) => said.status = Some(status.to_owned()),
                _ => {}
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_and_status_are_read_and_the_rest_is_dropped() {
        let said = Said::read(b"STATUS=half done\nMAINPID=1\nWATCHDOG=1\nREADY=1\nFDSTORE=1\n");
        let status = Some("half done".to_owned());
        assert_eq!(
            said,
            Said {
                ready: true,
                status
            }
        );
        for message in [&b"READY=0"[..], b"", b"\xff\xfe", b"READY", b"STOPPING=1"] {
            assert_eq!(Said::read(message), Said::default());
        }
    }

    #[test]
    fn nobody_else_can_enter_and_what_the_dead_left_is_swept() {
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
    fn each_command_is_heard_on_its_own() {
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
