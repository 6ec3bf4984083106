//! Errors of clap in the form of all other refusals: one line with the mistake and the remedy. It must never
//! print, nor repeat the query of a URL.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::definition;
use crate::exit::UsageError;
use crate::report::Format;

/// Length at which a typed word is cut, in characters.
const SHOWN: usize = 60;

/// Returns the mistake in this line, the program's name first; `None` if it asks for help or the version, or is
/// the name alone.
#[must_use]
pub fn refusal(error: &clap::Error, line: &[OsString]) -> Option<UsageError> {
    let is_alone = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_alone || !error.use_stderr() {
        return None;
    }
    let whole = definition();
    let verb = line.get(1).and_then(|word| whole.find_subcommand(word));
    let name = verb.map_or("trafficcop", Command::get_name);
    let help = match verb {
        Some(verb) => format!("try 'trafficcop {} --help'", verb.get_name()),
        None => "try 'trafficcop --help'".to_owned(),
    };
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        Some(ContextValue::Strings(texts)) => texts.first().map_or("", String::as_str),
        _ => "",
    };
    let typed = shown(said(ContextKind::InvalidArg)).replace(['<', '>'], "");
    let flag = typed.split(' ').next().unwrap_or_default();
    let value = shown(said(ContextKind::InvalidValue));
    let what = match error.kind() {
        ErrorKind::UnknownArgument if flag.starts_with('-') => match verb {
            Some(verb) => unknown_flag(verb, flag),
            None => unknown_flag_of_no_verb(&whole, flag),
        },
        ErrorKind::UnknownArgument => unknown_word(verb.unwrap_or(&whole), &typed),
        ErrorKind::InvalidSubcommand => {
            let verb = said(ContextKind::InvalidSubcommand);
            let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
            let near = nearest(verb, verbs.map(Command::get_name));
            let verb = shown(verb);
            match near {
                Some(near) => format!("there is no command '{verb}': did you mean '{near}'?"),
                None => match INSTEAD.iter().find(|(words, _)| words.contains(&&*verb)) {
                    Some((_, instead)) => format!("there is no command '{verb}': {instead}"),
                    None => format!("there is no command '{verb}'"),
                },
            }
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            let example = match typed.strip_suffix(" D") {
                Some(flag) => format!("{flag} 10s"),
                None => typed.clone(),
            };
            format!("{flag} needs a value, as in '{example}'")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let takes = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(values)) => one_of(values),
                // clap itself parses only flags without a value.
                _ => "true or false".to_owned(),
            };
            match variable(verb, flag, line) {
                Some(name) => format!("{name}={value}: take {takes}"),
                None => format!("{flag} {value}: take {takes}"),
            }
        }
        ErrorKind::TooManyValues => format!("{flag} takes no value: leave '={value}' out"),
        ErrorKind::ArgumentConflict => {
            let refusal = UsageError::new(first_line(error));
            return Some(with_variables(refusal, line, |name| std::env::var_os(name)));
        }
        ErrorKind::MissingRequiredArgument => format!("{name} needs {typed}"),
        ErrorKind::InvalidUtf8 => {
            let what = if typed.is_empty() { "a value" } else { &typed };
            format!("{what} is not UTF-8: only paths and the command may be other bytes")
        }
        _ => first_line(error),
    };
    Some(UsageError::new(match what.ends_with('?') {
        true => format!("{what} (or {help})"),
        // One advice is enough.
        false if INSTEAD.iter().any(|(_, instead)| what.ends_with(instead)) => what,
        false => format!("{what}: {help}"),
    }))
}

pub(super) fn one_of(values: &[String]) -> String {
    match values {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => values.concat(),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}

fn unknown_flag(verb: &Command, flag: &str) -> String {
    let flags = verb.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags: Vec<String> = flags
        .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
        .collect();
    let name = verb.get_name();
    let takes_command = verb
        .get_arguments()
        .any(|arg| arg.get_id() == "command" && !arg.is_hide_set());
    match nearest(flag, flags.iter().map(String::as_str)) {
        Some(near) => format!("{name} has no flag '{flag}': did you mean '{near}'?"),
        None if takes_command => {
            format!("{name} has no flag '{flag}' (a command's own flags come after it)")
        }
        None => format!("{name} has no flag '{flag}'"),
    }
}

fn unknown_flag_of_no_verb(whole: &Command, flag: &str) -> String {
    let of_run = whole.find_subcommand("run");
    let mut flags = of_run.into_iter().flat_map(Command::get_arguments);
    let is_it = |arg: &clap::Arg| {
        let is_long = arg
            .get_long()
            .is_some_and(|long| flag == format!("--{long}"));
        is_long
            || arg
                .get_short()
                .is_some_and(|short| flag.starts_with(&format!("-{short}")))
    };
    if flags.any(is_it) {
        return format!(
            "no command before '{flag}': flags come after it, as in 'trafficcop run {flag} ...'"
        );
    }
    match nearest(flag, ["--help", "--version"].into_iter()) {
        Some(near) => format!("trafficcop has no flag '{flag}': did you mean '{near}'?"),
        None => format!("trafficcop has no flag '{flag}' before a command"),
    }
}

fn unknown_word(verb: &Command, word: &str) -> String {
    let has = |flag| verb.get_arguments().any(|arg| arg.get_long() == Some(flag));
    let name = verb.get_name();
    match has("file") && has("blob") {
        true => format!(
            "{name} takes no '{word}': put --file, --blob or --store before it, as in '--file {word}'"
        ),
        false => format!("{name} takes no '{word}'"),
    }
}

/// Returns the variable that set this flag, if it was not typed.
fn variable(verb: Option<&Command>, flag: &str, line: &[OsString]) -> Option<String> {
    let long = flag.strip_prefix("--")?;
    let mut args = verb?.get_arguments();
    let arg = args.find(|arg| arg.get_long() == Some(long))?;
    let variable = arg.get_env()?;
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let is_short = short.is_some_and(|rest| arg.get_short().is_some_and(|c| rest.contains(c)));
        is_short || word == flag || word.starts_with(&format!("{flag}="))
    };
    let was_typed = line.iter().take_while(|word| *word != "--").any(is_it);
    (!was_typed).then(|| variable.to_string_lossy().into_owned())
}

/// Adds the variables of flags that were not typed: their user would look for `--listen x` in the wrong place.
#[must_use]
pub fn with_variables(
    refusal: UsageError,
    line: &[OsString],
    value: impl Fn(&str) -> Option<OsString>,
) -> UsageError {
    let whole = definition();
    let Some(verb) = line.get(1).and_then(|word| whole.find_subcommand(word)) else {
        return refusal;
    };
    let text = refusal.to_string();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let mut set: Vec<String> = words
        .filter_map(|flag| variable(Some(verb), flag, line))
        .filter(|name| value(name).is_some_and(|value| !value.is_empty()))
        .filter(|name| !text.contains(name))
        .collect();
    set.sort();
    set.dedup();
    match &set[..] {
        [] => refusal,
        [one] => refusal.and(&format!(" ({one} is set)")),
        many => refusal.and(&format!(" ({} are set)", many.join(", "))),
    }
}

/// Cuts a typed word so that it fits into a line and shows no secret.
fn shown(word: &str) -> String {
    // A URL's query is a secret.
    let open = word.split('?').next().unwrap_or_default();
    open.chars().take(SHOWN).collect()
}

/// Flags of other tools (flock, timeout, consul lock, ...), and their names here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("--lock", "--file"),
    ("--lock-file", "--file"),
    ("--lockfile", "--file"),
    ("--path", "--file"),
    ("--nb", "--no-wait"),
    ("--nonblock", "--no-wait"),
    ("--ttl", "--lease"),
    ("--interval", "--poll"),
    ("--visibility-timeout", "--lock-time"),
    ("worker", "work"),
    ("--kill-after", "--grace"),
    ("--signal", "--stop-signal"),
    ("exec", "run"),
    ("flock", "run"),
    ("lock", "run"),
    ("start", "run"),
    ("ls", "list"),
];

const INSTEAD: &[(&[&str], &str)] = &[
    (&["version"], "'trafficcop --version' prints it"),
    (
        &["unlock", "release", "free"],
        "a lock ends with its holder, which 'trafficcop status' names; 'trafficcop break' ends a lease",
    ),
    (
        &["stop", "kill"],
        "'trafficcop status' names the holder: send its process SIGTERM, or end its lease with 'trafficcop break'",
    ),
];

/// Returns the probable intention: another name, the fewest slips, or a word too many (`--lease-time`) or too
/// few.
///
/// clap's own guess takes `--lock` for `--log`, and `--path` for `--auth`.
fn nearest<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let candidates: Vec<&str> = candidates.collect();
    let elsewhere = ELSEWHERE.iter().find(|(theirs, _)| *theirs == typed);
    let same = elsewhere.filter(|(_, ours)| candidates.contains(ours));
    if let Some((_, ours)) = same {
        return Some((*ours).to_owned());
    }
    let letters: String = typed.chars().take(SHOWN).collect();
    // Two letters that changed places are one slip: `rnu` is `run`.
    let near = candidates
        .iter()
        .map(|one| (strsim::osa_distance(&letters, one), *one));
    let (slips, candidate) = near.min_by_key(|(slips, _)| *slips)?;
    // Of three letters one may be wrong; dashes are no letters.
    if slips * 3 <= candidate.trim_start_matches('-').len() {
        return Some(candidate.to_owned());
    }
    let is_begun = |long: &str, short: &str| {
        let rest = long.strip_prefix(short);
        rest.is_some_and(|rest| rest.starts_with('-'))
    };
    let mut begun = candidates
        .iter()
        .filter(|one| is_begun(typed, one) || is_begun(one, typed));
    let first = begun.next()?;
    begun.next().is_none().then(|| (*first).to_owned())
}

/// Returns the log format for a line that could not be parsed.
#[must_use]
pub fn log_format(line: &[OsString], variable: Option<OsString>) -> Format {
    let words = line.iter().take_while(|word| *word != "--");
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let mut typed = words
        .iter()
        .enumerate()
        .filter_map(|(at, word)| match &**word {
            "--log" => words.get(at + 1).map(|next| next.to_string()),
            word => word.strip_prefix("--log=").map(str::to_owned),
        });
    let variable = variable.map(|value| value.to_string_lossy().into_owned());
    match typed.next_back().or(variable).as_deref() {
        Some("json") => Format::Json,
        _ => Format::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from);
        let line: Vec<OsString> = [OsString::from("trafficcop")]
            .into_iter()
            .chain(words)
            .collect();
        let error = super::super::parse(line.clone()).expect_err("it is wrong");
        refusal(&error, &line).expect("a refusal").to_string()
    }

    #[test]
    fn mistyped_flag_gets_a_suggestion() {
        for (line, words) in [
            ("rnu --file x -- true", ["'rnu'", "did you mean 'run'?"]),
            ("stauts --file x", ["'stauts'", "did you mean 'status'?"]),
            (
                "run --leese 30s",
                ["run has no flag '--leese'", "did you mean '--lease'?"],
            ),
            ("run --ocne", ["'--ocne'", "did you mean '--once'?"]),
            ("list --jsn", ["list has no flag", "did you mean '--json'?"]),
            ("--verson", ["'--verson'", "did you mean '--version'?"]),
            ("help rum", ["'rum'", "did you mean 'run'?"]),
            ("run --lock x", ["'--lock'", "did you mean '--file'?"]),
            ("lock --file x", ["'lock'", "did you mean 'run'?"]),
            ("run --nb", ["'--nb'", "did you mean '--no-wait'?"]),
            ("run --lease-time 5", ["'--lease-time'", "'--lease'?"]),
            (
                "run --scheduled",
                ["'--scheduled'", "'--scheduled-events'?"],
            ),
            (
                "--file x -- true",
                ["no command before '--file'", "'trafficcop run --file ...'"],
            ),
        ] {
            let said = said(line);
            assert!(
                words.iter().all(|word| said.contains(word)),
                "{line}: {said}"
            );
            assert!(!said.contains('\n'), "{said}");
        }
        for line in [
            "frobnicate",
            "run --xyzzy",
            "--xyzzy",
            "run -x",
            "run --force",
            "run --format x",
            "run --version",
            "timeline --lock x",
            "delete",
        ] {
            let said = said(line);
            assert!(!said.contains("did you mean"), "{line}: {said}");
            assert!(said.contains("--help'"), "{line}: {said}");
        }
    }

    #[test]
    fn every_refusal_of_clap_says_what_to_do() {
        for (line, words) in [
            ("run --file", ["--file needs a value", "'--file PATH'"]),
            (
                "run --restart often",
                ["--restart often", "take never, on-failure or always"],
            ),
            ("run --no-wait=yes", ["--no-wait takes no value", "'=yes'"]),
            (
                "completions",
                ["completions needs SHELL", "'trafficcop completions --help'"],
            ),
            ("completions tcsh", ["tcsh", "bash, elvish, fish"]),
            ("status /tmp/x", ["'/tmp/x'", "'--file /tmp/x'"]),
            ("version", ["'version'", "'trafficcop --version'"]),
            ("unlock x", ["'unlock'", "'trafficcop break'"]),
            ("stop", ["'stop'", "SIGTERM"]),
            ("kill 1", ["'kill'", "SIGTERM"]),
            ("start x", ["'start'", "did you mean 'run'?"]),
            (
                "check now",
                ["check takes no 'now'", "'trafficcop check --help'"],
            ),
            ("run --xyzzy", ["run has no flag", "a command's own flags"]),
        ] {
            let said = said(line);
            assert!(
                words.iter().all(|word| said.contains(word)),
                "{line}: {said}"
            );
        }
        let secret = said("status https://a.blob.core.windows.net/c/b?sv=1&sig=SECRET");
        assert!(!secret.contains("SECRET"), "{secret}");
    }

    #[test]
    fn a_refusal_names_the_variable_of_a_flag_that_nobody_typed() {
        let said = |line: &str, text: &str, set: &[&str]| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let value = |name: &str| set.contains(&name).then(|| "x".into());
            with_variables(UsageError::new(text), &line, value).to_string()
        };
        let text = "--listen x: take an address";
        let set = ["TRAFFICCOP_LISTEN"];
        let with = format!("{text} (TRAFFICCOP_LISTEN is set)");
        assert_eq!(said("t run -n -- job --listen", text, &set), with);
        assert_eq!(said("t run -- job", text, &[]), text);
        for typed in ["--listen y", "--listen=y"] {
            assert_eq!(said(&format!("t run {typed} -- job"), text, &set), text);
        }
        let both = "--no-wait and --poll contradict each other, --wait does not";
        let set = ["TRAFFICCOP_NO_WAIT", "TRAFFICCOP_POLL", "TRAFFICCOP_WAIT"];
        let with = format!("{both} (TRAFFICCOP_POLL is set)");
        assert_eq!(said("t run -qn -w5 -- job", both, &set), with);
        let all = "TRAFFICCOP_NO_WAIT, TRAFFICCOP_POLL, TRAFFICCOP_WAIT";
        let with = format!("{both} ({all} are set)");
        assert_eq!(said("t run -- job", both, &set), with);
        let asks = "--shared has no meaning here: is TRAFFICCOP_SHARED set?";
        assert_eq!(said("t run", asks, &["TRAFFICCOP_SHARED"]), asks);
    }

    #[test]
    fn a_line_that_cannot_be_parsed_still_says_how_the_log_is_written() {
        let format = |line: &str, variable: Option<&str>| {
            let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            log_format(&line, variable.map(OsString::from))
        };
        assert_eq!(format("t run --log json --x", None), Format::Json);
        assert_eq!(format("t run --log=json --x", None), Format::Json);
        assert_eq!(format("t run --x", Some("json")), Format::Json);
        assert_eq!(format("t run --log text --x", Some("json")), Format::Text);
        assert_eq!(format("t run --x -- job --log json", None), Format::Text);
        assert_eq!(format("t run --log", None), Format::Text);
    }
}
