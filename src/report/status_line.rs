//! The line that a standby keeps up to date on a terminal, below the log.
//!
//! The line and its thread exist only if stderr is a terminal that can erase a line, and the log is for
//! people. They never wait for the terminal: output that it does not accept is dropped.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::terminal_size_of;

use super::stdio::Stderr;
use crate::clock::Instant;
use crate::core::{HolderInfo, Notice};
use crate::driver::{Observation, Observer};
use crate::util::{lock, wall_clock};

// Moves to the beginning of the line, and erases it.
pub(super) const ERASE: &[u8] = b"\r\x1b[K";
// The line shows the wait in seconds.
const TICK: Duration = Duration::from_secs(1);

struct State {
    /// Whether the terminal can erase a line; decided once.
    wanted: bool,
    standing: Option<Standing>,
    /// Width of the line, if it is on the terminal.
    shown: Option<usize>,
}

#[derive(Clone)]
struct Standing {
    info: HolderInfo,
    since: Instant,
    next_look: Instant,
}

// Global, because every write to stderr has to erase the line first.
static STATE: Mutex<State> = Mutex::new(State {
    wanted: false,
    standing: None,
    shown: None,
});
static CHANGED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}

/// Allows the line if the terminal is able; starts nothing.
pub(super) fn allow(terminal: Option<&str>) {
    // Emacs' shell and some CI systems are dumb: they print the codes.
    let able = terminal.is_some_and(|name| !name.is_empty() && name != "dumb");
    state().wanted = able && nix::unistd::isatty(std::io::stderr()).unwrap_or(false);
}

/// The line as an observer. It comes after the log, whose lines go above it.
pub(crate) struct StatusLine;

impl Observer for StatusLine {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        match *observation {
            Observation::Notice { notice, .. } => match notice {
                Notice::StandingBy(info) => stand_by(info, now),
                Notice::InControl { .. } | Notice::Cordoned { .. } | Notice::Unfit(_) => end(),
                _ => {}
            },
            Observation::Waits(next_look) => {
                if let Some(standing) = &mut state().standing {
                    standing.next_look = next_look;
                }
            }
            Observation::Signal(libc::SIGWINCH) => CHANGED.notify_all(),
            _ => {}
        }
    }
}

fn stand_by(info: &HolderInfo, now: Instant) {
    static THREAD: Once = Once::new();
    let mut state = state();
    if !state.wanted {
        return;
    }
    let (since, next_look) = match &state.standing {
        Some(standing) => (standing.since, standing.next_look),
        None => (now, Instant::FOREVER),
    };
    state.standing = Some(Standing {
        info: info.clone(),
        since,
        next_look,
    });
    drop(state);
    // Only now: an instance that never waits on a terminal needs no thread.
    THREAD.call_once(|| {
        // Without the thread there is no line, but still a log.
        let _ = std::thread::Builder::new()
            .name("standing-by".into())
            .stack_size(128 * 1024)
            .spawn(keep);
    });
    CHANGED.notify_all();
}

pub(super) fn end() {
    let mut state = state();
    state.standing = None;
    if let Some(wide) = state.shown.take() {
        let _ = Stderr::draw(taking_back(wide, columns()));
    }
}

/// Returns the bytes that erase a line of this width. On a terminal that has become narrower the number of
/// its rows is unknown, so it stays.
fn taking_back(wide: usize, columns: Option<usize>) -> &'static [u8] {
    match columns {
        Some(columns) if wide >= columns => b"\r\n",
        _ => ERASE,
    }
}

fn columns() -> Option<usize> {
    let (width, _) = terminal_size_of(std::io::stderr())?;
    Some(usize::from(width.0))
}

/// Writes a line above the status line.
pub(super) fn above(say: impl FnOnce(&'static [u8])) {
    let mut state = state();
    say(match state.shown.take() {
        Some(wide) => taking_back(wide, columns()),
        None => b"",
    });
    drop(state);
    CHANGED.notify_all();
}

fn keep() {
    let mut now_state = state();
    loop {
        let Some(standing) = now_state.standing.clone() else {
            now_state = CHANGED
                .wait(now_state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        if let Some(width) = width() {
            let before = now_state.shown.unwrap_or(0);
            let mut line = taking_back(before, columns()).to_vec();
            let text = cut(&words(&standing, Instant::now(), &wall_clock()), width);
            line.extend(text.bytes());
            // Note only accepted output: erasing another program's line would be worse than no line.
            if Stderr::draw(&line) {
                now_state.shown = Some(text.chars().map(columns_of).sum());
            }
        }
        (now_state, _) = CHANGED
            .wait_timeout(now_state, TICK)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Returns the largest width of the line: less than the terminal's, because a full line may wrap. `None` in
/// the background, and if the terminal is too narrow.
fn width() -> Option<usize> {
    // In the background the line would appear in another program's screen, or SIGTTOU would stop this
    // process.
    if tcgetpgrp(std::io::stderr()) != Ok(getpgrp()) {
        return None;
    }
    columns()?.checked_sub(1).filter(|width| *width >= 20)
}

fn words(standing: &Standing, now: Instant, today: &str) -> String {
    use super::text::behind;
    use crate::units::show;
    let whole = |span: Duration| show(Duration::from_secs(span.as_secs()));
    let info = &standing.info;
    let mut text = format!(
        "trafficcop: standing by for {}",
        whole(now.since(standing.since))
    );
    match (
        &info.holder,
        info.since.as_deref().and_then(|since| moment(since, today)),
    ) {
        (Some(holder), Some(since)) => {
            text.push_str(&format!(": {holder} holds it since {since}"));
            if info.draining {
                text.push_str(" and is stopping");
            }
        }
        _ => text.push_str(&behind(info)),
    }
    if standing.next_look == Instant::FOREVER {
        text.push_str(", woken when it is free");
    } else {
        // Round up to whole seconds, so that the look never comes late.
        let left = standing.next_look.since(now) + Duration::from_millis(999);
        text.push_str(&format!(", next look in {}", whole(left)));
    }
    super::plain(&text)
}

/// Formats a timestamp, without the date if that is today; `None` if it is no timestamp.
fn moment(since: &str, today: &str) -> Option<String> {
    let (date, clock) = since.strip_suffix('Z')?.split_once('T')?;
    let clock = clock.split('.').next()?;
    if today.starts_with(date) {
        return Some(format!("{clock} UTC"));
    }
    Some(format!("{date} {} UTC", clock.get(..5)?))
}

fn columns_of(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

/// Cuts the text so that it certainly fits: a character that is not ASCII may be two columns wide.
fn cut(text: &str, width: usize) -> String {
    if text.chars().map(columns_of).sum::<usize>() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(3);
    let mut kept: String = text
        .chars()
        .take_while(|c| {
            let fits = columns_of(*c) <= room;
            room = room.saturating_sub(columns_of(*c));
            fits
        })
        .collect();
    kept.push_str("...");
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(info: HolderInfo, next_look: Instant) -> Standing {
        Standing {
            info,
            since: Instant::ZERO,
            next_look,
        }
    }

    #[test]
    fn status_line_names_the_holder_and_the_next_look() {
        let now = Instant::from_nanos(12_400_000_000);
        let info = HolderInfo {
            holder: Some("web1".into()),
            token: Some(7),
            since: Some("2026-01-02T10:03:12.123456789Z".into()),
            ..HolderInfo::default()
        };
        let next = now + Duration::from_millis(1500);
        let said = words(&standing(info.clone(), next), now, "2026-01-02T11:00:00Z");
        assert_eq!(
            said,
            "trafficcop: standing by for 12s: web1 holds it since 10:03:12 UTC, next look in 2s"
        );
        let said = words(
            &standing(info, Instant::FOREVER),
            now,
            "2026-01-03T11:00:00Z",
        );
        assert!(said.contains("since 2026-01-02 10:03 UTC, woken"), "{said}");
        let unknown = standing(HolderInfo::default(), Instant::FOREVER);
        let said = words(&unknown, now, "");
        assert!(
            said.contains(": another instance is in control, woken"),
            "{said}"
        );
    }

    #[test]
    fn forged_record_sends_no_control_characters_to_the_terminal() {
        let info = HolderInfo {
            holder: Some("\x1b[2Jgotcha".into()),
            since: Some("2026-01-02T\x1b]0;x\x07Z".into()),
            ..HolderInfo::default()
        };
        let said = words(
            &standing(info, Instant::FOREVER),
            Instant::ZERO,
            "2026-01-02",
        );
        assert!(!said.contains(char::is_control), "{said:?}");
    }

    #[test]
    fn status_line_is_never_wider_than_the_terminal() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("a longer one", 10), "a longe...");
        for width in 20..60 {
            let wide = cut(&"héölder-日本語-".repeat(10), width);
            let columns: usize = wide.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
            assert!(columns <= width && columns + 2 >= width, "{wide}");
        }
    }
}
