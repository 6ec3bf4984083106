//! Lines on stdout for a program that reads them through a pipe, and may have stopped to.
//!
//! [`LineWriter`] writes and never waits; it is used by the process that tells a reader (`announce`) in a
//! loop of its own, and by [`LineSender`], a thread of the supervisor's (`elect`). Only one of the two
//! processes speaks at a time: who that is, is the business of `elect`. A line that was not begun
//! can be taken back: what waits for a reader may have become untrue.
//!
//! At the end are the answers of the verbs that look and intervene, and a question to a person at a
//! terminal. Those wait for their reader: never to be used while anybody is in control.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::stderr::{Way, way};
use crate::util::lock;

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

/// The answer to a question, on stdout. Where nobody reads it, the exit status says the same.
pub fn answer(text: &str) {
    let _ = io::stdout().write_all(format!("{text}\n").as_bytes());
}

/// What was asked for, on stdout, whole lines.
///
/// # Errors
/// Where it cannot be written; `BrokenPipe` where nobody reads it any more.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether nobody reads stdout any more: its reader went away, or the terminal.
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
    use super::*;
    use nix::unistd::{pipe, read};

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
