//! Stderr and stdout, whose readers may have stopped to read: neither may hold us up.
//!
//! **Stderr** never waits; it is written to by `report` alone, for each line of the log. A full pipe, a
//! terminal held by Ctrl-S: a supervisor that blocks there does not renew. `O_NONBLOCK` cannot simply
//! be set, because the description is shared with the command and with whoever started us. So a pipe
//! or a terminal is opened once more, which gives us a description of our own; a socket is sent to
//! with `MSG_DONTWAIT`; everything else (files do not block) is asked with `poll` first. A line that
//! does not fit is dropped, and the next one that does says how many there were.
//!
//! **Stdout** has lines for a program that reads them through a pipe. [`LineWriter`] writes and never
//! waits; it is used by the process that tells a reader (`announce`) in a loop of its own, and by
//! [`LineSender`], a thread of the supervisor's (`elect`). Only one of the two processes speaks at a
//! time: who that is, is the business of `elect`. A line that was not begun can be taken back: what
//! waits for a reader may have become untrue.
//!
//! At the end are the answers of the verbs that look and intervene, and a question to a person at a
//! terminal. Those wait for their reader: never to be used while anybody is in control.

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
                "trafficcop: warning: {dropped} lines of this log were dropped because its reader was too slow\n"
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

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        sink().put(line);
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

/// What became of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProgress {
    /// All of it was written.
    All,
    /// Something waits for room.
    Waits,
    /// Nobody will ever read it: EPIPE where the reader hung up.
    Never(Errno),
}

/// A descriptor that lines are written to.
pub struct LineWriter<F> {
    fd: F,
    way: Way,
    /// What is left of a line that was begun.
    rest: Vec<u8>,
    /// What was not begun.
    next: Option<String>,
}

impl LineWriter<io::Stdout> {
    /// Ours.
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

    /// The next line, instead of one that was not begun.
    pub fn say(&mut self, line: String) {
        self.next = Some(line);
    }

    /// Takes a line back that was not begun; whether there was one.
    pub fn retract(&mut self) -> bool {
        self.next.take().is_some()
    }

    /// Whether a line waits that was not begun.
    #[must_use]
    pub fn is_about_to_begin(&self) -> bool {
        self.next.is_some() && self.rest.is_empty()
    }

    /// Writes what can be written now. Never waits.
    pub fn push(&mut self) -> WriteProgress {
        loop {
            if self.rest.is_empty() {
                let Some(line) = self.next.take() else {
                    return WriteProgress::All;
                };
                // All of it or nothing goes into a pipe: it is shorter than PIPE_BUF.
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

    /// Waits until there is something to do: `other` can be read (true), something that waits can
    /// be written, or the reader hung up.
    pub fn wait(&self, waits: bool, other: BorrowedFd<'_>) -> Result<bool, Errno> {
        wait(self.fd.as_fd(), waits, other)
    }
}

/// What an error of a write means; `None`: try again.
fn waits(errno: Errno) -> Option<WriteProgress> {
    match errno {
        Errno::EINTR => None,
        Errno::EAGAIN => Some(WriteProgress::Waits),
        errno => Some(WriteProgress::Never(errno)),
    }
}

fn wait(fd: BorrowedFd<'_>, waits: bool, other: BorrowedFd<'_>) -> Result<bool, Errno> {
    // Room is asked for only where something waits: a pipe with room would wake us without end.
    let interest = if waits {
        PollFlags::POLLOUT
    } else {
        // The kernel tells of a reader that hung up all the same.
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
    // Looked at before the other one: what is said from now on is said to nobody.
    let hung_up = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    if asked[0]
        .revents()
        .is_some_and(|seen| seen.intersects(hung_up))
    {
        return Err(Errno::EPIPE);
    }
    Ok(asked[1].any().unwrap_or(true))
}

/// Stdout, spoken to from a thread: so a reader that hangs up is noticed while nothing is said,
/// and one that does not read holds nobody up.
pub struct LineSender {
    shared: Arc<Shared>,
    wake: io::PipeWriter,
}

struct Shared {
    out: Mutex<LineWriter<io::Stdout>>,
    /// Why nobody reads any more.
    gone: Mutex<Option<Errno>>,
}

impl Shared {
    fn out(&self) -> MutexGuard<'_, LineWriter<io::Stdout>> {
        lock(&self.out)
    }
}

impl LineSender {
    /// Begins to watch stdout. The word through the second comes when nobody reads any more.
    ///
    /// # Errors
    /// Where neither a pipe nor a thread can be had.
    pub fn begin() -> io::Result<(LineSender, oneshot::Receiver<()>)> {
        // A pipe, because the thread waits with `poll` for it and for stdout at the same time.
        let (woken, wake) = io::pipe()?;
        let shared = Arc::new(Shared {
            out: Mutex::new(LineWriter::of_stdout()),
            gone: Mutex::new(None),
        });
        let (tell, gone) = oneshot::channel();
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("stdout".into())
            // It writes lines that others have made.
            .stack_size(128 * 1024)
            .spawn(move || {
                let errno = serve(&theirs, woken);
                *lock(&theirs.gone) = Some(errno);
                // Where it fails we are leaving already.
                let _ = tell.send(());
            })?;
        Ok((LineSender { shared, wake }, gone))
    }

    /// Says a line, now or when there is room; instead of one that waits.
    pub fn say(&mut self, line: String) {
        let mut out = self.shared.out();
        out.say(line);
        // Here, where it can be: through the thread it would come later than what it says.
        let said = out.push();
        drop(out);
        if said != WriteProgress::All {
            // The thread waits for room, or finds out that there will be none.
            let _ = self.wake.write(&[0]);
        }
    }

    /// Somebody else is about to speak: what waits is not said any more.
    pub fn yield_to_another(&mut self) {
        self.shared.out().retract();
    }

    /// Why nobody reads what we say, once that is known.
    #[must_use]
    pub fn gone(&self) -> Option<Errno> {
        *lock(&self.shared.gone)
    }
}

/// Until nobody reads any more.
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
                // As much as is there; what it says is in the writer.
                // Nothing but an end: there is no sender any more, and nobody who asks.
                if !matches!(woken.read(&mut [0; 64]), Ok(1..)) {
                    return Errno::ECANCELED;
                }
            }
            Ok(false) => {}
            Err(errno) => return errno,
        }
    }
}

/// Whether somebody sits before what we say.
#[must_use]
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Writes the answer, whole lines. Where nobody reads it we end as programs do that do not look: by SIGPIPE.
///
/// # Errors
/// Where it cannot be written.
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

/// Whether the reader of stdout has ended: its reader went away, or the terminal.
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

/// Asks a person at a terminal; `None` where there is none. Everything but a yes is a no.
///
/// # Errors
/// Where the question cannot be written, or the answer not be read.
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

    fn line(text: &str) -> String {
        format!("{text}\n")
    }

    #[test]
    fn a_full_pipe_makes_lines_wait_and_the_latest_counts() {
        let (reader, writer) = pipe().unwrap();
        let mut out = LineWriter::new(writer);
        loop {
            // A divisor of the page's size, so that not a byte of the pipe is left.
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
    fn a_reader_that_hung_up_is_noticed_while_nothing_is_said() {
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
