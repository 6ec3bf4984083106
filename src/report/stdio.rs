//! Writes to stderr and stdout without ever blocking on a reader that has stopped reading.
//!
//! **Stderr**: a supervisor that blocks on a full pipe, or on a terminal held by Ctrl-S, does not renew. `O_NONBLOCK`
//! cannot be set: the command and the parent process share the description. So a pipe or a terminal is opened again,
//! a socket is written with `MSG_DONTWAIT`, and anything else after `poll`. A line that does not fit is dropped, and
//! the next one that fits reports the number.
//!
//! **Stdout**: `announce` uses [`LineWriter`] in its own loop, and the supervisor (`elect`) [`LineSender`] in a
//! thread. Only one of the two processes writes at a time. A line that was not begun can be retracted: it may be
//! untrue by now.
//!
//! Answers of commands and questions wait for their reader: never use them while this instance is in control.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{isatty, write};
use tokio::sync::oneshot;

use crate::exit::ExitAction;
use crate::util::lock;

pub(super) struct Sink<F> {
    fd: F,
    way: Way,
    dropped: AtomicU64,
    /// The next line must begin with a newline.
    torn: AtomicBool,
}

pub(super) enum Way {
    Own(OwnedFd),
    Socket,
    AskFirst,
}

impl Way {
    pub(super) fn write(&self, fd: BorrowedFd<'_>, text: &[u8]) -> Result<usize, Errno> {
        match self {
            Way::Own(own) => write(own, text),
            Way::Socket => send(
                std::os::fd::AsRawFd::as_raw_fd(&fd),
                text,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            ),
            Way::AskFirst => {
                // Another process may fill it in between, which matters only if it could not be opened again.
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

    pub(super) fn put(&self, line: &[u8]) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        // One write: lines of two processes on one pipe must not mix.
        let mut text = Vec::new();
        if self.torn.load(Ordering::Relaxed) {
            text.push(b'\n');
        }
        if dropped > 0 {
            let note = format!(
                "trafficcop: warning: {dropped} lines of this log were dropped because its reader was too slow\n"
            );
            text.extend(note.bytes());
        }
        text.extend(line);
        match self.write(&text) {
            Ok(written) => {
                self.torn.store(written < text.len(), Ordering::Relaxed);
                // Another thread may have dropped a line meanwhile.
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

pub(super) fn way(fd: BorrowedFd<'_>) -> Way {
    let Ok(kind) = fstat(fd).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT)
    else {
        return Way::AskFirst;
    };
    if kind == SFlag::S_IFSOCK {
        return Way::Socket;
    }
    // Through /proc: a separate description of the same pipe, so that O_NONBLOCK affects no other process.
    if kind == SFlag::S_IFIFO || isatty(fd).unwrap_or(false) {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // Fails for another user's terminal after `su`, and without /proc.
        if let Ok(own) = open(path.as_str(), flags, Mode::empty()) {
            return Way::Own(own);
        }
    }
    Way::AskFirst
}

static SINK: OnceLock<Sink<io::Stderr>> = OnceLock::new();

pub(super) struct Stderr;

fn sink() -> &'static Sink<io::Stderr> {
    SINK.get_or_init(|| Sink::new(io::stderr()))
}

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        sink().put(line);
        // For `tracing` a dropped line is written: otherwise it would try again.
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes why the process ends when its state cannot be trusted any more. Uses the system call, because the log takes
/// locks, and waits only briefly.
pub fn last_words(text: &str) {
    const LIMIT: u8 = 100;
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::from(LIMIT)) == Ok(1) {
        let line = format!("trafficcop: error: {text}\n");
        let _ = nix::unistd::write(stderr.as_fd(), line.as_bytes());
    }
}

/// Progress of waiting lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProgress {
    /// Every line is written.
    All,
    /// The reader takes no more for now.
    Waits,
    /// The reader is gone: EPIPE if it hung up.
    Never(Errno),
}

/// Writer of whole lines that never waits for its reader.
pub struct LineWriter<F> {
    fd: F,
    way: Way,
    rest: Vec<u8>,
    next: Option<String>,
}

impl LineWriter<io::Stdout> {
    /// Returns the writer of stdout.
    #[must_use]
    pub fn of_stdout() -> LineWriter<io::Stdout> {
        LineWriter::new(io::stdout())
    }
}

impl<F: AsFd> LineWriter<F> {
    fn new(fd: F) -> LineWriter<F> {
        let way = way(fd.as_fd());
        LineWriter {
            fd,
            way,
            rest: Vec::new(),
            next: None,
        }
    }

    /// Queues a line in place of one that was not begun.
    pub fn say(&mut self, line: String) {
        self.next = Some(line);
    }

    /// Retracts a line that was not begun; returns whether there was one.
    pub fn retract(&mut self) -> bool {
        self.next.take().is_some()
    }

    /// Returns whether a line waits to be begun.
    #[must_use]
    pub fn is_about_to_begin(&self) -> bool {
        self.next.is_some() && self.rest.is_empty()
    }

    /// Writes as much as the reader takes.
    pub fn push(&mut self) -> WriteProgress {
        loop {
            if self.rest.is_empty() {
                let Some(line) = self.next.take() else {
                    return WriteProgress::All;
                };
                // A pipe takes all of it or nothing: it is shorter than PIPE_BUF.
                match self.way.write(self.fd.as_fd(), line.as_bytes()) {
                    Ok(written) => self.rest = line.as_bytes()[written..].to_vec(),
                    Err(errno) => {
                        self.next = Some(line);
                        match waits(errno) {
                            Some(said) => return said,
                            None => continue,
                        }
                    }
                }
            } else {
                match self.way.write(self.fd.as_fd(), &self.rest) {
                    Ok(written) => drop(self.rest.drain(..written)),
                    Err(errno) => match waits(errno) {
                        Some(said) => return said,
                        None => continue,
                    },
                }
            }
        }
    }

    /// Waits until `other` is readable (true), waiting output can be written, or the reader hung up.
    pub fn wait(&self, waits: bool, other: BorrowedFd<'_>) -> Result<bool, Errno> {
        wait(self.fd.as_fd(), waits, other)
    }
}

fn waits(errno: Errno) -> Option<WriteProgress> {
    match errno {
        Errno::EINTR => None,
        Errno::EAGAIN => Some(WriteProgress::Waits),
        errno => Some(WriteProgress::Never(errno)),
    }
}

fn wait(fd: BorrowedFd<'_>, waits: bool, other: BorrowedFd<'_>) -> Result<bool, Errno> {
    // Only if output waits: a pipe with room would wake the loop without end.
    let interest = if waits {
        PollFlags::POLLOUT
    } else {
        // The kernel reports a reader that hung up without a request, too.
        PollFlags::empty()
    };
    let mut asked = [
        PollFd::new(fd, interest),
        PollFd::new(other, PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut asked, PollTimeout::NONE) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    // First: output after a hang-up reaches no reader.
    let hung_up = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    if asked[0]
        .revents()
        .is_some_and(|seen| seen.intersects(hung_up))
    {
        return Err(Errno::EPIPE);
    }
    Ok(asked[1].any().unwrap_or(true))
}

/// Writer to stdout with a thread, which notices a reader that hangs up even without output.
pub struct LineSender {
    shared: Arc<Shared>,
    wake: io::PipeWriter,
}

struct Shared {
    out: Mutex<LineWriter<io::Stdout>>,
    gone: Mutex<Option<Errno>>,
}

impl Shared {
    fn out(&self) -> MutexGuard<'_, LineWriter<io::Stdout>> {
        lock(&self.out)
    }
}

impl LineSender {
    /// Begins to watch stdout. The receiver gets a message when the reader is gone.
    ///
    /// # Errors
    /// If the pipe or the thread cannot be created.
    pub fn begin() -> io::Result<(LineSender, oneshot::Receiver<()>)> {
        // A pipe: `poll` waits for it and stdout at once.
        let (woken, wake) = io::pipe()?;
        let shared = Arc::new(Shared {
            out: Mutex::new(LineWriter::of_stdout()),
            gone: Mutex::new(None),
        });
        let (tell, gone) = oneshot::channel();
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("stdout".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                let errno = serve(&theirs, woken);
                *lock(&theirs.gone) = Some(errno);
                // Fails only if the process is already leaving.
                let _ = tell.send(());
            })?;
        Ok((LineSender { shared, wake }, gone))
    }

    /// Writes a line, now or when there is room, in place of one that waits.
    pub fn say(&mut self, line: String) {
        let mut out = self.shared.out();
        out.say(line);
        // Through the thread it would come late.
        let said = out.push();
        drop(out);
        if said != WriteProgress::All {
            let _ = self.wake.write(&[0]);
        }
    }

    /// Retracts a waiting line, because another process is about to write.
    pub fn yield_to_another(&mut self) {
        self.shared.out().retract();
    }

    /// Returns the error that ended the output, if one did.
    #[must_use]
    pub fn gone(&self) -> Option<Errno> {
        *lock(&self.shared.gone)
    }
}

fn serve(shared: &Shared, mut woken: io::PipeReader) -> Errno {
    let stdout = io::stdout();
    loop {
        let waits = match shared.out().push() {
            WriteProgress::All => false,
            WriteProgress::Waits => true,
            WriteProgress::Never(errno) => return errno,
        };
        match wait(stdout.as_fd(), waits, woken.as_fd()) {
            Ok(true) => {
                // An end of file means that the sender was dropped.
                if !matches!(woken.read(&mut [0; 64]), Ok(1..)) {
                    return Errno::ECANCELED;
                }
            }
            Ok(false) => {}
            Err(errno) => return errno,
        }
    }
}

/// Returns whether stderr is a terminal.
#[must_use]
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Writes whole lines of an answer. If the reader is gone, the exit is SIGPIPE, as with most programs.
///
/// # Errors
/// If the answer cannot be written for another reason.
pub(crate) fn answer(text: &str, leave: ExitAction) -> anyhow::Result<ExitAction> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(leave),
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitAction::Signal(libc::SIGPIPE))
        }
        Err(why) => Err(anyhow::Error::new(why).context("cannot write the answer to stdout")),
    }
}

/// Returns whether the reader of stdout, or the terminal, is gone.
#[must_use]
pub fn is_unread() -> bool {
    let out = io::stdout();
    let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    poll(&mut asked, PollTimeout::ZERO).is_ok()
        && asked[0]
            .revents()
            .is_some_and(|found| found.intersects(gone))
}

/// Asks a person at a terminal; `None` without a terminal. Anything but yes means no.
///
/// # Errors
/// If the question cannot be written, or the answer cannot be read.
pub fn ask(question: &str) -> io::Result<Option<bool>> {
    let mut to = io::stderr();
    if !to.is_terminal() || !io::stdin().is_terminal() {
        return Ok(None);
    }
    to.write_all(format!("{question} [y/N] ").as_bytes())?;
    let mut said = String::new();
    io::stdin().read_line(&mut said)?;
    let said = said.trim().to_lowercase();
    Ok(Some(said == "y" || said == "yes"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use nix::unistd::{pipe, read};

    use super::*;

    fn filled(sink: &Sink<impl AsFd>) -> u64 {
        for _ in 0..100_000 {
            sink.put(&[b'x'; 100]);
            let dropped = sink.dropped.load(Ordering::Relaxed);
            if dropped > 2 {
                return dropped;
            }
        }
        panic!("the pipe or socket never filled");
    }

    #[test]
    fn full_pipe_drops_the_line_without_waiting() {
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
    fn shared_description_stays_blocking() {
        use nix::fcntl::{FcntlArg, fcntl};
        let (_reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        sink.put(b"a\n");
        let flags = OFlag::from_bits_truncate(fcntl(&sink.fd, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK));
    }

    #[test]
    fn full_socket_drops_whole_lines() {
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
    fn lost_reader_only_drops_lines() {
        let (reader, writer) = pipe().unwrap();
        let sink = Sink::new(writer);
        drop(reader);
        sink.put(b"a\n");
        sink.put(b"b\n");
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 2);
        // A named pipe cannot be opened again without a reader.
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
    fn file_is_written_at_the_offset_of_its_description() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::File::create(&path).unwrap();
        io::Write::write_all(&mut file, b"before\n").unwrap();
        Sink::new(file).put(b"after\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"before\nafter\n");
    }

    fn line(text: &str) -> String {
        format!("{text}\n")
    }

    #[test]
    fn full_pipe_makes_the_latest_line_wait() {
        let (reader, writer) = pipe().unwrap();
        let mut out = LineWriter::new(writer);
        loop {
            // Divides the page size, so that the pipe is filled to the last byte.
            out.say("x".repeat(64));
            match out.push() {
                WriteProgress::All => {}
                WriteProgress::Waits => break,
                WriteProgress::Never(errno) => panic!("{errno}"),
            }
        }
        assert!(out.is_about_to_begin());
        out.say(line("holder 7"));
        assert_eq!(out.push(), WriteProgress::Waits);
        assert!(out.retract());
        out.say(line("standby b"));
        let mut there = vec![0; 1 << 20];
        while read(&reader, &mut there).unwrap() == there.len() {}
        assert_eq!(out.push(), WriteProgress::All);
        let length = read(&reader, &mut there).unwrap();
        assert_eq!(&there[..length], b"standby b\n");
    }

    #[test]
    fn hang_up_of_the_reader_is_noticed_without_output() {
        let (reader, writer) = pipe().unwrap();
        let (other, _life) = pipe().unwrap();
        let mut out = LineWriter::new(writer);
        assert_eq!(out.push(), WriteProgress::All);
        let waiting = std::thread::spawn(move || {
            let woken = out.wait(false, other.as_fd());
            out.say(line("x"));
            (woken, out.push())
        });
        drop(reader);
        let (woken, said) = waiting.join().unwrap();
        assert_eq!(woken, Err(Errno::EPIPE));
        assert_eq!(said, WriteProgress::Never(Errno::EPIPE));
    }
}
