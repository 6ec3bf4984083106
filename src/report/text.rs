//! Words the messages for people: short, in the field's terms, with the reason. Pure.

use std::time::Duration;

use tracing::Level;

use crate::core::{
    Cause, Ending, Exit, Failed, HandOverReason, HealthEvent, HolderInfo, Hung, ProbeFailure,
    TlsFailure, Unfit,
};
use crate::exit::{self, ExitAction};
use crate::units::{show, signal_name};

pub(super) const RESTARTS_SPENT: &str =
    "the command was restarted as often as --restart-limit allows";

pub(super) const HELD_LONG_ENOUGH: &str = "control was held for --max-hold: handing it over";

pub(crate) fn is_asked(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::Stopped(_) | Cause::HandOver | Cause::Cordoned { .. }
    )
}

/// Returns the line for the end; `None` if the command ended by itself, which was reported already.
pub(super) fn of_ending(
    ending: &Ending,
    leave: ExitAction,
    command: &str,
) -> Option<(Level, String)> {
    let mut reason = reason(&ending.cause, command);
    if let Cause::Cordoned { .. } | Cause::Unfit(_) = ending.cause {
        // The cause alone reads as if control was obtained and given up.
        reason.insert_str(0, "control not obtained: ");
    }
    // It needs a person's attention, whatever the cause.
    if ending.overlap {
        let line = format!(
            "{reason}; the command may have run at the same time as another holder's: exit status {}",
            leave.status()
        );
        return Some((Level::ERROR, line));
    }
    match (&ending.cause, leave) {
        (Cause::CommandEnded, _) => None,
        // With -E 0 a machine that has nothing to do gives no warning.
        (Cause::Stopped(_), _)
        | (
            Cause::NotObtained(_)
            | Cause::Cordoned { .. }
            | Cause::Unfit(_)
            | Cause::AlreadyDone(_),
            ExitAction::Status(0),
        ) => Some((Level::INFO, reason)),
        _ => Some((
            Level::ERROR,
            format!("{reason}; exit status {}", leave.status()),
        )),
    }
}

/// Describes a cause in one line; `command` is as it would be typed.
pub(crate) fn reason(cause: &Cause, command: &str) -> String {
    match cause {
        Cause::CommandEnded => "the command ended".into(),
        Cause::NotStarted { errno } => not_started(*errno, command),
        Cause::Stopped(signal) => format!("stopped by {}", signal_name(*signal)),
        Cause::Doubt { why } => format!("the lease could not be renewed in time: {why}"),
        Cause::Lost { why } => format!("the lease was lost: {why}"),
        Cause::HandOver => HELD_LONG_ENOUGH.into(),
        Cause::Cordoned { why } => why.clone(),
        Cause::Unfit(unfit) => not_fit(*unfit),
        Cause::GivenUp(HandOverReason::RestartsSpent) => RESTARTS_SPENT.into(),
        Cause::GivenUp(HandOverReason::HookFailed(how)) => hook_failed(*how),
        Cause::GivenUp(HandOverReason::Hung(hung)) => hangs(*hung),
        Cause::GuardianLost => "the guardian died or fell silent".into(),
        Cause::NotRecorded { why } => format!(
            "the command ended, but its result could not be recorded: {why}; the task can run again"
        ),
        Cause::AlreadyDone(result) => {
            let (holder, at, token) = (&result.holder, &result.at, result.token);
            match result.status {
                0 => format!("already done by {holder} at {at}, token {token}"),
                _ => format!("already failed for good, run by {holder} at {at}, token {token}"),
            }
        }
        Cause::NotObtained(info) => format!(
            "control not obtained{}{}",
            behind(info),
            other_command(info, command)
        ),
        Cause::Store { why, .. } => why.clone(),
    }
}

pub(super) fn hook_failed(how: Failed) -> String {
    format!("the --on-acquire command {}", failed(how))
}

pub(super) fn not_fit(unfit: Unfit) -> String {
    match unfit {
        Unfit::Failed(how) => format!("the --if command {}", failed(how)),
        Unfit::TimedOut => "the --if command did not end in time".into(),
        Unfit::CannotAsk => {
            "the --if command cannot run any more: start this instance again".into()
        }
        Unfit::ProgramRefused => "the program reports that this machine is not fit".into(),
    }
}

fn hangs(hung: Hung) -> String {
    match hung {
        Hung::Silent(span) => format!("hung: no WATCHDOG=1 for {}", show(span)),
        Hung::NotReady(span) => format!(
            "hung: neither READY=1 nor WATCHDOG=1 within {} of its start (--watchdog-start)",
            show(span)
        ),
        Hung::Triggered => "hung: WATCHDOG=trigger".into(),
        Hung::Unhealthy(1, how) => format!("hung: --health {}", probe_failed(how)),
        Hung::Unhealthy(times, how) => format!(
            "hung: --health failed {times} times in a row; the last time it {}",
            probe_failed(how)
        ),
    }
}

/// Returns the health text for the record: see [`crate::core::HealthWords`].
pub(crate) fn recorded_health(event: &HealthEvent) -> Option<String> {
    match event {
        HealthEvent::Answered { .. } => Some(String::new()),
        HealthEvent::Failed { how, .. } => {
            Some(format!("failing: --health {}", probe_failed(*how)))
        }
        HealthEvent::Hung(hung) => Some(hangs(*hung)),
        HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => None,
    }
}

fn probe_failed(how: ProbeFailure) -> String {
    match how {
        ProbeFailure::TimedOut => "took too long".into(),
        ProbeFailure::Exited(exit) => failed(Failed::Exited(exit)),
        ProbeFailure::NotStarted(errno) | ProbeFailure::NoRoom(errno) => {
            failed(Failed::NotStarted(errno))
        }
        ProbeFailure::Answered(status @ 300..=399) => {
            format!("was answered {status}, a redirect, which is not followed")
        }
        ProbeFailure::Answered(status) => format!("was answered {status}"),
        ProbeFailure::NoConnection => "could not connect".into(),
        ProbeFailure::NoTls(why) => no_tls(why).into(),
        ProbeFailure::BrokeOff => "got an incomplete answer".into(),
    }
}

fn no_tls(why: TlsFailure) -> &'static str {
    match why {
        TlsFailure::UnknownIssuer => {
            "met a certificate whose issuer is not trusted on this machine: \
             name the authority's in SSL_CERT_FILE or --ca-file"
        }
        TlsFailure::OtherName => {
            "met a certificate for another name: use that name in the URL, or replace the certificate"
        }
        TlsFailure::OutOfDate => {
            "met a certificate that has expired, or is not valid yet: renew it, or check this machine's clock"
        }
        TlsFailure::IsAuthority => {
            "met the certificate of an authority (CA:TRUE) as the server's own: \
             have the authority sign one for the server"
        }
        TlsFailure::NotSpoken => "met a server that does not speak TLS: use http://",
        TlsFailure::Other => "could not begin TLS: -v shows why",
    }
}

pub(crate) fn failing_health(event: &HealthEvent) -> Option<String> {
    match event {
        HealthEvent::Answered { .. } => None,
        HealthEvent::Failed { how, number, of } => {
            let how = probe_failed(*how);
            Some(format!("--health {how} ({number} of {of} in a row)"))
        }
        HealthEvent::NotAsked { errno, .. } => {
            let how = probe_failed(ProbeFailure::NoRoom(*errno));
            Some(format!(
                "--health {how}: this is no failure of the command and does not count; \
                 check the limits of this machine (ulimit -a, pids.max)"
            ))
        }
        HealthEvent::Hung(hung) => Some(hangs(*hung)),
        HealthEvent::GuardianLost => Some("the guardian of the --health command died".into()),
    }
}

pub(crate) fn failed(how: Failed) -> String {
    match how {
        Failed::Exited(Exit::Code(code)) => format!("exited with status {code}"),
        Failed::Exited(Exit::Signal(signal)) => {
            format!("was killed by {}", signal_name(signal))
        }
        Failed::NotStarted(errno) => {
            let error = nix::errno::Errno::from_raw(errno).desc();
            format!("could not be started: {error}")
        }
    }
}

pub(crate) fn not_started(errno: i32, command: &str) -> String {
    let for_a_shell;
    let advice = match errno {
        libc::ENOENT if is_one_text(command) => {
            for_a_shell = format!(
                "the whole text was taken as a program's name: leave the quotes out, or use a shell: -- sh -c {command}"
            );
            &for_a_shell
        }
        // In `--doorbell ADDR -- job` the flag takes no separate value, so clap takes ADDR for the command.
        libc::ENOENT if is_a_value_of_a_flag(command) => {
            "the words before -- were taken as the command, because no flag takes them (write --doorbell and \
             --page-blob with '=')"
        }
        libc::ENOENT => "check the name and PATH, and the interpreter if it is a script",
        libc::EACCES => {
            "make it executable (a directory cannot be run), or check whether the file system forbids it, \
             or a directory of its path or of PATH is not searchable"
        }
        libc::ENOEXEC => "a script needs a first line like #!/bin/sh",
        // The guardian and the hooks return it if an old process tree is still alive.
        libc::EBUSY => {
            "nothing was run: perhaps a dead instance left an unkillable process (ps: state D): restart this machine"
        }
        _ if exit::is_for_want_of_room(errno) => {
            "nothing was run: this machine has no process, memory or descriptor to spare: check its limits \
             (ulimit -a, LimitNOFILE=, pids.max), and try again"
        }
        _ => "nothing was run",
    };
    let error = nix::errno::Errno::from_raw(errno).desc();
    format!("cannot run {command}: {error}: {advice}")
}

fn is_a_value_of_a_flag(command: &str) -> bool {
    let mut words = command.split(' ');
    let is_address = |word: &str| {
        word.parse::<std::net::SocketAddr>().is_ok() || word.parse::<std::net::IpAddr>().is_ok()
    };
    words.next().is_some_and(is_address) || words.next() == Some("--")
}

/// Returns whether a command is one quoted text with blanks: a line for a shell. It may be cut at its end.
fn is_one_text(command: &str) -> bool {
    let word = command.replace(r"'\''", "");
    word.strip_prefix('\'').is_some_and(|rest| {
        let end = rest.find('\'').unwrap_or(rest.len());
        rest[..end].contains(' ') && rest.len() - end <= 1
    })
}

pub(super) fn behind(info: &HolderInfo) -> String {
    let draining = if info.draining {
        ", which is stopping"
    } else {
        ""
    };
    if let Some(text) = &info.foreign {
        return format!(": {text}");
    }
    let is = |holder: &str| if holder.contains(", ") { "are" } else { "is" };
    match (&info.holder, info.token) {
        (Some(holder), Some(token)) => format!(": {holder} is in control, token {token}{draining}"),
        (Some(holder), None) => format!(": {holder} {} in control{draining}", is(holder)),
        (None, _) if info.draining => ": the holder is stopping".into(),
        (None, _) => ": another instance is in control".into(),
    }
}

/// Adds a hint if the holder runs another command: two jobs may share one lock by mistake.
pub(super) fn other_command(info: &HolderInfo, own: &str) -> String {
    let program = |command: &str| command.split(' ').next().unwrap_or_default().to_owned();
    match &info.command {
        // An election has no command.
        Some(theirs) if !own.starts_with("/proc/self/") && program(theirs) != program(own) => {
            format!(
                "; it runs another command ({}): give each its own lock",
                program(theirs)
            )
        }
        _ => String::new(),
    }
}

/// Rounds down, so that it never promises too much.
pub(crate) fn left(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(0);
    show(if span < Duration::from_secs(1) {
        Duration::from_millis(millis)
    } else {
        Duration::from_secs(span.as_secs())
    })
}

/// Describes when SIGKILL comes: after the `grace`, or at the `deadline` without a renewal.
pub(super) fn until_the_kill(grace: Option<Duration>, deadline: Option<Duration>) -> String {
    match (grace, deadline) {
        (None, None) => String::new(),
        // "In 0s" would read as still to come.
        (Some(Duration::ZERO), _) | (_, Some(Duration::ZERO)) => "; SIGKILL now".into(),
        (Some(grace), Some(deadline)) if deadline < grace => format!(
            "; SIGKILL in {}, or in {} if the lease is not renewed",
            left(grace),
            left(deadline)
        ),
        (Some(end), _) | (None, Some(end)) => format!("; SIGKILL in {}", left(end)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::happened;
    use super::*;
    use crate::clock::Instant;
    use crate::core::Notice;

    fn of_notice(notice: &Notice, now: Instant) -> (Level, String) {
        happened::of_notice(now, notice).line.unwrap()
    }

    fn ending(cause: Cause) -> Ending {
        Ending {
            cause,
            exit: None,
            overlap: false,
            released: true,
        }
    }

    #[test]
    fn other_command_of_the_holder_gets_a_hint_and_several_holders_a_plural() {
        let info = |command: &str| HolderInfo {
            holder: Some("web1, web2".into()),
            command: Some(command.into()),
            ..HolderInfo::default()
        };
        let said = reason(&Cause::NotObtained(info("./other -x")), "./job -y");
        assert!(said.contains("web1, web2 are in control"), "{said}");
        assert!(said.contains("another command (./other)"), "{said}");
        let said = reason(&Cause::NotObtained(info("./job -x")), "./job -y");
        assert!(!said.contains("another command"), "{said}");
    }

    #[test]
    fn command_that_ctrl_c_ended_is_no_warning() {
        let now = Instant::from_nanos(0);
        let ended = |signal| of_notice(&Notice::CommandEnded(Exit::Signal(signal)), now).0;
        assert_eq!(ended(libc::SIGINT), Level::INFO);
        assert_eq!(ended(libc::SIGSEGV), Level::WARN);
    }

    #[test]
    fn doubt_names_the_time_until_the_stop() {
        let now = Instant::from_nanos(5_000_000_000);
        let notice = Notice::Doubt {
            why: "timed out".into(),
            term_at: Some(now + Duration::from_millis(28_400)),
        };
        let (level, text) = of_notice(&notice, now);
        assert_eq!(level, Level::WARN);
        assert!(
            text.contains("timed out") && text.contains("in 28s"),
            "{text}"
        );
    }

    #[test]
    fn standby_names_the_holder_if_known() {
        let info = HolderInfo {
            holder: Some("web2-9".into()),
            token: Some(7),
            draining: true,
            ..HolderInfo::default()
        };
        let (_, text) = of_notice(&Notice::StandingBy(info), Instant::ZERO);
        assert_eq!(
            text,
            "standing by: web2-9 is in control, token 7, which is stopping"
        );
        let (_, text) = of_notice(&Notice::StandingBy(HolderInfo::default()), Instant::ZERO);
        assert_eq!(text, "standing by: another instance is in control");
    }

    #[test]
    fn drain_names_the_end_of_its_grace_and_an_earlier_end_of_the_lease() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (grace, deadline, text) in [
            (None, None, ""),
            (seconds(30), None, "; SIGKILL in 30s"),
            (None, seconds(10), "; SIGKILL in 10s"),
            (seconds(10), seconds(30), "; SIGKILL in 10s"),
            (
                seconds(30),
                seconds(10),
                "; SIGKILL in 30s, or in 10s if the lease is not renewed",
            ),
            (seconds(30), seconds(0), "; SIGKILL now"),
        ] {
            assert_eq!(until_the_kill(grace, deadline), text);
        }
    }

    #[test]
    fn last_line_has_the_reason_and_the_exit_status() {
        let line = |cause| of_ending(&ending(cause), ExitAction::Status(70), "job");
        let (level, text) = line(Cause::Lost {
            why: "broken".into(),
        })
        .unwrap();
        assert_eq!(
            (level, &*text),
            (Level::ERROR, "the lease was lost: broken; exit status 70")
        );
        assert_eq!(line(Cause::CommandEnded), None);
        let mut overlap = ending(Cause::CommandEnded);
        overlap.overlap = true;
        let (level, text) = of_ending(&overlap, ExitAction::Status(71), "job").unwrap();
        assert!(level == Level::ERROR && text.contains("at the same time") && text.contains("71"));
    }

    #[test]
    fn pauses_are_reported_with_time_and_reason() {
        let now = Instant::from_nanos(5_000_000_000);
        let until = now + Duration::from_secs(8);
        let said = |notice| of_notice(&notice, now);
        let (level, text) = said(Notice::BackingOff { until, number: 4 });
        assert_eq!(level, Level::INFO);
        assert!(text.contains("in 8s (restart 4)"), "{text}");
        let (_, text) = said(Notice::Keeping { until });
        assert_eq!(text, "keeping the lock for 8s (--min-hold)");
        let (_, text) = said(Notice::CoolingDown { until });
        assert_eq!(text, "cooling down for 8s before competing again");
        let (level, text) = said(Notice::RestartsSpent);
        assert!(level == Level::WARN && text.contains("--restart-limit"));
        let (level, text) = said(Notice::Draining(Cause::HandOver));
        assert!(level == Level::INFO && text.contains("--max-hold"));
    }

    #[test]
    fn finished_task_is_reported_with_its_holder_and_result() {
        let over = |status| {
            ending(Cause::AlreadyDone(crate::core::TaskResult {
                status,
                holder: "web2-9".into(),
                at: "2026-01-01T00:00:00Z".into(),
                token: 7,
            }))
        };
        assert_eq!(
            of_ending(&over(0), ExitAction::Status(0), "job").unwrap(),
            (
                Level::INFO,
                "already done by web2-9 at 2026-01-01T00:00:00Z, token 7".into()
            )
        );
        let (level, text) = of_ending(&over(3), ExitAction::Status(3), "job").unwrap();
        assert!(
            level == Level::ERROR && text.contains("failed for good"),
            "{text}"
        );
        assert!(text.ends_with("token 7; exit status 3"), "{text}");
    }

    #[test]
    fn unrecorded_result_is_reported_as_able_to_run_again() {
        let why = "503".to_owned();
        let (level, text) = of_ending(
            &ending(Cause::NotRecorded { why }),
            ExitAction::Status(70),
            "job",
        )
        .unwrap();
        assert_eq!(level, Level::ERROR);
        assert!(
            text.contains("503") && text.contains("can run again"),
            "{text}"
        );
        assert!(text.ends_with("exit status 70"), "{text}");
    }

    #[test]
    fn conflict_status_0_gives_no_error_line() {
        let cause = || ending(Cause::NotObtained(HolderInfo::default()));
        assert_eq!(
            of_ending(&cause(), ExitAction::Status(0), "job").unwrap().0,
            Level::INFO
        );
        assert_eq!(
            of_ending(&cause(), ExitAction::Status(75), "job")
                .unwrap()
                .0,
            Level::ERROR
        );
    }

    #[test]
    fn command_that_cannot_run_is_named_with_advice() {
        for (errno, words) in [
            (libc::ENOENT, ["No such file", "PATH"]),
            (libc::EACCES, ["Permission denied", "executable"]),
            (libc::ENOEXEC, ["format", "#!"]),
            (libc::E2BIG, ["too long", "nothing was run"]),
        ] {
            let text = reason(&Cause::NotStarted { errno }, "./job -x");
            assert!(text.starts_with("cannot run ./job -x: "), "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn line_for_a_shell_is_distinguished_from_a_missing_program() {
        let said = |command| {
            reason(
                &Cause::NotStarted {
                    errno: libc::ENOENT,
                },
                command,
            )
        };
        for command in ["'echo hi'", r"'echo '\''a b'\'''", "'echo a | cat"] {
            assert!(
                said(command).ends_with(&format!("-- sh -c {command}")),
                "{command}"
            );
        }
        for command in ["echo", "'my program' -x", "echo 'a b'", "'a|b'", "'' ''"] {
            assert!(
                said(command).contains("check the name and PATH"),
                "{command}"
            );
        }
        assert!(said("10.0.0.4 -- ./job").contains("with '='"));
        assert!(said("[::1]:7000 -v -- ./job").contains("with '='"));
        assert!(said("512 -- ./job").contains("with '='"));
        let denied = reason(
            &Cause::NotStarted {
                errno: libc::EACCES,
            },
            "'echo hi'",
        );
        assert!(!denied.contains("sh -c"), "{denied}");
    }
}
