//! Answers on stdout, and a question to a person at a terminal: for the verbs that look and
//! intervene. It must never be used while anybody is in control: it waits for its reader.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether somebody sits before what we say.
#[must_use]
pub fn is_watched() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

/// The answer to a question, on stdout. Where nobody reads it, the exit status says the same.
pub fn answer(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes());
}

/// What was asked for, on stdout, whole lines.
///
/// # Errors
/// Where it cannot be written; `BrokenPipe` where nobody reads it any more.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    std::io::Write::write_all(&mut out, text.as_bytes())?;
    std::io::Write::flush(&mut out)
}

/// Whether nobody reads stdout any more: its reader went away, or the terminal.
#[must_use]
pub fn is_unread() -> bool {
    use std::os::fd::AsFd as _;
    let out = std::io::stdout();
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
pub fn ask(question: &str) -> std::io::Result<Option<bool>> {
    use std::io::IsTerminal as _;
    let mut to = std::io::stderr();
    if !to.is_terminal() || !std::io::stdin().is_terminal() {
        return Ok(None);
    }
    std::io::Write::write_all(&mut to, format!("{question} [y/N] ").as_bytes())?;
    let mut said = String::new();
    std::io::stdin().read_line(&mut said)?;
    let said = said.trim().to_lowercase();
    Ok(Some(said == "y" || said == "yes"))
}
