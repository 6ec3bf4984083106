//! Socket activation: a service manager's listening descriptors (`LISTEN_FDS`) belong to the command.
//! `LISTEN_PID` has to be its process id, unknown before the fork.
//!
//! Variables for another process pass through untouched. Functions for the child must not allocate.

use std::ffi::{OsStr, OsString};

use super::raw;

const FIRST: i32 = 3;
// No service manager passes more.
const MOST: i32 = 4096;
const WHOSE: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
/// The last one names the process a second time.
const ALL: [&str; 4] = [WHOSE, COUNT, NAMES, "LISTEN_PIDFDID"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sockets {
    count: i32,
}

impl Sockets {
    pub(super) fn ours() -> Option<Sockets> {
        let variable = |name| std::env::var_os(name);
        Sockets::of(std::process::id(), variable(WHOSE)?, &variable(COUNT)?)
    }

    fn of(pid: u32, whose: OsString, count: &OsStr) -> Option<Sockets> {
        let whose: u32 = whose.to_str()?.parse().ok()?;
        let count: i32 = count.to_str()?.parse().ok()?;
        // sd_listen_fds(3): another process's number, inherited by mistake.
        (whose == pid && (1..=MOST).contains(&count)).then_some(Sockets { count })
    }

    /// Whether a program's environment leaves out a variable: because it is written anew, or (unless
    /// `for_command`) describes what the program does not get.
    pub(super) fn hides(name: &OsStr, for_command: bool) -> bool {
        let keeps = |hidden: &str| for_command && [COUNT, NAMES].contains(&hidden);
        ALL.iter().any(|hidden| name == *hidden && !keeps(hidden))
    }

    /// Closes the descriptors, in a child that is not the command.
    pub(super) fn close(self) {
        for fd in FIRST..FIRST + self.count {
            // A close-on-exec one is this process's own.
            if raw::closes_on_exec(fd) == Some(false) {
                raw::close(fd);
            }
        }
    }
}

/// `NAME=...`, with room for the reader's process id.
pub(super) struct OwnPid(Vec<u8>);

/// Also holds the command's process id (`sd_watchdog_enabled(3)`).
pub(super) const WATCHED: &str = "WATCHDOG_PID";

const DIGITS: usize = 10;

impl OwnPid {
    pub(super) fn of_sockets() -> OwnPid {
        OwnPid::named(WHOSE)
    }

    pub(super) fn named(name: &str) -> OwnPid {
        let mut text = format!("{name}=").into_bytes();
        text.resize(text.len() + DIGITS + 1, 0);
        OwnPid(text)
    }

    /// Returns the entry, which never moves and always ends with NUL.
    pub(super) fn as_ptr(&self) -> *const libc::c_char {
        self.0.as_ptr().cast()
    }

    pub(super) fn fill(&mut self, pid: u32) {
        let begin = self.0.len() - DIGITS - 1;
        let room = &mut self.0[begin..];
        // An earlier command's id may be longer.
        room.fill(0);
        let mut digits = [0; DIGITS];
        let (mut rest, mut first) = (pid, DIGITS);
        loop {
            first -= 1;
            digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        room[..DIGITS - first].copy_from_slice(&digits[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(whose: &str, count: &str) -> Option<i32> {
        Sockets::of(7, whose.into(), OsStr::new(count)).map(|sockets| sockets.count)
    }

    #[test]
    fn sockets_for_another_process_are_ignored() {
        assert_eq!(of("7", "2"), Some(2));
        for (whose, count) in [
            ("8", "2"),
            ("", "2"),
            ("7", ""),
            ("7", "0"),
            ("7", "-1"),
            ("7", "99999"),
        ] {
            assert_eq!(of(whose, count), None, "{whose} {count}");
        }
    }

    #[test]
    fn process_id_is_written_in_place() {
        let mut address = OwnPid::of_sockets();
        let before = address.as_ptr();
        for (pid, text) in [(1, "1"), (u32::MAX, "4294967295"), (42, "42")] {
            address.fill(pid);
            let shown = std::ffi::CStr::from_bytes_until_nul(&address.0).unwrap();
            assert_eq!(shown.to_str().unwrap(), format!("LISTEN_PID={text}"));
        }
        assert_eq!(before, address.as_ptr());
    }

    #[test]
    fn only_the_command_sees_number_and_names_of_the_sockets() {
        let hidden = |for_command| {
            let names = ALL
                .iter()
                .filter(|name| Sockets::hides(OsStr::new(name), for_command));
            names.copied().collect::<Vec<_>>()
        };
        assert_eq!(hidden(true), ["LISTEN_PID", "LISTEN_PIDFDID"]);
        assert_eq!(hidden(false), ALL);
        assert!(!Sockets::hides(OsStr::new("PATH"), false));
    }
}
