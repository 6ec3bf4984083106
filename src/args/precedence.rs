//! What is typed beats what the environment says, for settings that exclude each other as well: the
//! one from the environment is as if it were not set.
//!
//! Called by the parser. Two that were both typed, or both set by variables, are left for the plan to
//! refuse. It must never drop what was typed.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Settings, by their ids; with values only those values of them count.
struct Of(&'static [&'static str], &'static [&'static str]);

const ANY: &[&str] = &[];
const ONCE: Of = Of(&["once", "once_key", "once_per"], ANY);
const RESTARTS: Of = Of(&["restart"], &["on-failure", "always"]);

/// Those that cannot both be.
const RIVALS: &[(Of, Of)] = &[
    (Of(&["blob"], ANY), Of(&["file"], ANY)),
    (Of(&["no_wait"], ANY), Of(&["wait"], ANY)),
    (Of(&["quiet"], ANY), Of(&["verbose"], ANY)),
    (Of(&["no_create"], ANY), Of(&["page_blob"], ANY)),
    (ONCE, RESTARTS),
    (ONCE, Of(&["max_hold", "min_hold", "slots"], ANY)),
    (ONCE, Of(&["max_messages", "concurrency"], ANY)),
    (
        Of(&["once_on_failure"], &["stop"]),
        Of(&["once_attempts"], ANY),
    ),
    (Of(&["restart"], &["always"]), Of(&["min_hold"], ANY)),
    (Of(&["queue"], ANY), Of(&["service_bus"], ANY)),
    (Of(&["all"], ANY), Of(&["once_key"], ANY)),
];

/// What has no meaning with the first; typed itself, it does not make the first go.
const MEANINGLESS: &[(Of, Of)] = &[
    // The last is gone, and told of where there is a file.
    (Of(&["blob"], ANY), Of(&["shared", "heartbeat"], ANY)),
    (
        Of(&["file"], ANY),
        Of(
            &["emulator", "auth", "ca_file", "no_create", "page_blob"],
            ANY,
        ),
    ),
    (
        Of(&["queue"], ANY),
        Of(&["dead_letter_queue", "connection_string_env"], ANY),
    ),
    (
        Of(&["service_bus"], ANY),
        Of(&["create", "emulator", "poison_queue", "encoding"], ANY),
    ),
    (
        Of(&["dead_letter_queue"], ANY),
        Of(&["max_attempts", "dead_letter_exit"], ANY),
    ),
    (
        Of(&["restart"], &["never"]),
        Of(&["restart_limit", "restart_window"], ANY),
    ),
];

/// The settings of `command` that have to be parsed again without their variables.
pub(super) fn beaten(command: &Command, matches: &ArgMatches) -> Vec<&'static str> {
    let from = |id: &str, values: &[&str], source: ValueSource| {
        let is_there = command.get_arguments().any(|arg| arg.get_id() == id);
        let counts = |value: &std::ffi::OsStr| values.iter().any(|one| value == *one);
        is_there
            && matches.value_source(id) == Some(source)
            && (values.is_empty()
                || matches
                    .get_raw(id)
                    .is_some_and(|mut raw| raw.next_back().is_some_and(counts)))
    };
    let mut beaten = Vec::new();
    let mut judge = |typed: &Of, other: &Of| {
        let by = |id: &&str| from(id, typed.1, ValueSource::CommandLine);
        if typed.0.iter().any(by) {
            let set = |id: &&&str| from(id, other.1, ValueSource::EnvVariable);
            beaten.extend(other.0.iter().filter(set).copied());
        }
    };
    for (one, other) in RIVALS {
        judge(one, other);
        judge(other, one);
    }
    for (typed, other) in MEANINGLESS {
        judge(typed, other);
    }
    beaten
}

/// The same command, to which these variables say nothing.
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
        for (one, other) in RIVALS.iter().chain(MEANINGLESS) {
            for id in one.0.iter().chain(other.0) {
                let known = |verb: &&Command| verb.get_arguments().any(|arg| arg.get_id() == id);
                assert!(verbs.iter().any(known), "{id}");
            }
        }
    }
}
