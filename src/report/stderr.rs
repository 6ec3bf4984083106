//! A stderr that never waits. Called by `report` alone, for each line of the log.
//!
//! Whoever reads our stderr may have stopped to: a full pipe, a terminal held by Ctrl-S. A
//! supervisor that blocks there does not renew. `O_NONBLOCK` cannot simply be set, because the
//! description is shared with the command and with whoever started us. So a pipe or a terminal is
//! opened once more, which gives us a description of our own; a socket is sent to with
//! `MSG_DONTWAIT`; everything else (files do not block) is asked with `poll` first. A line that
//! does not fit is dropped, and the next one that does says how many there were.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{isatty, write};

/// Where lines go, and what is still owed to the reader.
pub(super) struct Sink<F> {
    fd: F,
    way: Way,
    /// Lines that were dropped since the last one that went through.
    dropped: AtomicU64,
    /// The last line went through in part: what follows must begin on a new one.
    torn: AtomicBool,
}

/// How a descriptor is written to without waiting.
pub(super) enum Way {
    /// A description of our own with `O_NONBLOCK`.
    Own(OwnedFd),
    /// A socket.
    Socket,
    /// Anything else.
    AskFirst,
}

impl Way {
    /// Writes as much as goes in without waiting, from the beginning of `text`.
    pub(super) fn write(&self, fd: BorrowedFd<'_>, text: &[u8]) -> Result<usize, Errno> {
        match self {
            Way::Own(own) => write(own, text),
            Way::Socket => send(
                std::os::fd::AsRawFd::as_raw_fd(&fd),
                text,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            ),
            Way::AskFirst => {
                // Another process may fill it between the two calls. A file never is full in this
                // sense, and a pipe or terminal comes here only where it could not be opened anew.
                let mut asked = [PollFd::new(fd, PollFlags::POLLOUT)];
                match poll(&mut asked, PollTimeout::ZERO) {
                    Ok(1..) => write(fd, text),
                    _ => Err(Errno::EAGAIN),
                }
            }
        }
    }
}

impl<F: AsFd> Sink<F> {
    pub(super) fn new(fd: F) -> Sink<F> {
        let way = way(fd.as_fd());
        Sink {
            fd,
            way,
            dropped: AtomicU64::new(0),
            torn: AtomicBool::new(false),
        }
    }

    /// Writes a line, or drops it; never waits.
    pub(super) fn put(&self, line: &[u8]) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        // In one write: two processes may share this pipe, and their lines must not mix.
        let mut text = Vec::new();
        if self.torn.load(Ordering::Relaxed) {
            text.push(b'\n');
        }
        if dropped > 0 {
            // Not in the log's format on purpose: it is not an event of ours.
            let note = format!(
                "trafficcop: warning: {dropped} lines of this log were dropped, nobody read them\n"
            );
            text.extend(note.bytes());
        }
        text.extend(line);
        match self.write(&text) {
            Ok(written) => {
                self.torn.store(written < text.len(), Ordering::Relaxed);
                // Subtracted, not set: another thread may have dropped one meanwhile.
                self.dropped.fetch_sub(dropped, Ordering::Relaxed);
            }
            Err(_) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn write(&self, text: &[u8]) -> Result<usize, Errno> {
        self.way.write(self.fd.as_fd(), text)
    }
}

/// The way for this descriptor.
pub(super) fn way(fd: BorrowedFd<'_>) -> Way {
    let Ok(kind) = fstat(fd).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT)
    else {
        return Way::AskFirst;
    };
    if kind == SFlag::S_IFSOCK {
        return Way::Socket;
    }
    // By /proc: the same pipe, but a description of its own, so that O_NONBLOCK is nobody else's.
    if kind == SFlag::S_IFIFO || isatty(fd).unwrap_or(false) {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // It can be refused: another user's terminal after `su`, no /proc.
        if let Ok(own) = open(path.as_str(), flags, Mode::empty()) {
            return Way::Own(own);
        }
    }
    Way::AskFirst
}

static SINK: OnceLock<Sink<io::Stderr>> = OnceLock::new();

/// The writer of one line.
pub(super) struct Stderr;

fn sink() -> &'static Sink<io::Stderr> {
    SINK.get_or_init(|| Sink::new(io::stderr()))
}

impl Stderr {
    /// Puts something on a terminal that is no line of the log, and says whether it took it.
    pub(super) fn draw(bytes: &[u8]) -> bool {
        sink().write(bytes).is_ok()
    }
}

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        super::status_line::above(|erase| {
            if erase.is_empty() {
                sink().put(line);
            } else {
                sink().put(&[erase, line].concat());
            }
        });
        // A line that was dropped was written as far as `tracing` goes: else it would try again.
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says why we end where nothing of ours can be relied on any more: by the system call, because
/// whoever logs takes locks, and not for longer than a moment, because nobody need read it.
pub fn last_words(text: &str) {
    const LIMIT: u8 = 100;
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::from(LIMIT)) == Ok(1) {
        let line = format!("trafficcop: error: {text}\n");
        // Nobody can be told that nobody can be told.
        let _ = nix::unistd::write(stderr.as_fd(), line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{pipe, read};
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    fn filled(sink: &Sink<impl AsFd>) -> u64 {
        for _ in 0..100_000 {
            sink.put(&[b'x'; 100]);
            let dropped = sink.dropped.load(Ordering::Relaxed);
            if dropped > 2 {
                return dropped;
            }
        }
        panic!("it never filled");
    }

    #[test]
    fn a_full_pipe_costs_the_line_and_not_the_time() {
        let (reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        assert!(matches!(sink.way, Way::Own(_)));
        let dropped = filled(&sink);
        let mut there = vec![0; 1 << 20];
        assert!(read(&reader, &mut there).unwrap() > 0);
        sink.put(b"again\n");
        let length = read(&reader, &mut there).unwrap();
        let text = String::from_utf8_lossy(&there[..length]).into_owned();
        assert!(text.contains(&format!("{dropped} lines")), "{text}");
        assert!(text.ends_with("again\n"), "{text}");
        sink.put(b"more\n");
        let length = read(&reader, &mut there).unwrap();
        assert_eq!(&there[..length], b"more\n");
    }

    #[test]
    fn the_shared_description_stays_as_it_was() {
        use nix::fcntl::{FcntlArg, fcntl};
        let (_reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        sink.put(b"a\n");
        let flags = OFlag::from_bits_truncate(fcntl(&sink.fd, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK));
    }

    #[test]
    fn a_full_socket_costs_the_line_too_and_tears_none() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let sink = Sink::new(writer);
        assert!(matches!(sink.way, Way::Socket));
        filled(&sink);
        reader.set_nonblocking(true).unwrap();
        let mut sunk = Vec::new();
        let _ = reader.read_to_end(&mut sunk);
        sink.put(b"again\n");
        let mut text = Vec::new();
        let _ = reader.read_to_end(&mut text);
        assert!(
            text.ends_with(b"\nagain\n"),
            "{}",
            String::from_utf8_lossy(&text)
        );
    }

    #[test]
    fn a_reader_that_went_away_harms_nobody() {
        let (reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        drop(reader);
        sink.put(b"a\n");
        sink.put(b"b\n");
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 2);
        // A named pipe cannot be opened again without a reader: it is asked first, and refuses.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let reader = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        drop(reader);
        let sink = Sink::new(writer);
        assert!(matches!(sink.way, Way::AskFirst));
        sink.put(b"a\n");
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_file_is_appended_to_where_its_description_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, b"before\n").unwrap();
        Sink::new(file).put(b"after\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"before\nafter\n");
    }
}
