//! The documents agree with the program: man pages, README, book, CI script. `BLESS=1 cargo test
//! --test it -- documents::` updates the man pages and the guarantees' tables.

mod blocks;
mod commands;
mod completions;
mod examples;
mod figures;
mod guarantees;
mod help;
mod links;
mod making;
mod man;
mod messages;
mod pages;
mod planted;
mod promises;
mod readme;
mod reference;
mod stores;
#[expect(
    dead_code,
    reason = "only the names of its rows and what they promise are needed"
)]
#[path = "../../faults/table.rs"]
mod table;
mod verbs;
mod way;
mod words;

use std::path::PathBuf;

use trafficcop::internals::args;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

fn chapters() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("docs")).expect("the book");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
    names.retain(|name| name.ends_with(".md") && name != "SUMMARY.md");
    names.sort();
    assert!(names.len() >= 12, "only {names:?}");
    names.iter().map(|name| format!("docs/{name}")).collect()
}

fn manual() -> Vec<(String, String)> {
    let paths = ["README.md".to_owned()].into_iter().chain(chapters());
    paths.map(|path| (path.clone(), text(&path))).collect()
}

/// Returns the definition without the tests' environment. `build` gives subcommands their full
/// names. `help` is clap's, and has no page.
fn definition() -> clap::Command {
    let mut definition = args::definition().disable_help_subcommand(true);
    definition.build();
    definition
}

fn fresh(path: &str, wanted: &[u8]) {
    let path = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        // A concurrent reader (another test, a packager) sees the old page or the new one.
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
