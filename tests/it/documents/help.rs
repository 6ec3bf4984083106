//! `-h` fits on a screen and has what most people need; `--help` has everything.

use std::process::Command;

use super::definition;

const LINES: usize = 60;
const COLUMNS: usize = 80;

fn help(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trafficcop"));
    // It would change the definitions, even if empty.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TRAFFICCOP_") {
            command.env_remove(name);
        }
    }
    let ran = command
        .args(words)
        .env("COLUMNS", COLUMNS.to_string())
        .output()
        .expect("the binary runs");
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

fn verbs() -> Vec<clap::Command> {
    let definition = definition();
    let verbs = definition.get_subcommands();
    verbs.filter(|verb| !verb.is_hide_set()).cloned().collect()
}

fn fits(what: &str, help: &str) {
    let lines = help.lines().count();
    assert!(lines <= LINES, "{what} -h has {lines} lines:\n{help}");
    for line in help.lines() {
        assert!(line.chars().count() <= COLUMNS, "{what} -h: {line}");
    }
}

#[test]
fn the_short_help_fits_on_a_screen() {
    let run = help(&["run", "-h"]);
    assert!(run.lines().count() <= 40, "{run}");
    assert!(run.contains("Exit status: "), "{run}");
    let whole = help(&["-h"]);
    fits("trafficcop", &whole);
    let examples = |help: &str| {
        help.lines()
            .filter(|l| l.starts_with("    trafficcop "))
            .count()
    };
    assert_eq!(examples(&whole), 3, "{whole}");
    let verbs = verbs();
    assert!(verbs.len() >= 12, "only {}", verbs.len());
    for verb in verbs {
        let name = verb.get_name();
        let short = help(&[name, "-h"]);
        fits(name, &short);
        assert!(
            short.contains(&format!("'trafficcop {name} --help'")),
            "{short}"
        );
        assert!(short.contains("Examples:\n  "), "{short}");
        let has_variables = verb.get_arguments().any(|arg| arg.get_env().is_some());
        assert_eq!(
            short.contains("TRAFFICCOP_FLAG_NAME"),
            has_variables,
            "{name}"
        );
        // The command is before all flags.
        if verb
            .get_arguments()
            .any(|arg| arg.get_id() == "command" && !arg.is_hide_set())
        {
            let command = short.find("[COMMAND]...  ").expect("the command");
            let flag = short.find("  --").expect("a flag");
            assert!(command < flag, "{short}");
        }
    }
}

#[test]
fn help_of_a_command_is_found_by_any_of_its_names() {
    for words in [
        &["help"][..],
        &["help", "help"],
        &["help", "-h"],
        &["help", "--help"],
    ] {
        assert_eq!(help(words), help(&["--help"]), "{words:?}");
    }
    assert_eq!(help(&["help", "run", "-h"]), help(&["run", "--help"]));
    let whole = help(&["--help"]);
    let usage = whole.find("Usage:").expect("a usage");
    let words: Vec<&str> = whole[..usage].split_whitespace().collect();
    assert!(words.join(" ").contains("at most one"), "{whole}");
    assert!(!whole.to_lowercase().contains("verb"), "{whole}");
}

#[test]
fn the_rights_of_a_sas_are_those_of_what_it_is_for() {
    // Compare without the layout.
    let rights = |verb: &str| {
        let long = help(&[verb, "--help"]);
        let words: Vec<&str> = long.split_whitespace().collect();
        words.join(" ")
    };
    let work = rights("work");
    assert!(work.contains("update and add: rpua; and c"), "{work}");
    assert!(!work.contains("create container"), "{work}");
    for verb in ["run", "elect"] {
        let said = rights(verb);
        assert!(said.contains("create container"), "{said}");
    }
}

#[test]
fn no_flag_is_hidden_from_the_long_help() {
    for verb in verbs() {
        let name = verb.get_name();
        let long = help(&["help", name]);
        assert_eq!(long, help(&[name, "--help"]));
        assert!(!long.contains("[env:"), "{name} --help names each variable");
        for arg in verb.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if let Some(long_flag) = arg.get_long() {
                assert!(
                    long.contains(&format!("--{long_flag}")),
                    "{name}: {long_flag}"
                );
            }
        }
        // Columns for a wider terminal would be wrapped again.
        for line in long.lines() {
            let width = line.chars().count();
            assert!(
                width <= COLUMNS || line.contains("trafficcop "),
                "{name}: {line}"
            );
        }
    }
}
