//! What is written about the program agrees with the program: man pages, README, unit, CI script.
//! `BLESS=1 cargo test --test it -- documents::` writes the man pages and the README's guarantees anew.

mod completions;
mod figures;
mod guarantees;
mod making;
mod man;
mod pages;
mod promises;
mod readme;
#[expect(
    dead_code,
    reason = "only the names of its rows and what they promise are needed"
)]
#[path = "../../faults/table.rs"]
mod table;
mod verbs;

use std::path::PathBuf;

use trafficcop::internals::args;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// The definition as it is without the environment of whoever runs the tests, as every test here
/// wants it; `build` gives subcommands their full names. `help` is clap's, and has no page.
fn definition() -> clap::Command {
    let mut definition = args::definition().disable_help_subcommand(true);
    definition.build();
    definition
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
        "{} is not what the definitions say: BLESS=1 cargo test --test it -- documents::",
        path.display()
    );
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
