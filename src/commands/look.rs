//! `trafficcop status`, `list` and `watch`, and a lock as people and JSON see it ([`LockView`]).
//!
//! They look as politely as a standby does, and never acquire. The fields of the JSON and the words of `state` are
//! an interface (see `args::STATUS_JSON`). A record is text from outside: what a terminal shows is made plain.

use std::fmt::Write as _;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{LockTarget, answer, run};
use crate::args;
use crate::config;
use crate::core::Failure;
use crate::core::retry::Jitter;
use crate::exit::{self, ExitAction};
use crate::lease::inspect::{LockState, LockStatus};
use crate::lease::once::{self, Entry};
use crate::lease::record::Record;
use crate::report::{self, plain};
use crate::signals::{SignalEvent, Signals};
use crate::units::show;
use crate::util::wall_clock;

fn views(seen: &[LockStatus]) -> Vec<LockView> {
    let now = OffsetDateTime::now_utc();
    seen.iter().map(|seen| LockView::of(seen, now)).collect()
}

pub(crate) fn status(typed: &args::Status) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(async { Ok(target.look_under_the_name(true).await?) })?;
    let view = views(&seen.all);
    let leave = match view.iter().any(|view| view.held == Some(true)) {
        true => ExitAction::Status(0),
        false => ExitAction::Status(exit::FREE),
    };
    let text = match (typed.json, seen.of_slots) {
        (true, false) => serde_json::to_string(&view[0])? + "\n",
        (true, true) => serde_json::to_string(&view)? + "\n",
        (false, _) => view.iter().map(LockView::lines).collect(),
    };
    answer(&text, leave)
}

const HEADER: [&str; 7] = [
    "LOCK", "STATE", "TOKEN", "HOLDER", "SINCE", "ONCE", "COMMAND",
];

pub(crate) fn list(typed: &args::List) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of_listing(typed)?;
    let seen = run(async { Ok(target.inspector.list("", target.limit()).await?) })?;
    let view = views(&seen);
    let text = match typed.json {
        true => serde_json::to_string(&view)? + "\n",
        false => table(&HEADER, &view.iter().map(row).collect::<Vec<_>>()),
    };
    // On stderr: an empty list is a right answer, and a script continues with it.
    if view.is_empty() {
        tracing::warn!("there are no locks in {}", target.info.address);
    }
    answer(&text, ExitAction::Status(0))
}

/// Leaves out what is not true of a free lock.
fn row(view: &LockView) -> Vec<String> {
    let held = |text: &Option<String>| {
        let text = text.as_deref().filter(|_| view.held == Some(true));
        text.map_or("-".to_owned(), plain)
    };
    let token = view.token.map_or("-".to_owned(), |token| token.to_string());
    vec![
        plain(&view.name),
        view.state.to_owned(),
        token,
        held(&view.holder),
        held(&view.since.as_deref().map(whole_seconds)),
        view.once_in_short(),
        held(&view.command),
    ]
}

#[derive(Serialize)]
struct ChangeLine<'a> {
    time: String,
    #[serde(flatten)]
    view: &'a LockView,
    why: Option<&'a str>,
}

pub(crate) fn watch(typed: &args::Watch) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
    // Spread like a standby's: terminals that watch one lock must not ask at the same moment.
    let poll = typed.poll.clone().unwrap_or(Ok(config::DEFAULT_POLL))?;
    let mut jitter = Jitter::new(fastrand::u64(..));
    run(async {
        // Only as PID 1, which no signal ends by default.
        let signals = (std::process::id() == 1).then(Signals::listen);
        let mut asked = pin!(asked_to_stop(signals.and_then(Result::ok)));
        let mut last: Vec<LockView> = Vec::new();
        loop {
            let (view, of_slots, why) = match target.look_under_the_name(false).await {
                Ok(seen) => (views(&seen.all), seen.of_slots, None),
                // At the first look it never passes; after a success it does.
                Err(fatal @ Failure::Fatal { .. }) if last.is_empty() => return Err(fatal.into()),
                Err(failure) => {
                    let unknown = LockView::unknown(target.info.address.clone());
                    (vec![unknown], false, Some(failure.to_string()))
                }
            };
            for view in &view {
                let before = last.iter().find(|before| before.lock == view.lock);
                // The age would make a line every two seconds.
                if before.map(LockView::identity_of_change) != Some(view.identity_of_change()) {
                    let text = line(view, why.as_deref(), typed.json, of_slots)?;
                    match answer(&text, ExitAction::Status(0))? {
                        ExitAction::Status(_) => {}
                        gone => return Ok(gone),
                    }
                }
            }
            last = view;
            tokio::select! {
                signal = asked.as_mut() => return Ok(ExitAction::Signal(signal)),
                () = tokio::time::sleep(jitter.spread(poll)) => {}
            }
            // Without a change nothing is written: a pipe without a reader would be watched for ever.
            if report::is_unread() {
                return Ok(ExitAction::Signal(libc::SIGPIPE));
            }
        }
    })
}

/// Waits for a signal to stop; for ever if it does not listen.
async fn asked_to_stop(signals: Option<Signals>) -> i32 {
    let Some(mut signals) = signals else {
        return pending().await;
    };
    loop {
        if let SignalEvent::Stop(signal) = signals.next().await {
            return signal;
        }
    }
}

fn line(view: &LockView, why: Option<&str>, json: bool, of_slots: bool) -> anyhow::Result<String> {
    let time = wall_clock();
    if json {
        return Ok(serde_json::to_string(&ChangeLine { time, view, why })? + "\n");
    }
    let name = of_slots.then(|| plain(&view.name) + ": ");
    let why = why.map(|why| format!(": {}", plain(why)));
    let (name, why) = (name.unwrap_or_default(), why.unwrap_or_default());
    Ok(format!("{time} {name}{}{why}\n", view.line()))
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LockView {
    pub(super) name: String,
    pub(super) lock: String,
    pub(super) state: &'static str,
    pub(super) held: Option<bool>,
    pub(super) holder: Option<String>,
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) command: Option<String>,
    pub(super) since: Option<String>,
    pub(super) seconds: Option<u64>,
    pub(super) token: Option<u64>,
    pub(super) health: Option<String>,
    pub(super) health_cause: Option<String>,
    pub(super) once: Vec<TaskView>,
    pub(super) problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TaskView {
    key: String,
    period: Option<String>,
    exit: Option<u8>,
    by: Option<String>,
    at: Option<String>,
    token: Option<u64>,
    failed: u32,
}

impl TaskView {
    fn of(entry: &Entry) -> TaskView {
        let over = entry.over.as_ref();
        let tries = entry.tries.as_ref();
        let period = tries
            .map(|tries| tries.period)
            .or(over.map(|over| over.period));
        TaskView {
            key: entry.key.clone(),
            period: period.filter(|_| entry.periods).map(once::moment),
            exit: over.map(|over| over.exit),
            by: over.map(|over| over.by.clone()),
            at: over.map(|over| over.at.clone()),
            token: over
                .map(|over| over.token)
                .max(tries.map(|tries| tries.token)),
            failed: tries.map_or(0, |tries| tries.failed),
        }
    }

    fn words(&self) -> String {
        let mut text = self.key.clone();
        if let Some(period) = &self.period {
            let _ = write!(text, " (period {period})");
        }
        if let (Some(exit), Some(by), Some(at)) = (self.exit, &self.by, &self.at) {
            let how = match exit {
                0 => "done".to_owned(),
                status => format!("failed for good with exit status {status}"),
            };
            let _ = write!(text, ": {how} by {by} at {at}");
        }
        let _ = match self.failed {
            0 => Ok(()),
            1 => write!(text, ": failed once"),
            times => write!(text, ": failed {times} times"),
        };
        text
    }
}

impl LockView {
    pub(super) fn of(seen: &LockStatus, now: OffsetDateTime) -> LockView {
        let nothing = Record::default();
        let record = seen.record.as_ref().unwrap_or(&nothing);
        let holder = if seen.foreign { &nothing } else { record };
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let held = match seen.state {
            LockState::Missing | LockState::Free => false,
            LockState::Held | LockState::Breaking => true,
        };
        // The log has the health of earlier holders.
        let (health, health_cause) = match holder.health.split_once(": ") {
            Some((health, cause)) if held => (some(health), some(cause)),
            _ => (None, None),
        };
        LockView {
            name: seen.name.clone(),
            lock: seen.lock.clone(),
            state: match seen.state {
                LockState::Missing => "missing",
                LockState::Free => "free",
                // A holder that died draining has left that in the record.
                LockState::Held if holder.draining => "draining",
                LockState::Held => "held",
                LockState::Breaking => "breaking",
            },
            held: Some(held),
            holder: some(&holder.holder),
            host: some(&holder.host),
            pid: Some(holder.pid).filter(|pid| *pid != 0),
            command: some(&holder.command),
            since: some(&holder.since),
            // Of a free lock it would count from when its last holder came.
            seconds: age(&holder.since, now).filter(|_| held),
            token: Some(record.token).filter(|token| *token != 0),
            health,
            health_cause,
            once: record.once.entries().iter().map(TaskView::of).collect(),
            problem: seen.problem.clone(),
        }
    }

    /// Returns the view of a lock whose state is unknown: `held` is null, not false. A script that read "free" from
    /// an outage would start a second command.
    pub(super) fn unknown(lock: String) -> LockView {
        LockView {
            name: lock.clone(),
            lock,
            state: "unknown",
            ..LockView::default()
        }
    }

    pub(super) fn identity_of_change(
        &self,
    ) -> (&'static str, Option<&str>, Option<u64>, Option<&str>) {
        let (holder, health) = (self.holder.as_deref(), self.health.as_deref());
        (self.state, holder, self.token, health)
    }

    /// Returns `web1-42 (host web1, pid 42)`, as far as known.
    pub(super) fn who(&self) -> Option<String> {
        let name = self.holder.as_deref()?;
        let host = self.host.as_ref().map(|host| format!("host {host}"));
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let more: Vec<String> = [host, pid].into_iter().flatten().collect();
        Some(plain(&match more.is_empty() {
            true => name.to_owned(),
            false => format!("{name} ({})", more.join(", ")),
        }))
    }

    fn health_in_words(&self) -> Option<String> {
        let (health, cause) = (self.health.as_ref()?, self.health_cause.as_ref()?);
        Some(format!("{health}: {cause}"))
    }

    pub(super) fn lines(&self) -> String {
        let mut text = format!("{}: {}\n", plain(&self.lock), self.words());
        let mut line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = writeln!(text, "  {name:<8}  {}", plain(&value));
            }
        };
        let held = self.held == Some(true);
        let who = if held { "holder" } else { "last" };
        let unnamed = || "a program that left no record".to_owned();
        line(who, self.who().or_else(|| held.then(unnamed)));
        let age = self.seconds.map(Duration::from_secs).map(show);
        let age = age.map(|age| format!(" (for {age})"));
        let since = self.since.as_deref().map(whole_seconds);
        line("since", since.map(|since| since + &age.unwrap_or_default()));
        line("token", self.token.map(|token| token.to_string()));
        line("health", self.health_in_words());
        line("command", self.command.clone());
        for task in &self.once {
            line("once", Some(task.words()));
        }
        line("problem", self.problem.clone());
        text
    }

    pub(super) fn once_in_short(&self) -> String {
        let done = self.once.iter().filter(|task| task.exit == Some(0)).count();
        let failed = self.once.len() - done;
        match (done, failed) {
            (0, 0) => "-".to_owned(),
            (done, 0) => format!("done:{done}"),
            (0, failed) => format!("failed:{failed}"),
            (done, failed) => format!("done:{done},failed:{failed}"),
        }
    }

    pub(super) fn words(&self) -> &'static str {
        match self.state {
            "missing" => "free, and never held",
            "draining" => "held, and its holder is stopping",
            "breaking" => "held until its broken lease ends",
            state => state,
        }
    }

    pub(super) fn line(&self) -> String {
        let who = match (self.who(), self.held) {
            (Some(who), Some(true)) => format!(" by {who}"),
            (Some(who), _) => format!(", last held by {who}"),
            (None, _) => String::new(),
        };
        let words = match self.state {
            "draining" => "draining, held",
            "breaking" => "breaking, held",
            "missing" => "free, no lock yet",
            state => state,
        };
        let token = self.token.map(|token| format!(", token {token}"));
        let health = self.health_in_words();
        let health = health.map(|health| format!(", {}", plain(&health)));
        let more = [token, health].into_iter().flatten();
        format!("{words}{who}{}", more.collect::<String>())
    }
}

/// Drops a time's fraction; leaves other text unchanged.
pub(super) fn whole_seconds(since: &str) -> String {
    OffsetDateTime::parse(since, &Rfc3339)
        .ok()
        .and_then(|moment| moment.replace_nanosecond(0).ok()?.format(&Rfc3339).ok())
        .unwrap_or_else(|| since.to_owned())
}

/// Returns `None` if that is no time or still to come.
fn age(since: &str, now: OffsetDateTime) -> Option<u64> {
    // Two wall clocks, the holder's and this machine's, can differ.
    let since = OffsetDateTime::parse(since, &Rfc3339).ok()?;
    u64::try_from((now - since).whole_seconds()).ok()
}

/// Formats rows under a header, with padding except in the last column.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    let rows = || [&header].into_iter().chain(rows);
    // In characters: identities are of any language.
    let width = |column: usize| rows().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..header.len()).filter_map(width).collect();
    let mut text = String::new();
    for row in rows() {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(cell, wide)| format!("{cell:<wide$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(state: LockState, record: Option<Record>) -> LockStatus {
        LockStatus {
            name: "locks/one".into(),
            lock: "https://web.example/locks/one".into(),
            state,
            record,
            ..LockStatus::default()
        }
    }

    fn record() -> Record {
        Record {
            token: 7,
            holder: "web1-42".into(),
            host: "web1".into(),
            pid: 42,
            since: "2026-01-01T00:00:00Z".into(),
            command: "./job\x1b[2J".into(),
            draining: false,
            bell: String::new(),
            ..Record::default()
        }
    }

    #[test]
    fn holder_is_shown_with_its_age_and_the_last_one_without() {
        let now = OffsetDateTime::parse("2026-01-01T00:03:12Z", &Rfc3339).unwrap();
        let view = LockView::of(&seen(LockState::Held, Some(record())), now);
        assert_eq!((view.state, view.seconds), ("held", Some(192)));
        let text = view.lines();
        for words in ["web1-42 (host web1, pid 42)", "(for 3m12s)", "token     7"] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert!(!text.contains('\x1b'), "{text}");
        let free = LockView::of(&seen(LockState::Free, Some(record())), now);
        assert_eq!(
            (free.state, free.held, free.seconds),
            ("free", Some(false), None)
        );
        assert!(
            free.lines().contains("  last      web1-42"),
            "{}",
            free.lines()
        );
        let early = OffsetDateTime::parse("2025-01-01T00:00:00Z", &Rfc3339).unwrap();
        assert_eq!(
            LockView::of(&seen(LockState::Held, Some(record())), early).seconds,
            None
        );
    }

    #[test]
    fn health_is_shown_only_while_the_lock_is_held() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let record = Some(Record {
            health: "failing: --health was answered 500\x1b".into(),
            ..record()
        });
        let view = |state| LockView::of(&seen(state, record.clone()), now);
        let held = view(LockState::Held);
        assert_eq!(held.health.as_deref(), Some("failing"));
        let cause = Some("--health was answered 500\x1b");
        assert_eq!(held.health_cause.as_deref(), cause);
        let line = "  health    failing: --health was answered 500";
        assert!(held.lines().contains(line), "{}", held.lines());
        let line =
            "held by web1-42 (host web1, pid 42), token 7, failing: --health was answered 500";
        assert!(held.line().starts_with(line), "{}", held.line());
        assert!(!held.lines().contains('\x1b') && !held.line().contains('\x1b'));
        let free = view(LockState::Free);
        assert_eq!(
            (free.health.clone(), free.health_cause.clone()),
            (None, None)
        );
        assert!(
            held.identity_of_change() != view(LockState::Breaking).identity_of_change()
                && !free.lines().contains("500")
        );
        let well = seen(LockState::Held, Some(self::record()));
        assert_ne!(
            held.identity_of_change(),
            LockView::of(&well, now).identity_of_change()
        );
    }

    #[test]
    fn draining_is_shown_only_while_the_lock_is_held() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let draining = Some(Record {
            draining: true,
            ..record()
        });
        let state = |state| LockView::of(&seen(state, draining.clone()), now).state;
        assert_eq!(state(LockState::Held), "draining");
        assert_eq!(state(LockState::Breaking), "breaking");
        assert_eq!(state(LockState::Free), "free");
        let nobody = LockView::of(&seen(LockState::Missing, None), now);
        assert_eq!((nobody.state, nobody.token), ("missing", None));
        let strange = LockView::of(&seen(LockState::Held, None), now);
        assert!(strange.lines().contains("no record"), "{}", strange.lines());
    }
}
