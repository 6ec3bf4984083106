//! The guarantees' man page, chapter, and named tests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use clap_mangen::roff::{Roff, bold, roman};

use crate::documents::guarantees::{FENCING, GUARANTEES, LIMITS, SETTINGS, Shown};
use crate::documents::making::{inlines, page_of, see_also};
use crate::documents::{fresh, guarantees, root, table, text};

/// Formats as `ROOM: NAME, NAME; ROOM: NAME`.
fn tests_of(shown: &[Shown]) -> String {
    let of_one = |(room, names): &Shown| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("{room}: {}", names.join(", "))
    };
    let all: Vec<String> = shown.iter().map(of_one).collect();
    if all.is_empty() {
        return "–".into();
    }
    all.join("; ")
}

pub(crate) fn page_of_guarantees() -> Vec<u8> {
    let mut page = Roff::new();
    page.control("TH", ["trafficcop-guarantees", "7"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "trafficcop-guarantees - what trafficcop promises, and what it cannot",
    )]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("No process of the command's tree is alive at a moment when another instance could have been \
        given control. And the command is never stopped without need.")]);
    page.control("PP", []);
    page.text(inlines(guarantees::TIMES));
    page.control("PP", []);
    page.text(inlines(&guarantees::proof()));
    page.control("SH", ["FAULTS"]);
    for row in GUARANTEES {
        page.control("TP", []);
        page.text([bold(row.fault.replace('`', ""))]);
        page.text(inlines(row.happens));
        page.control("br", []);
        page.text([vec![roman("How long: ")], inlines(row.how_long)].concat());
    }
    page.control("SH", ["LIMITS"]);
    for row in LIMITS {
        page.control("TP", []);
        page.text([bold(row.what.replace(['`', '*'], ""))]);
        page.text(inlines(row.answer));
    }
    page.control("SH", ["WHAT MAY DIFFER BETWEEN INSTANCES"]);
    page.text(inlines(guarantees::DIFFERENT));
    for row in SETTINGS {
        page.control("TP", []);
        page.text([bold(row.flags.replace('`', ""))]);
        let follows = format!("{}. {}.", answer(row.may_differ), row.follows);
        page.text(inlines(&follows));
    }
    page.control("SH", ["FENCING TOKEN"]);
    for paragraph in FENCING {
        page.control("PP", []);
        page.text(inlines(paragraph));
    }
    page.control("PP", []);
    page.text([roman(
        "examples/fencing/ in the sources is such a resource in SQLite and PostgreSQL.",
    )]);
    let others = ["trafficcop", "trafficcop-run", "trafficcop-check"];
    see_also(&mut page, &others.map(|name| (name, "1")));
    page_of(&page)
}

fn answer(may_differ: bool) -> &'static str {
    if may_differ { "yes" } else { "no" }
}

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

const CHAPTER: &str = "docs/guarantees.md";
const RESOURCE: &str = "[examples/fencing](../examples/fencing) is such a resource in SQLite and PostgreSQL, with a \
    script that shows it refuse a stale holder. Use it where correctness depends on it.";
const BEGIN: &str =
    "<!-- from tests/it/documents/guarantees.rs: BLESS=1 cargo test --test it -- documents:: -->\n";
const END: &str = "<!-- end of the guarantees -->\n";

const APPENDIX: &str = "tests/GUARANTEES.md";

/// Returns the page that names the tests of each row, by its number.
fn appendix() -> String {
    let faults = GUARANTEES.iter().map(|row| row.shown);
    let limits = LIMITS.iter().map(|row| row.shown);
    let settings = SETTINGS.iter().map(|row| row.shown);
    let tables: [(&str, Vec<&[Shown]>); 3] = [
        ("F", faults.collect()),
        ("L", limits.collect()),
        ("S", settings.collect()),
    ];
    let mut made = "# Tests of the guarantees\n\n".to_owned();
    made += BEGIN;
    made += "\n";
    made += &filled(&format!(
        "The rows are numbered as in [guarantees](../docs/guarantees.md). {}",
        guarantees::TESTS
    ));
    made += "\n| row | shown by |\n|---|---|\n";
    for (letter, rows) in tables {
        for (number, shown) in rows.iter().enumerate() {
            let (number, tests) = (number + 1, tests_of(shown));
            let _ = writeln!(made, "| {letter}{number} | {tests} |");
        }
    }
    made
}

fn chapter_with_guarantees() -> String {
    let mut made = format!("\n{}\n", filled(&guarantees::proof()));
    made += "## Faults\n\n| | fault | what happens | how long |\n|---|---|---|---|\n";
    for (number, row) in GUARANTEES.iter().enumerate() {
        let (number, fault) = (number + 1, row.fault);
        let (happens, how_long) = (row.happens, row.how_long);
        let _ = writeln!(made, "| F{number} | {fault} | {happens} | {how_long} |");
    }
    let _ = write!(made, "\n{}", filled(guarantees::TIMES));
    made += "\n## Limits\n\n| | what | answer |\n|---|---|---|\n";
    for (number, row) in LIMITS.iter().enumerate() {
        let _ = writeln!(made, "| L{} | {} | {} |", number + 1, row.what, row.answer);
    }
    made += "\n## What may differ between instances\n\n";
    made += &filled(guarantees::DIFFERENT);
    made += "\n| | setting | may it differ? | what follows |\n|---|---|---|---|\n";
    for (number, row) in SETTINGS.iter().enumerate() {
        let (number, may) = (number + 1, answer(row.may_differ));
        let _ = writeln!(
            made,
            "| S{number} | {} | {may} | {} |",
            row.flags, row.follows
        );
    }
    made += "\n## The fencing token\n\n";
    for paragraph in FENCING {
        made += &filled(paragraph);
    }
    made += "\n";
    made += &filled(RESOURCE);
    made += "\n";
    let chapter = text(CHAPTER);
    let (before, rest) = chapter
        .split_once(BEGIN)
        .expect("the begin of the guarantees");
    let (_, after) = rest.split_once(END).expect("the end of the guarantees");
    format!("{before}{BEGIN}{made}{END}{after}")
}

#[test]
fn guarantees_in_the_book_are_those_of_the_man_page() {
    fresh(CHAPTER, chapter_with_guarantees().as_bytes());
    fresh(APPENDIX, appendix().as_bytes());
}

fn shown() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = GUARANTEES.iter().map(|row| row.shown);
    let all = all.chain(LIMITS.iter().map(|row| row.shown));
    let all = all.chain(SETTINGS.iter().map(|row| row.shown)).flatten();
    all.flat_map(|(room, names)| names.iter().map(move |name| (*room, *name)))
}

/// Collects all Rust text in this file or below this path.
fn sources(path: &Path, into: &mut String) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            sources(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        *into += &std::fs::read_to_string(path).expect("a source");
    }
}

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
    for (room, name) in shown() {
        let found = match room {
            "faults" => faults.contains(name),
            "supervise" => text("tests/supervise/cases.rs")
                .split_once("cases![")
                .and_then(|(_, list)| list.split_once(']'))
                .is_some_and(|(list, _)| list.split(',').any(|case| case.trim() == name)),
            _ => {
                let mut there = String::new();
                let places = match room {
                    "lib" => vec![root().join("src"), root().join("crates")],
                    room => ["tests", "tests/it"]
                        .iter()
                        .flat_map(|of| [format!("{of}/{room}.rs"), format!("{of}/{room}")])
                        .map(|place| root().join(place))
                        .collect(),
                };
                for place in places.iter().filter(|place| place.exists()) {
                    sources(place, &mut there);
                }
                is_a_test(&there, name)
            }
        };
        assert!(found, "there is no test {name} in {room}");
    }
    let named: BTreeSet<String> = shown()
        .filter(|(room, _)| *room == "faults")
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
            let mut faults = shown.iter().filter(|(room, _)| *room == "faults");
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
    // Each row has one; a random row has two or three rounds of one or two.
    let faults = guarantees::INJECTED_FAULTS - promised;
    assert!((2 * random..=6 * random).contains(&faults), "{faults}");
    let command = format!(
        "FLEET_COUNT={} cargo test --test fleet",
        guarantees::SCHEDULES
    );
    assert!(text("CONTRIBUTING.md").contains(&command), "{command}");
    assert!(text("tests/fleet.rs").contains("number(\"FLEET_SEED\", 1)"));
}
