//! Precedence of flags over variables: a flag also beats the variable of a setting that excludes it.
//!
//! `config` refuses two such flags, or two such variables. It must never drop a typed flag.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::values::is_https;

/// Settings that exclude each other, by id; with `=VALUE` only for that value, with `!=VALUE` for any other.
const RIVALS: &[(&str, &str)] = &[
    ("blob", "file"),
    ("no_wait", "wait"),
    ("quiet", "verbose"),
    ("no_create", "page_blob"),
    (ONCE, "restart=on-failure restart=always"),
    (ONCE, "max_hold min_hold slots!=1"),
    (ONCE, "max_messages!=1 concurrency!=1"),
    ("once_on_failure=stop", "once_attempts"),
    ("restart=always", "min_hold"),
    ("queue", "service_bus"),
    ("sessions", "dead_letter_queue link_settle"),
    ("sessions", "at_most_once"),
    ("all", "once_key"),
];
const ONCE: &str = "once once_key once_per";

/// Settings without a meaning beside the first. If typed, they do not remove the first.
const MEANINGLESS: &[(&str, &str)] = &[
    ("blob", "shared mkdir_is_exclusive"),
    ("file", "emulator auth ca_file no_create page_blob"),
    ("queue", "dead_letter_queue connection_string_env sessions"),
    ("service_bus", "create emulator poison_queue encoding"),
    ("dead_letter_queue", "max_attempts dead_letter_exit"),
    (
        "at_most_once",
        "retry_delay dead_letter_exit retry_exit renew_at",
    ),
    ("restart=never", "restart_limit restart_window"),
];

/// Details of one of the first: they are removed with the last of those that was set.
const DETAILS: &[(&str, &str)] = &[
    (ONCE, "once_on_failure once_attempts"),
    ("restart", "restart_limit restart_window"),
    (
        "max_hold restart watchdog health on_acquire once once_key once_per",
        "cooldown",
    ),
    ("sessions", "session_idle session_messages lock_delay"),
];

/// Returns the id, and the value that the row is about: this one, or any other.
fn split(setting: &str) -> (&str, Option<(bool, &str)>) {
    if let Some((id, value)) = setting.split_once("!=") {
        return (id, Some((false, value)));
    }
    match setting.split_once('=') {
        Some((id, value)) => (id, Some((true, value))),
        None => (setting, None),
    }
}

/// Returns the settings of `command` to parse again without their variables.
pub(super) fn beaten(command: &Command, matches: &ArgMatches) -> Vec<&'static str> {
    let is_from = |setting: &str, source: ValueSource| {
        let (id, wanted) = split(setting);
        let is_there = command.get_arguments().any(|arg| arg.get_id() == id);
        // The last of a repeated flag counts here, too.
        let last = || matches.get_raw(id)?.next_back();
        is_there
            && matches.value_source(id) == Some(source)
            && wanted.is_none_or(|(equal, wanted)| {
                last().is_some_and(|value| (value == wanted) == equal)
            })
    };
    let mut beaten = Vec::new();
    let mut judge = |typed: &str, other: &'static str| {
        let by = |setting| is_from(setting, ValueSource::CommandLine);
        if typed.split(' ').any(by) {
            let set = |setting: &&str| is_from(setting, ValueSource::EnvVariable);
            beaten.extend(other.split(' ').filter(set).map(|setting| split(setting).0));
        }
    };
    // A flag on either side beats the variable on the other.
    for (one, other) in RIVALS {
        judge(one, other);
        judge(other, one);
    }
    for (typed, other) in MEANINGLESS {
        judge(typed, other);
    }
    // An https server needs --ca-file, whatever the lock is on.
    let has_health = command.get_arguments().any(|arg| arg.get_id() == "health");
    let health = has_health.then(|| matches.get_raw("health")?.next_back());
    if health.flatten().is_some_and(is_https) {
        beaten.retain(|id| *id != "ca_file");
    }
    for (of, details) in DETAILS {
        let is_set = |id: &&str| {
            is_from(id, ValueSource::CommandLine) || is_from(id, ValueSource::EnvVariable)
        };
        let (gone, left): (Vec<&str>, Vec<&str>) = of
            .split(' ')
            .filter(is_set)
            .partition(|id| beaten.contains(id));
        if left.is_empty() && !gone.is_empty() {
            let set = |id: &&str| is_from(id, ValueSource::EnvVariable);
            beaten.extend(details.split(' ').filter(set));
        }
    }
    beaten
}

/// Returns the command without these variables.
pub(super) fn without_variables(command: Command, of: &[&str]) -> Command {
    command.mut_args(|arg| {
        if of.contains(&arg.get_id().as_str()) {
            arg.env(None::<&'static str>)
        } else {
            arg
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_about_settings_that_there_are() {
        let definition = super::super::definition();
        let verbs: Vec<&Command> = definition.get_subcommands().collect();
        for (one, other) in RIVALS.iter().chain(MEANINGLESS).chain(DETAILS) {
            for id in one
                .split(' ')
                .chain(other.split(' '))
                .map(|one| split(one).0)
            {
                let known = |verb: &&Command| verb.get_arguments().any(|arg| arg.get_id() == id);
                assert!(verbs.iter().any(known), "{id}");
            }
        }
    }
}
