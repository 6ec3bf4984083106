//! What is written about the program agrees with the program: man pages, README, unit, CI script.
//! `BLESS=1 cargo test --test documents` writes the man pages and the README's guarantees anew.

#[path = "documents/completions.rs"]
mod completions;
#[path = "documents/guarantees.rs"]
mod guarantees;
#[path = "../benches/figures/rows.rs"]
mod rows;
#[expect(
    dead_code,
    reason = "only the names of its rows and what they promise are needed"
)]
#[path = "faults/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use guarantees::{FENCING, GUARANTEES, LIMITS, Shown};
use trafficcop::events::record;
use trafficcop::work::handover;
use trafficcop::{cli, exit, report, status, timeline};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// The definition as it is without the environment of whoever runs the tests, as every test here
/// wants it; `build` gives subcommands their full names.
fn definition() -> clap::Command {
    let mut definition = cli::definition();
    definition.build();
    definition
}

fn run_definition() -> clap::Command {
    let definition = definition();
    let run = definition.find_subcommand("run").expect("there is a run");
    // Sections of our own follow; what clap appends to the help would be there twice.
    run.clone()
        .name("trafficcop-run")
        .display_name("trafficcop-run")
        .after_long_help("")
}

fn elect_definition() -> clap::Command {
    let definition = definition();
    let elect = definition.find_subcommand("elect").expect("an elect");
    elect
        .clone()
        .name("trafficcop-elect")
        .display_name("trafficcop-elect")
        .after_long_help("")
}

fn page_of_elect() -> Vec<u8> {
    let man = Man::new(elect_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop elect --blob"),
        roman(" CONTAINER/NAME [OPTIONS]"),
    ]);
    synopsis.control("br", []);
    synopsis.text([bold("trafficcop elect --file"), roman(" PATH [OPTIONS]")]);
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "JSON", cli::FIELDS);
    section(&mut rest, "EXIT STATUS", cli::ELECT_STATUS);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --grace-on-loss by TRAFFICCOP_GRACE_ON_LOSS, say; the command line wins, and an empty variable counts as unset.")]);
    examples(&mut rest, cli::ELECT_EXAMPLES);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
        bold("trafficcop-guarantees"),
        roman("(7)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

fn work_definition() -> clap::Command {
    let definition = definition();
    let work = definition.find_subcommand("work").expect("a work");
    work.clone()
        .name("trafficcop-work")
        .display_name("trafficcop-work")
        .after_long_help("")
}

fn page_of_work() -> Vec<u8> {
    let man = Man::new(work_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold("trafficcop work --queue"),
        roman(" NAME|URL [OPTIONS] -- COMMAND [ARG]..."),
    ]);
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "WHAT BECOMES OF A MESSAGE", cli::SETTLED);
    section(&mut rest, "EXIT STATUS", cli::WORK_STATUS);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --lock-time by TRAFFICCOP_LOCK_TIME, say; the command line wins, and an empty variable counts as unset. The command finds in its own environment:")]);
    for (name, meaning) in cli::FOR_THE_MESSAGE {
        rest.control("TP", []);
        rest.text([bold(*name)]);
        rest.text([roman(*meaning)]);
    }
    section(&mut rest, "MESSAGE.JSON", handover::FIELDS);
    examples(&mut rest, cli::WORK_EXAMPLES);
    see_also(
        &mut rest,
        &[
            ("trafficcop-run", "1"),
            ("trafficcop-check", "1"),
            ("trafficcop-formats", "5"),
            ("trafficcop-guarantees", "7"),
        ],
    );
    rest.to_writer(&mut page).expect(write);
    page
}

fn page_of_check() -> Vec<u8> {
    let definition = definition();
    let check = definition.find_subcommand("check").expect("a check");
    let check = check.clone().name("trafficcop-check");
    let man = Man::new(check.display_name("trafficcop-check").after_long_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", cli::CHECK_STATUS);
    let control = cli::FOR_THE_COMMAND.iter();
    let control: Vec<_> = control
        .filter(|(name, _)| *name == "TRAFFICCOP_CONTROL")
        .copied()
        .collect();
    section(&mut rest, "ENVIRONMENT", &control);
    examples(&mut rest, cli::CHECK_EXAMPLES);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-guarantees"),
        roman("(7)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

/// A verb that looks or intervenes: its name, lists of its own, its exit statuses, examples.
type Verb<'a> = (
    &'a str,
    &'a [(&'a str, &'a [(&'a str, &'a str)])],
    &'a [(&'a str, &'a str)],
    &'a [(&'a str, &'a str)],
);

const VERBS: [Verb<'_>; 6] = [
    (
        "status",
        &[("JSON", cli::STATUS_JSON)],
        cli::STATUS_STATUS,
        cli::STATUS_EXAMPLES,
    ),
    (
        "list",
        &[("EACH ELEMENT OF THE JSON ARRAY", cli::STATUS_JSON)],
        cli::LIST_STATUS,
        cli::LIST_EXAMPLES,
    ),
    (
        "watch",
        &[
            ("EACH LINE OF JSON", cli::STATUS_JSON),
            ("AND", cli::WATCH_JSON),
        ],
        cli::WATCH_STATUS,
        cli::WATCH_EXAMPLES,
    ),
    ("break", &[], cli::BREAK_STATUS, cli::BREAK_EXAMPLES),
    ("reset", &[], cli::RESET_STATUS, cli::RESET_EXAMPLES),
    (
        "doctor",
        &[("JSON", cli::DOCTOR_JSON)],
        cli::DOCTOR_STATUS,
        cli::DOCTOR_EXAMPLES,
    ),
];

fn page_of_verb((verb, lists, statuses, commands): Verb<'_>) -> Vec<u8> {
    let definition = definition();
    let command = definition.find_subcommand(verb).expect("the verb");
    let name: &str = format!("trafficcop-{verb}").leak();
    let command = command.clone().name(name).display_name(name);
    let man = Man::new(command.after_long_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    for (title, rows) in lists {
        section(&mut rest, title, rows);
    }
    section(&mut rest, "EXIT STATUS", statuses);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    examples(&mut rest, commands);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop"),
        roman("(1), "),
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-guarantees"),
        roman("(7)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

fn page_of_completions() -> Vec<u8> {
    let definition = definition();
    let command = definition.find_subcommand("completions").expect("it");
    let command = command.clone().name("trafficcop-completions");
    let command = command.display_name("trafficcop-completions");
    let man = Man::new(command.after_long_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", cli::COMPLETIONS_STATUS);
    examples(&mut rest, cli::COMPLETIONS_EXAMPLES);
    see_also(&mut rest, &[("trafficcop", "1")]);
    rest.to_writer(&mut page).expect(write);
    page
}

/// `bold` references, with their sections.
fn see_also(page: &mut Roff, pages: &[(&str, &str)]) {
    page.control("SH", ["SEE ALSO"]);
    let mut text = Vec::new();
    for (number, (name, section)) in pages.iter().enumerate() {
        let comma = if number + 1 < pages.len() { ", " } else { "" };
        text.push(bold(*name));
        text.push(roman(format!("({section}){comma}")));
    }
    page.text(text);
}

fn page_of_timeline() -> Vec<u8> {
    let definition = definition();
    let timeline = definition.find_subcommand("timeline").expect("a timeline");
    let timeline = timeline.clone().name("trafficcop-timeline");
    let timeline = timeline.display_name("trafficcop-timeline");
    let man = Man::new(timeline.after_long_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    rest.control("SH", ["WHAT IS SAID"]);
    for paragraph in TIMELINE {
        rest.control("PP", []);
        rest.text(inlines(paragraph));
    }
    section(&mut rest, "JSON", timeline::FIELDS);
    section(&mut rest, "EXIT STATUS", cli::TIMELINE_STATUS);
    examples(&mut rest, cli::TIMELINE_EXAMPLES);
    see_also(
        &mut rest,
        &[("trafficcop-run", "1"), ("trafficcop-formats", "5")],
    );
    rest.to_writer(&mut page).expect(write);
    page
}

/// What a reader of a timeline must know to believe it.
const TIMELINE: &[&str] = &[
    "A tenure begins when its instance says that it has control, and ends when the lease was given back. Two tenures overlap if one begins before the last process of the other's command was gone. The moments are those of the machine's boot clock, so on one machine they are exact, whatever happened to its wall clock. Machines are compared by their wall clocks; see `--skew`.",
    "The end of an instance that was killed, or whose machine died, stands in no log. Of such a tenure only its last word is certain, and what it said in its last moment may be missing, because nothing waits for the log. It is taken to have ended by its last known deadline, at which the guardian has killed its command, or when the next instance was given control, if that was earlier: a guardian that outlives trafficcop gives the lease back as soon as nothing of the command lives. What stands in the logs after that moment would show an overlap all the same.",
    "An instance that says itself that an overlap cannot be excluded (exit status 71) is believed, whatever the other logs say.",
];

fn page_of_formats() -> Vec<u8> {
    let mut page = Roff::new();
    page.control("TH", ["trafficcop-formats", "5"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "trafficcop-formats - what stands in the event log, the JSON log and the status file",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("The names of the fields below, and what they mean, do not change; new ones may come, so pass over what you do not know.")]);
    let about = |page: &mut Roff, title: &str, text: &str, fields: &[(&str, &str)]| {
        page.control("SH", [title]);
        page.text(inlines(text));
        for (name, meaning) in fields {
            page.control("TP", []);
            page.text([bold(*name)]);
            page.text([roman(*meaning)]);
        }
    };
    about(
        &mut page,
        "EVENT LOG (--event-log F)",
        "One JSON object a line, appended with one write each, so that any number of instances on a machine can share a file. What does not apply is left out. Lines with which control changes hands are on the disk before the next is written. A file that was renamed is begun anew. What cannot be written is lost, with one warning; nothing waits for it.",
        record::FIELDS,
    );
    about(
        &mut page,
        "EVENTS",
        "The words of the field `event`:",
        record::WORDS,
    );
    about(
        &mut page,
        "JSON LOG (--log json)",
        "One JSON object a line on stderr. What does not apply is left out.",
        report::FIELDS,
    );
    about(
        &mut page,
        "STATUS FILE (--status-file F)",
        "One JSON object, replaced as a whole at every change. What does not apply is null.",
        status::FIELDS,
    );
    see_also(
        &mut page,
        &[("trafficcop-run", "1"), ("trafficcop-timeline", "1")],
    );
    let mut bytes = Vec::new();
    page.to_writer(&mut bytes)
        .expect("a vector takes everything");
    bytes
}

fn examples(page: &mut Roff, examples: &[(&str, &str)]) {
    page.control("SH", ["EXAMPLES"]);
    for (what, command) in examples {
        page.control("PP", []);
        page.text([roman(*what)]);
        page.control("PP", []);
        page.control("RS", ["4"]);
        page.control("nf", []);
        page.text([bold(*command)]);
        page.control("fi", []);
        page.control("RE", []);
    }
}

fn section(page: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
}

fn page_of_trafficcop() -> Vec<u8> {
    let man = Man::new(definition().after_help("")).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    man.render_synopsis_section(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    man.render_subcommands_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-work"),
        roman("(1), "),
        bold("trafficcop-elect"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
    ]);
    for verb in VERBS {
        rest.text([bold(format!("trafficcop-{}", verb.0)), roman("(1), ")]);
    }
    rest.text([
        bold("trafficcop-timeline"),
        roman("(1), "),
        bold("trafficcop-completions"),
        roman("(1), "),
        bold("trafficcop-formats"),
        roman("(5), "),
        bold("trafficcop-guarantees"),
        roman("(7), "),
        bold("flock"),
        roman("(1), "),
        bold("timeout"),
        roman("(1)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

fn page_of_run() -> Vec<u8> {
    let man = Man::new(run_definition()).date("");
    let mut page = Vec::new();
    let write = "a vector takes everything";
    man.render_title(&mut page).expect(write);
    man.render_name_section(&mut page).expect(write);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    for (first, lock) in [
        (true, ("--blob", "CONTAINER/NAME")),
        (false, ("--file", "PATH")),
    ] {
        if !first {
            synopsis.control("br", []);
        }
        synopsis.text([
            bold("trafficcop run "),
            bold(lock.0),
            roman(format!(" {} [OPTIONS] -- COMMAND [ARG]...", lock.1)),
        ]);
    }
    synopsis.to_writer(&mut page).expect(write);
    man.render_description_section(&mut page).expect(write);
    man.render_options_section(&mut page).expect(write);
    let mut rest = Roff::new();
    section(&mut rest, "EXIT STATUS", exit::TABLE);
    section(&mut rest, "ENVIRONMENT", cli::FOR_THE_STORE);
    rest.control("PP", []);
    rest.text([roman("Every option can be set by a variable as well, --grace-on-loss by TRAFFICCOP_GRACE_ON_LOSS, say; the command line wins, and an empty variable counts as unset. The command finds in its own environment:")]);
    for (name, meaning) in cli::FOR_THE_COMMAND {
        rest.control("TP", []);
        rest.text([bold(*name)]);
        rest.text([roman(*meaning)]);
    }
    examples(&mut rest, cli::EXAMPLES);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("trafficcop"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1), "),
        bold("trafficcop-timeline"),
        roman("(1), "),
        bold("trafficcop-formats"),
        roman("(5), "),
        bold("trafficcop-guarantees"),
        roman("(7), "),
        bold("flock"),
        roman("(1), "),
        bold("timeout"),
        roman("(1), "),
        bold("systemd.service"),
        roman("(5)"),
    ]);
    rest.to_writer(&mut page).expect(write);
    page
}

/// What is between backticks in bold, what is between stars in italics.
fn inlines(text: &str) -> Vec<Inline> {
    let mut inlines = Vec::new();
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 1 {
            inlines.push(bold(part));
            continue;
        }
        for (number, part) in part.split('*').enumerate() {
            inlines.push(if number % 2 == 1 {
                italic(part)
            } else {
                roman(part)
            });
        }
    }
    inlines
}

/// `BINARY: NAME, NAME; BINARY: NAME`
fn tests_of(shown: &[Shown]) -> String {
    let of_one = |(binary, names): &Shown| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("{binary}: {}", names.join(", "))
    };
    let all: Vec<String> = shown.iter().map(of_one).collect();
    if all.is_empty() {
        return "–".into();
    }
    all.join("; ")
}

fn page_of_guarantees() -> Vec<u8> {
    let mut page = Roff::new();
    page.control("TH", ["trafficcop-guarantees", "7"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "trafficcop-guarantees - what trafficcop promises, and what nobody on the machine can",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("No process of the command's tree is alive at a moment when another instance could already have been given control. And the command is never stopped without need.")]);
    page.control("PP", []);
    page.text(inlines(guarantees::TIMES));
    page.control("PP", []);
    page.text(inlines(&guarantees::proof()));
    page.control("SH", ["FAULTS"]);
    for row in GUARANTEES {
        page.control("TP", []);
        page.text([bold(row.fault.replace('`', ""))]);
        page.text(inlines(row.happens));
        for (title, text) in [
            ("How long: ", row.how_long.to_owned()),
            ("Shown by ", tests_of(row.shown)),
        ] {
            page.control("br", []);
            page.text([vec![roman(title)], inlines(&text)].concat());
        }
    }
    page.control("SH", ["WHAT CANNOT BE CLOSED LOCALLY"]);
    for row in LIMITS {
        page.control("TP", []);
        page.text([bold(row.what.replace(['`', '*'], ""))]);
        page.text(inlines(row.answer));
        if !row.shown.is_empty() {
            page.control("br", []);
            page.text([vec![roman("Seen in ")], inlines(&tests_of(row.shown))].concat());
        }
    }
    page.control("SH", ["FENCING TOKEN"]);
    for paragraph in FENCING {
        page.control("PP", []);
        page.text(inlines(paragraph));
    }
    page.control("PP", []);
    page.text([roman("examples/fencing/ in the sources is such a resource, in SQLite, with the same in PostgreSQL and a way to see it work.")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("trafficcop"),
        roman("(1), "),
        bold("trafficcop-run"),
        roman("(1), "),
        bold("trafficcop-check"),
        roman("(1)"),
    ]);
    let mut bytes = Vec::new();
    page.to_writer(&mut bytes)
        .expect("a vector takes everything");
    bytes
}

/// In lines as long as the README's.
fn filled(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let gap = match length {
            0 => "",
            _ if length + 1 + word.chars().count() > 105 => "\n",
            _ => " ",
        };
        length = if gap == " " { length + 1 } else { 0 } + word.chars().count();
        lines += gap;
        lines += word;
    }
    lines + "\n"
}

const BEGIN: &str =
    "<!-- from tests/documents/guarantees.rs: BLESS=1 cargo test --test documents -->\n";
const END: &str = "<!-- end of the guarantees -->\n";

/// The README with its guarantees as they are meant.
fn readme_with_guarantees() -> String {
    let mut made = format!("\n{}\n", filled(&guarantees::proof()));
    made += "| fault | what happens | how long | shown by |\n|---|---|---|---|\n";
    for row in GUARANTEES {
        let (happens, how_long) = (row.happens, row.how_long);
        let shown = tests_of(row.shown);
        let _ = writeln!(made, "| {} | {happens} | {how_long} | {shown} |", row.fault);
    }
    let _ = write!(made, "\n{}", filled(guarantees::TIMES));
    made += "\n### What cannot be closed locally\n\n| what | answer | seen in |\n|---|---|---|\n";
    for row in LIMITS {
        let _ = writeln!(
            made,
            "| {} | {} | {} |",
            row.what,
            row.answer,
            tests_of(row.shown)
        );
    }
    made += "\n### The fencing token\n\n";
    for paragraph in FENCING {
        made += &filled(paragraph);
    }
    made += "\n";
    let readme = text("README.md");
    let (before, rest) = readme
        .split_once(BEGIN)
        .expect("the begin of the guarantees");
    let (_, after) = rest.split_once(END).expect("the end of the guarantees");
    format!("{before}{BEGIN}{made}{END}{after}")
}

#[test]
fn the_readme_s_guarantees_are_the_man_page_s() {
    fresh("README.md", readme_with_guarantees().as_bytes());
}

fn shown() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = GUARANTEES.iter().map(|row| row.shown);
    let all = all.chain(LIMITS.iter().map(|row| row.shown)).flatten();
    all.flat_map(|(binary, names)| names.iter().map(move |name| (*binary, *name)))
}

/// All text of Rust below this path, or of the file.
fn sources(path: &Path, into: &mut String) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            sources(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        *into += &std::fs::read_to_string(path).expect("a source");
    }
}

/// Whether there is a test of this name, not just a function.
fn is_a_test(sources: &str, name: &str) -> bool {
    let mut attributed = false;
    for line in sources.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            attributed = true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            let function = line.strip_prefix("async ").unwrap_or(line);
            if attributed && function.starts_with(&format!("fn {name}(")) {
                return true;
            }
            attributed = false;
        }
    }
    false
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let faults: BTreeSet<String> = table::rows()
        .iter()
        .map(|row| format!("{:?}", row.fault))
        .collect();
    for (binary, name) in shown() {
        let found = match binary {
            "faults" => faults.contains(name),
            "supervise" => text("tests/supervise/cases.rs")
                .split_once("cases![")
                .and_then(|(_, list)| list.split_once(']'))
                .is_some_and(|(list, _)| list.split(',').any(|case| case.trim() == name)),
            _ => {
                let mut there = String::new();
                let places = match binary {
                    "lib" => vec![root().join("src")],
                    binary => vec![
                        root().join(format!("tests/{binary}.rs")),
                        root().join(format!("tests/{binary}")),
                    ],
                };
                for place in places.iter().filter(|place| place.exists()) {
                    sources(place, &mut there);
                }
                is_a_test(&there, name)
            }
        };
        assert!(found, "there is no test {name} in {binary}");
    }
    let named: BTreeSet<String> = shown()
        .filter(|(binary, _)| *binary == "faults")
        .map(|(_, name)| name.to_owned())
        .collect();
    assert_eq!(
        named, faults,
        "a fault of the suite that the guarantees leave out"
    );
}

#[test]
fn a_fault_that_may_overlap_is_a_limit_and_no_guarantee() {
    for row in table::rows() {
        let fault = format!("{:?}", row.fault);
        let names = |shown: &[Shown]| {
            let mut faults = shown.iter().filter(|(binary, _)| *binary == "faults");
            faults.any(|(_, names)| names.contains(&fault.as_str()))
        };
        if !row.is_of_the_promise() {
            assert!(
                LIMITS.iter().any(|limit| names(limit.shown))
                    && !GUARANTEES.iter().any(|row| names(row.shown)),
                "{} is not of the promise",
                row.name()
            );
        }
    }
}

#[test]
fn the_counted_proof_counts_what_the_suites_play() {
    let rows = table::rows();
    let promised = rows.iter().filter(|row| row.is_of_the_promise()).count();
    let constant = |source: &str, before: &str| -> usize {
        let (_, rest) = source
            .split_once(before)
            .unwrap_or_else(|| panic!("no {before}"));
        let digits = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '_');
        let digits: String = digits.filter(|c| *c != '_').collect();
        digits.parse().expect("a number")
    };
    let random = constant(&text("tests/faults/main.rs"), "const RANDOM: u64 = ");
    assert_eq!(guarantees::PROMISE_ROWS, promised + random);
    // Each row is one fault, each random one is two or three rounds of one or two.
    let faults = guarantees::INJECTED_FAULTS - promised;
    assert!((2 * random..=6 * random).contains(&faults), "{faults}");
    let schedules = constant(&text("tests/fleet.rs"), "number(\"FLEET_COUNT\", ");
    assert_eq!(guarantees::SCHEDULES, schedules as u64);
    assert!(text("tests/fleet.rs").contains("number(\"FLEET_SEED\", 1)"));
}

fn fresh(path: &str, wanted: &[u8]) {
    let path = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        // Readers (another test, a packager) see the old page or the new one.
        let beside = path.with_extension(format!("tmp{}", std::process::id()));
        std::fs::write(&beside, wanted).expect("the page can be written");
        std::fs::rename(&beside, &path).expect("the page can be put in place");
        return;
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(
        there == wanted,
        "{} is not what the definitions say: BLESS=1 cargo test --test documents",
        path.display()
    );
}

#[test]
fn the_man_pages_are_fresh() {
    fresh("man/trafficcop.1", &page_of_trafficcop());
    fresh("man/trafficcop-run.1", &page_of_run());
    fresh("man/trafficcop-elect.1", &page_of_elect());
    fresh("man/trafficcop-work.1", &page_of_work());
    fresh("man/trafficcop-check.1", &page_of_check());
    for verb in VERBS {
        fresh(&format!("man/trafficcop-{}.1", verb.0), &page_of_verb(verb));
    }
    fresh("man/trafficcop-guarantees.7", &page_of_guarantees());
    fresh("man/trafficcop-timeline.1", &page_of_timeline());
    fresh("man/trafficcop-formats.5", &page_of_formats());
    fresh("man/trafficcop-completions.1", &page_of_completions());
}

#[test]
fn every_verb_has_its_page_and_every_page_is_packaged() {
    let package = text("Cargo.toml");
    for verb in definition().get_subcommands().filter(|v| !v.is_hide_set()) {
        let page = format!("man/trafficcop-{}.1", verb.get_name());
        let about = verb.get_about().expect("a line about it").to_string();
        assert!(
            text(&page).contains(&about.replace('-', "\\-").replace('\'', "\\*(Aq")),
            "{page}"
        );
        assert!(
            text("man/trafficcop.1").contains(&format!("trafficcop\\-{}", verb.get_name())),
            "trafficcop.1 does not name {page}"
        );
    }
    for (folder, pattern) in [("man", "man/*.1"), ("examples", "examples/*.service")] {
        assert!(package.contains(&format!("[\"{pattern}\",")), "{folder}");
    }
    // What the package names is there.
    for line in package.lines().filter(|line| line.starts_with("    [\"")) {
        let path = line.split('"').nth(1).expect("a path");
        let built = path.starts_with("target/");
        let there = path.contains('*') || root().join(path).exists();
        assert!(built || there, "the Debian package wants {path}");
    }
}

#[test]
fn the_timeline_s_picture_is_what_is_drawn_of_its_logs() {
    let names = ["web1", "web2", "web3"];
    let logs = names.map(|name| text(&format!("examples/timeline/{name}.events")));
    let log = timeline::read(logs.iter().map(|text| ("example", text.as_bytes())));
    let drawn = timeline::svg(&timeline::merge(&log, 0));
    fresh("examples/timeline.svg", drawn.as_bytes());
}

#[test]
fn the_help_of_each_verb_names_its_statuses_and_fields() {
    let definition = definition();
    for (verb, lists, statuses, commands) in VERBS {
        let command = definition.find_subcommand(verb).expect("the verb");
        let help = command.clone().render_long_help().to_string();
        let rows = lists
            .iter()
            .flat_map(|(_, rows)| rows.iter())
            .chain(statuses);
        for (name, _) in rows {
            assert!(help.contains(name), "{verb}: {name}");
        }
        for (_, example) in commands {
            let (line, _pipe) = example.split_once(" | ").unwrap_or((example, ""));
            cli::parse(line.split_whitespace().map(Into::into))
                .unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
fn the_help_names_every_exit_status_and_variable() {
    let help = run_help();
    for (name, _) in exit::TABLE
        .iter()
        .chain(cli::FOR_THE_COMMAND)
        .chain(cli::FOR_THE_STORE)
    {
        assert!(help.contains(name), "{name}");
    }
}

fn run_help() -> String {
    let definition = definition();
    let run = definition.find_subcommand("run").expect("there is a run");
    run.clone().render_long_help().to_string()
}

#[test]
fn the_readme_mentions_every_flag() {
    let readme = text("README.md");
    let (run, elect) = (run_definition(), elect_definition());
    let work = work_definition();
    let whole = definition();
    let verbs = VERBS
        .iter()
        .filter_map(|verb| whole.find_subcommand(verb.0));
    let arguments = verbs
        .chain([&run, &elect, &work])
        .flat_map(clap::Command::get_arguments);
    for arg in arguments.filter(|arg| arg.get_id() != "help" && !arg.is_hide_set()) {
        if let Some(long) = arg.get_long() {
            let told = readme
                .match_indices(&format!("--{long}"))
                // `--grace` is not mentioned by `--grace-on-loss`.
                .any(|(at, flag)| {
                    !readme[at + flag.len()..]
                        .starts_with(|c: char| c == '-' || c.is_alphanumeric())
                });
            assert!(told, "README.md does not mention --{long}");
        }
        if let Some(short) = arg.get_short() {
            assert!(
                readme.contains(&format!("`-{short}")),
                "README.md does not mention -{short}"
            );
        }
    }
    let told = cli::FOR_THE_MESSAGE.iter();
    let told = told.flat_map(|(names, meaning)| names.split(", ").map(move |name| (name, meaning)));
    for (variable, _) in cli::FOR_THE_COMMAND
        .iter()
        .chain(cli::FOR_THE_STORE)
        .map(|(name, meaning)| (*name, meaning))
        .chain(told)
    {
        assert!(
            readme.contains(variable),
            "README.md does not mention {variable}"
        );
    }
}

/// The rows of the table below this heading, without its header.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    document
        .split_once(&format!("## {heading}\n"))
        .unwrap_or_else(|| panic!("no heading '{heading}'"))
        .1
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().replace('`', "")).collect()
        })
        .collect()
}

/// The figures themselves are of one machine and one day; what is compared is not.
#[test]
fn the_readme_s_figures_are_those_that_cargo_bench_prints() {
    let readme = text("README.md");
    let (_, figures) = readme.split_once("### In figures\n").expect("a heading");
    let mut lines = figures.lines().skip_while(|line| !line.starts_with('|'));
    let head = format!("| | {} |", rows::TOOLS.join(" | "));
    assert_eq!(lines.next(), Some(&*head));
    let cells = |line: &str| line.trim_matches('|').split('|').count();
    assert_eq!(lines.next().map(cells), Some(rows::TOOLS.len() + 1));
    let told: Vec<&str> = lines.take_while(|line| line.starts_with('|')).collect();
    let names = told.iter().map(|line| line.trim_matches('|').split('|'));
    let names: Vec<&str> = names
        .map(|mut cells| cells.next().unwrap_or("").trim())
        .collect();
    assert_eq!(names, rows::ROWS);
    assert!(told.iter().all(|line| cells(line) == rows::TOOLS.len() + 1));
}

#[test]
fn the_readme_s_exit_statuses_are_the_program_s() {
    let told = table(&text("README.md"), "Exit status");
    let meant: Vec<Vec<String>> = exit::TABLE
        .iter()
        .map(|(status, meaning)| vec![(*status).to_owned(), (*meaning).to_owned()])
        .collect();
    assert_eq!(told, meant);
}

/// The lines of the README's shell blocks.
fn commands(readme: &str) -> Vec<String> {
    let mut inside = false;
    let mut commands = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside {
            commands.push(line.trim().to_owned());
        }
    }
    commands
}

#[test]
fn ci_runs_the_readme_s_test_command() {
    let readme = commands(&text("README.md"));
    let ci = text(".ci/run");
    assert!(
        readme.iter().any(|line| line == "cargo test"),
        "README.md has no test command"
    );
    assert!(
        ci.lines().any(|line| line.trim().ends_with(" cargo test")),
        ".ci/run does not run it"
    );
}

#[test]
fn the_readme_s_command_lines_can_be_parsed() {
    let mut seen = 0;
    for line in commands(&text("README.md")) {
        // A crontab line has its five fields before it, a unit or a shell its own beginnings.
        let Some(at) = line
            .find("trafficcop run ")
            .or_else(|| line.find("-- run "))
        else {
            continue;
        };
        let words = line[at..]
            .split_whitespace()
            .skip_while(|word| *word != "run");
        let line = ["trafficcop"].into_iter().chain(words).map(Into::into);
        cli::parse(line).unwrap_or_else(|why| panic!("{why}"));
        seen += 1;
    }
    assert!(seen >= 5, "only {seen} command lines were found");
    let mut looked = 0;
    for line in commands(&text("README.md")) {
        if let Some((_, rest)) = line.split_once("trafficcop work ") {
            let line = ["trafficcop", "work"].into_iter();
            let line = line.chain(rest.split_whitespace()).map(Into::into);
            cli::parse(line).unwrap_or_else(|why| panic!("{why}"));
        }
        if let Some((_, rest)) = line.split_once("trafficcop elect") {
            let words = rest.split(" | ").next().unwrap_or_default();
            let line = ["trafficcop", "elect"].into_iter();
            let line = line.chain(words.split_whitespace()).map(Into::into);
            cli::parse(line).unwrap_or_else(|why| panic!("{why}"));
        }
        if let Some(at) = VERBS
            .iter()
            .find_map(|verb| line.find(&format!("trafficcop {} ", verb.0)))
        {
            let (line, _pipe) = line[at..].split_once(" | ").unwrap_or((&line[at..], ""));
            cli::parse(line.split_whitespace().map(Into::into))
                .unwrap_or_else(|why| panic!("{why}"));
            looked += 1;
        }
        // Inside of other commands: only what clap has to say about it.
        if let Some((_, rest)) = line.split_once("trafficcop check") {
            let flag = rest.split(|c: char| ";)\"".contains(c)).next();
            let words = flag.unwrap_or_default().split_whitespace();
            let line = ["trafficcop", "check"].into_iter().chain(words);
            cli::parse(line.map(Into::into)).unwrap_or_else(|why| panic!("{why}"));
        }
    }
    assert!(
        looked >= 5,
        "only {looked} lines with the other verbs were found"
    );
    for (_, example) in cli::EXAMPLES
        .iter()
        .chain(cli::ELECT_EXAMPLES)
        .chain(cli::WORK_EXAMPLES)
    {
        let example = example.split(" | ").next().unwrap_or_default();
        cli::parse(example.split_whitespace().map(Into::into))
            .unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn what_the_readme_names_is_there() {
    let readme = text("README.md");
    for part in readme.split("](").skip(1) {
        let Some((target, _)) = part.split_once(')') else {
            continue;
        };
        if !target.starts_with("http") && !target.starts_with('#') {
            assert!(root().join(target).exists(), "README.md links to {target}");
        }
    }
    for path in [
        "examples/cron-job.sh",
        "examples/check/worker.sh",
        "examples/check/worker.py",
        "examples/migrate-once.sh",
        "examples/cron-on-ten-machines/try.sh",
        "examples/elect/by-role.sh",
        "examples/work/handle.sh",
        "examples/work/handle.py",
        "examples/roles/instance.sh",
        "examples/roles/primary.sh",
        "examples/roles/standby.sh",
        "examples/roles/on-acquire.sh",
        "examples/roles/on-lost.sh",
        ".ci/run",
    ] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(root().join(path))
            .expect(path)
            .permissions()
            .mode();
        assert_eq!(mode & 0o111, 0o111, "{path} cannot be run");
    }
}

#[test]
fn the_licences_are_there() {
    for (path, words) in [
        ("LICENSE-MIT", "MIT License"),
        ("LICENSE-APACHE", "Apache License"),
    ] {
        assert!(text(path).contains(words), "{path}");
    }
    assert!(Path::new(&root().join("CHANGELOG.md")).exists());
}
