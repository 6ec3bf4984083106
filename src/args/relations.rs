//! Relations between flags, each in one row with two uses: a typed flag beats the variables that it excludes, and
//! what still contradicts is refused. It must never drop a typed flag.
//!
//! clap's `conflicts_with` and `requires` do not fit: they know no relation with a flag's value, they count a
//! variable that is `false`, and their error comes before a typed flag has beaten a variable.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::Rows;
use super::usage::one_of;
use super::values::is_https;

/// Settings that exclude each other, by id, and why: one of the first with one of the others. `ID=VALUE` is only that
/// value, `ID!=VALUE` any other.
const RIVALS: Rows<'_> = rows! {
    "blob | file store" => "name exactly one lock",
    "file | store" => "name exactly one lock",
    "no_wait | wait" => "choose one",
    "quiet | verbose" => "choose one",
    "no_create | page_blob" => "choose one",
    "once once_key once_per | restart=on-failure restart=always" =>
        "the next candidate runs a failed task, and a success ends it: leave --restart out (--once-attempts limits \
        the runs)",
    "once once_key once_per | max_hold" => "an interrupted run is never done: leave --max-hold out",
    "once once_key once_per | min_hold" =>
        "the recorded result already keeps late machines from running the command: leave --min-hold out",
    "once once_key once_per | slots!=1" =>
        "N slots are N separate locks, so the task would run N times: leave --slots out",
    "once | max_messages!=1" => "choose one",
    "once | concurrency!=1" => "one message is one command at a time: choose one",
    "once_on_failure=stop | once_attempts!=1" => "choose one",
    "restart=always | min_hold" =>
        "a command that is always restarted never ends, so the lock is kept anyway: leave --min-hold out",
    "queue | service_bus" => "choose one queue",
    "sessions | dead_letter_queue" => "dead letters come in no order: leave --sessions out",
    "sessions | link_settle" =>
        "messages of sessions are settled by their lock token: leave --link-settle out",
    "sessions | at_most_once" =>
        "the message is deleted before its command ends, so the session's next message could overtake it: leave one \
        out",
    "all | once_key" => "leave one out",
};

/// Settings of which the others have no meaning beside the first, and why. The others, if typed, beat no variable.
const MEANINGLESS: Rows<'_> = rows! {
    "blob store | shared mkdir_is_exclusive" => "it is for a lock on a file: leave it out",
    "file store | emulator auth!=auto ca_file no_create page_blob" => "it is for a lock on a blob: leave it out",
    "queue | dead_letter_queue connection_string_env sessions" =>
        "a storage queue has no such setting, --service-bus has: leave it out",
    "service_bus | create" =>
        "creating a queue needs the right to manage the namespace: create it with 'az servicebus queue create'",
    "service_bus | emulator" =>
        "that is the storage emulator: write UseDevelopmentEmulator=true in the connection string",
    "service_bus | poison_queue" =>
        "dead-lettered messages go to the queue's own dead-letter queue: leave it out",
    "service_bus | encoding" => "its messages are bytes, and the command gets them unchanged: leave it out",
    "dead_letter_queue | max_attempts dead_letter_exit" =>
        "its messages cannot be dead-lettered again: leave it out",
    "at_most_once | retry_delay dead_letter_exit retry_exit renew_at" =>
        "the message is gone before its command starts: leave it out",
    "restart=never | restart_limit restart_window" => "nothing is restarted: leave it out",
};

/// Details, and the settings of which one must be set: with the last of these, details are removed, too.
const DETAILS: Rows<'_> = rows! {
    "once_on_failure once_attempts" => "once once_key once_per",
    "restart_limit restart_window" => "restart!=never",
    // Otherwise the instance ends with its command, and nothing cools down.
    "cooldown" => "max_hold restart!=never watchdog health on_acquire once once_key once_per",
    "session_idle session_messages lock_delay" => "sessions",
    "health_every health_timeout health_failures health_delay" => "health",
    "watchdog_start" => "watchdog",
    // A user who sets these expects notices; without them the machine would be frozen unannounced.
    "ack_events vm_name" => "scheduled_events",
    "listen_any" => "listen",
};

fn exclusions(
    rows: Rows<'static>,
) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    rows.iter().filter_map(|(pair, why)| {
        let (one, other) = pair.split_once(" | ")?;
        Some((one, other, *why))
    })
}

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

/// Returns the setting as it is typed: `--restart always`, or `--slots` for any value but one.
fn spelt(setting: &str) -> String {
    let flag = |id: &str| format!("--{}", id.replace('_', "-"));
    match split(setting) {
        (id, Some((true, value))) => format!("{} {value}", flag(id)),
        (id, _) => flag(id),
    }
}

/// A verb's definition, and what was given to it.
pub(super) struct Given<'a> {
    verb: &'a Command,
    matches: &'a ArgMatches,
}

impl<'a> Given<'a> {
    pub(super) fn new(command: &'a Command, matches: &'a ArgMatches) -> Given<'a> {
        let typed = matches.subcommand();
        let typed = typed.and_then(|(name, typed)| Some((command.find_subcommand(name)?, typed)));
        let (verb, matches) = typed.unwrap_or((command, matches));
        Given { verb, matches }
    }

    fn has(&self, id: &str) -> bool {
        self.verb.get_arguments().any(|arg| arg.get_id() == id)
    }

    /// Returns where the setting came from, if it was given and has its row's value.
    fn source(&self, setting: &str) -> Option<ValueSource> {
        let (id, wanted) = split(setting);
        if !self.matches.ids().any(|given| given == id) {
            return None;
        }
        // The last of a repeated flag counts here, too.
        let last = self.matches.get_raw(id)?.next_back()?;
        let is_meant = wanted.is_none_or(|(equal, wanted)| (last == wanted) == equal);
        // A variable can be `false`.
        let flag = self.matches.try_get_one(id);
        let is_off = flag.is_ok_and(|flag| flag == Some(&false));
        if !is_meant || is_off || id == "ca_file" && !self.is_ca_file_for_the_lock() {
            return None;
        }
        let source = self.matches.value_source(id);
        source.filter(|source| *source != ValueSource::DefaultValue)
    }

    /// Returns whether no https server needs --ca-file. A verb without --health may share a unit's variables.
    fn is_ca_file_for_the_lock(&self) -> bool {
        let is_asked_by_https = || {
            let health = self.matches.get_raw("health");
            health.and_then(Iterator::last).is_some_and(is_https)
        };
        self.has("health") && !is_asked_by_https()
    }

    fn from(&self, source: ValueSource, settings: &'static str) -> Vec<&'static str> {
        let settings = settings.split(' ');
        let given = settings.filter(|setting| self.source(setting) == Some(source));
        given.map(|setting| split(setting).0).collect()
    }

    /// Returns the settings to parse again without their variables.
    pub(super) fn beaten(&self) -> Vec<&'static str> {
        use ValueSource::{CommandLine, EnvVariable};
        let mut beaten = Vec::new();
        let mut judge = |typed, other| {
            if !self.from(CommandLine, typed).is_empty() {
                beaten.extend(self.from(EnvVariable, other));
            }
        };
        // A flag on either side beats the variable on the other.
        for (one, other, _) in exclusions(RIVALS) {
            judge(one, other);
            judge(other, one);
        }
        for (typed, other, _) in exclusions(MEANINGLESS) {
            judge(typed, other);
        }
        for (details, of) in DETAILS {
            let set = [CommandLine, EnvVariable]
                .map(|source| self.from(source, of))
                .concat();
            if !set.is_empty() && set.iter().all(|id| beaten.contains(id)) {
                beaten.extend(self.from(EnvVariable, details));
            }
        }
        beaten
    }

    pub(super) fn refusal(&self) -> Option<String> {
        let given = |settings: &'static str| {
            let mut settings = settings.split(' ');
            settings
                .find(|setting| self.source(setting).is_some())
                .map(spelt)
        };
        for (one, other, why) in exclusions(RIVALS).chain(exclusions(MEANINGLESS)) {
            if let (Some(one), Some(other)) = (given(one), given(other)) {
                return Some(format!("{other} cannot be used with {one}: {why}"));
            }
        }
        for (details, of) in DETAILS {
            if let (Some(detail), None) = (given(details), given(of)) {
                let of = of.split(' ').filter(|setting| self.has(split(setting).0));
                let of: Vec<String> = of.map(spelt).collect();
                let add = if of.len() == 1 { "it" } else { "one of them" };
                let of = one_of(&of);
                return Some(format!(
                    "{detail} has no meaning without {of}: add {add}, or leave {detail} out"
                ));
            }
        }
        None
    }
}

pub(super) fn without_variables(command: Command, of: &[&str]) -> Command {
    let without = |arg: Arg| match of.contains(&arg.get_id().as_str()) {
        true => arg.env(None::<&'static str>),
        false => arg,
    };
    let command = command.mut_args(without);
    command.mut_subcommands(|verb| verb.mut_args(without))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_about_settings_that_there_are() {
        let definition = super::super::definition();
        let verbs: Vec<&Command> = definition.get_subcommands().collect();
        let mut rows = RIVALS.iter().chain(MEANINGLESS);
        assert!(rows.all(|(pair, _)| pair.split(" | ").count() == 2));
        let excluded = exclusions(RIVALS).chain(exclusions(MEANINGLESS));
        let pairs = excluded.map(|(one, other, _)| (one, other));
        for (one, other) in pairs.chain(DETAILS.iter().copied()) {
            for setting in one.split(' ').chain(other.split(' ')) {
                let (id, _) = split(setting);
                let flag = spelt(id);
                let is_it = |arg: &Arg| arg.get_id() == id && arg.get_long() == Some(&flag[2..]);
                let known = |verb: &&Command| verb.get_arguments().any(is_it);
                assert!(verbs.iter().any(known), "{id}");
            }
        }
    }
}
