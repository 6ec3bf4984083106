//! The book's reference: flags, exit statuses and glossary, from their definitions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use trafficcop::internals::exit;

use crate::documents::verbs::VERBS;
use crate::documents::{definition, fresh, text};

const CHAPTER: &str = "docs/reference.md";

#[derive(Default)]
struct Flag {
    short: Option<char>,
    value: String,
    variable: String,
    default: String,
    commands: Vec<String>,
}

fn default_in(help: &str) -> String {
    let named = help
        .split_once("[default: ")
        .and_then(|(_, rest)| rest.split_once(']'));
    named.map_or(String::new(), |(default, _)| default.replace('|', "\\|"))
}

fn flags() -> BTreeMap<String, Flag> {
    let mut flags: BTreeMap<String, Flag> = BTreeMap::new();
    for command in definition()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let name = command.get_name();
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help") {
            let Some(long) = arg.get_long() else { continue };
            if arg.is_hide_set() {
                continue;
            }
            let flag = flags.entry(long.to_owned()).or_default();
            flag.short = flag.short.or(arg.get_short());
            flag.commands.push(name.to_owned());
            if flag.default.is_empty() {
                let takes = arg.get_action().takes_values();
                let typed = arg.get_default_values().first().filter(|_| takes);
                let typed = typed.map(|value| value.to_string_lossy().into_owned());
                let told = arg.get_help().map(|help| default_in(&help.to_string()));
                flag.default = typed.or(told).unwrap_or_default();
            }
            if flag.variable.is_empty() {
                let takes = arg.get_action().takes_values();
                let names = arg.get_value_names().filter(|_| takes).unwrap_or_default();
                flag.value = names.join(" ");
                let variable = arg
                    .get_env()
                    .map(|name| name.to_string_lossy().into_owned());
                flag.variable = variable.unwrap_or_default();
            }
        }
    }
    flags
}

/// Returns a flag's commands, or one word for a common group.
fn commands(of: &[String]) -> String {
    let looking: Vec<&str> = VERBS.iter().map(|verb| verb.0).collect();
    let mut names: Vec<&str> = of.iter().map(String::as_str).collect();
    if looking.iter().all(|name| names.contains(name)) {
        names.retain(|name| !looking.contains(name));
        names.push("operator's");
    }
    names.join(", ")
}

fn replaced(page: &str, name: &str, made: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: made by a test, see CONTRIBUTING.md -->\n"),
        format!("<!-- end of {name} -->\n"),
    );
    let (before, rest) = page
        .split_once(&*begin)
        .unwrap_or_else(|| panic!("no begin of {name}"));
    let (_, after) = rest
        .split_once(&*end)
        .unwrap_or_else(|| panic!("no end of {name}"));
    format!("{before}{begin}\n{made}\n{end}{after}")
}

#[test]
fn reference_is_made_from_the_definitions() {
    let mut table = String::from("| flag | variable | default | commands |\n|---|---|---|---|\n");
    for (long, flag) in flags() {
        let short = flag
            .short
            .map_or(String::new(), |short| format!("`-{short}`, "));
        let value = if flag.value.is_empty() {
            String::new()
        } else {
            format!(" {}", flag.value)
        };
        let variable = match &*flag.variable {
            "" => "none".to_owned(),
            name => format!("`{name}`"),
        };
        let (default, of) = (flag.default, commands(&flag.commands));
        let flag = format!("{short}`--{long}{value}`").replace('|', "\\|");
        let _ = writeln!(table, "| {flag} | {variable} | {default} | {of} |");
    }
    let mut statuses = String::from("| status | meaning |\n|---|---|\n");
    for (status, meaning) in exit::TABLE {
        let _ = writeln!(statuses, "| {status} | {} |", meaning.replace('|', "\\|"));
    }
    let map = text("src/lib.rs");
    let (_, words) = map.split_once("//! # Glossary\n").expect("the glossary");
    let words = words.lines().map_while(|line| line.strip_prefix("//! |"));
    let words: String = words.fold(String::new(), |all, row| all + "|" + row + "\n");
    let mut page = text(CHAPTER);
    for (name, made) in [
        ("flags", &table),
        ("exit statuses", &statuses),
        ("glossary", &words),
    ] {
        page = replaced(&page, name, made);
    }
    fresh(CHAPTER, page.as_bytes());
}
