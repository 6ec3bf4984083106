//! The one line that a standby keeps up to date on a terminal, below everything that was said.
//!
//! Called by `report` alone. There is no line, no thread and no wake-up unless stderr is a terminal
//! that can take a line back, we are in its foreground, and the log is one for people. It never
//! waits for a terminal: what the terminal does not take is not shown.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::terminal_size_of;

use super::stdio::Stderr;
use crate::clock::Instant;
use crate::core::{HolderInfo, Notice};
use crate::driver::{Observation, Observer};
use crate::util::{lock, wall_clock};

// To the beginning of the line, and all of it gone.
pub(super) const ERASE: &[u8] = b"\r\x1b[K";
// The wait is shown in seconds; in between the line would say the same.
const TICK: Duration = Duration::from_secs(1);

struct State {
    /// A terminal that can take a line back; decided once.
    wanted: bool,
    standing: Option<Standing>,
    /// The line is on the terminal, and so wide.
    shown: Option<usize>,
}

/// What is said of the wait.
#[derive(Clone)]
struct Standing {
    info: HolderInfo,
    since: Instant,
    next_look: Instant,
}

// A global: whatever writes to stderr has to take the line back first.
static STATE: Mutex<State> = Mutex::new(State {
    wanted: false,
    standing: None,
    shown: None,
});
static CHANGED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}

/// Whether the line may be shown; starts nothing.
pub(super) fn allow(terminal: Option<&str>) {
    // Emacs' shell and some CI name themselves so: they print the codes.
    let able = terminal.is_some_and(|name| !name.is_empty() && name != "dumb");
    state().wanted = able && nix::unistd::isatty(std::io::stderr()).unwrap_or(false);
}

/// The line as an observer, to come after the log: what is said goes above the line.
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
            // The terminal has another size: the line is shown anew.
            Observation::Signal(libc::SIGWINCH) => CHANGED.notify_all(),
            _ => {}
        }
    }
}

/// Shows the line from now on, behind this holder.
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
    // Only now: whoever never waits on a terminal has no thread for it.
    THREAD.call_once(|| {
        // Without it there is no line; everything else is said all the same.
        let _ = std::thread::Builder::new()
            .name("standing-by".into())
            // It formats one line.
            .stack_size(128 * 1024)
            .spawn(keep);
    });
    CHANGED.notify_all();
}

/// Shows it no more.
pub(super) fn end() {
    let mut state = state();
    state.standing = None;
    if let Some(wide) = state.shown.take() {
        let _ = Stderr::draw(taking_back(wide, columns()));
    }
}

/// What takes back a line that is so wide. On a terminal that has become narrower some have wrapped
/// it, and some have cut it: nobody can say how many rows are ours, so it is left where it is.
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

/// Says a line above it.
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
            // Only what went in is taken back later: erasing another's line would be worse than no
            // line.
            if Stderr::draw(&line) {
                now_state.shown = Some(text.chars().map(columns_of).sum());
            }
        }
        (now_state, _) = CHANGED
            .wait_timeout(now_state, TICK)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// How wide the line may be: less than the terminal, because a line that fills it may wrap. `None`
/// in the background, where the terminal is somebody else's, and where nothing of use would fit.
fn width() -> Option<usize> {
    // It would be drawn into somebody else's editor, or stop us by SIGTTOU.
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
        // Half a second is no news: what is shown is rounded up, and never less than the truth.
        let left = standing.next_look.since(now) + Duration::from_millis(999);
        text.push_str(&format!(", next look in {}", whole(left)));
    }
    super::plain(&text)
}

/// A moment without what is the same today; `None` where it is no moment.
fn moment(since: &str, today: &str) -> Option<String> {
    let (date, clock) = since.strip_suffix('Z')?.split_once('T')?;
    let clock = clock.split('.').next()?;
    if today.starts_with(date) {
        return Some(format!("{clock} UTC"));
    }
    Some(format!("{date} {} UTC", clock.get(..5)?))
}

/// How wide it is at most.
fn columns_of(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

/// As much of it as certainly fits: what is not ASCII may be two columns wide.
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
    fn the_line_says_who_since_when_and_what_comes() {
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
    fn a_record_that_somebody_forged_does_not_talk_to_the_terminal() {
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
    fn it_is_never_wider_than_the_terminal() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("a longer one", 10), "a longe...");
        for width in 20..60 {
            let wide = cut(&"héölder-日本語-".repeat(10), width);
            let columns: usize = wide.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
            assert!(columns <= width && columns + 2 >= width, "{wide}");
        }
    }
}
