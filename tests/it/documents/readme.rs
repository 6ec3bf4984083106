//! README, book and CI script are true; the README keeps its length and order.

use std::path::Path;

use trafficcop::internals::{args, exit};

use crate::documents::commands::lines_of;
use crate::documents::making::definition_of;
use crate::documents::verbs::VERBS;
use crate::documents::{definition, manual, root, text};

/// Ten minutes of reading.
const LINES: usize = 220;
const BYTES: usize = 10 * 1024;
const ORDER: [&str; 9] = [
    "Install",
    "A minute to try",
    "The promise",
    "Recipes",
    "Azure in ten lines",
    "When something is wrong",
    "Compared with other tools",
    "In a Rust program",
    "Documentation",
];

#[test]
fn the_readme_keeps_its_measure_and_its_order() {
    let readme = text("README.md");
    let lines = readme.lines().count();
    assert!(lines <= LINES, "README.md has {lines} lines");
    assert!(
        readme.len() <= BYTES,
        "README.md has {} bytes",
        readme.len()
    );
    let headings: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert_eq!(headings, ORDER);
    let first: Vec<&str> = readme.lines().take(12).collect();
    assert!(first.join("\n").contains("at most one"), "{first:?}");
}

#[test]
fn the_manual_mentions_every_flag() {
    let manual: String = manual().into_iter().map(|(_, text)| text).collect();
    let drivers = ["run", "elect", "work"].map(definition_of);
    let whole = definition();
    let verbs = VERBS
        .iter()
        .filter_map(|verb| whole.find_subcommand(verb.0));
    let arguments = verbs.chain(&drivers).flat_map(clap::Command::get_arguments);
    for arg in arguments.filter(|arg| arg.get_id() != "help" && !arg.is_hide_set()) {
        if let Some(long) = arg.get_long() {
            let told = manual
                .match_indices(&format!("--{long}"))
                // A mention of `--grace-on-loss` is none of `--grace`.
                .any(|(at, flag)| {
                    !manual[at + flag.len()..]
                        .starts_with(|c: char| c == '-' || c.is_alphanumeric())
                });
            assert!(told, "README.md and docs/ do not mention --{long}");
        }
        if let Some(short) = arg.get_short() {
            assert!(
                manual.contains(&format!("`-{short}")),
                "README.md and docs/ do not mention -{short}"
            );
        }
    }
    let told = args::FOR_THE_MESSAGE.iter();
    let told = told.flat_map(|(names, meaning)| names.split(", ").map(move |name| (name, meaning)));
    for (variable, _) in args::FOR_THE_COMMAND
        .iter()
        .chain(args::FOR_THE_STORE)
        .chain(args::FOR_SERVICE_BUS)
        .map(|(name, meaning)| (*name, meaning))
        .chain(told)
    {
        assert!(
            manual.contains(variable),
            "README.md and docs/ do not mention {variable}"
        );
    }
}

/// Help and manual page list them, from one table.
#[test]
fn the_exit_statuses_stand_once() {
    let page = text("man/trafficcop-run.1");
    let (_, section) = page
        .split_once(".SH \"EXIT STATUS\"")
        .expect("the statuses");
    let section = section.split("\n.SH ").next().unwrap_or_default();
    let told: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("\\fB")?.strip_suffix("\\fR"))
        .collect();
    let meant: Vec<String> = exit::TABLE
        .iter()
        .map(|(status, _)| status.replace('-', "\\-"))
        .collect();
    assert_eq!(told, meant);
    // Made from the same table.
    for (path, text) in manual().iter().filter(|page| page.0 != "docs/reference.md") {
        for (status, _) in exit::TABLE {
            let by_hand = text
                .lines()
                .any(|line| line.starts_with(&format!("| {status} |")));
            assert!(!by_hand, "{path} has a table with the exit status {status}");
        }
    }
}

#[test]
fn ci_runs_the_readme_s_test_command() {
    let ci = text(".ci/run");
    assert!(
        text("README.md").contains("`cargo test`"),
        "README.md has no test command"
    );
    // In parts, some of them concurrent.
    let lines = ci.lines().map(str::trim);
    let parts = lines.filter(|line| line.contains(" cargo test ") && !line.starts_with('#'));
    let parts: Vec<&str> = parts.flat_map(str::split_whitespace).collect();
    for part in ["--lib", "--doc"] {
        assert!(parts.contains(&part), ".ci/run leaves out {part}");
    }
    let mut binaries = 0;
    for entry in std::fs::read_dir(root().join("tests")).expect("the tests") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|of| of == "rs") || path.join("main.rs").exists() {
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.expect("a name");
            let named = parts.windows(2).any(|words| words == ["--test", name]);
            assert!(named, ".ci/run leaves out --test {name}");
            binaries += 1;
        }
    }
    assert!(binaries >= 5, "only {binaries} binaries were found");
}

#[test]
fn the_readme_runs_its_main_job_and_its_tests_on_a_fresh_machine() {
    let wanted = "cargo run --release -- run --file singleton.lock -- ./examples/cron-job.sh";
    let lines = lines_of(&text("README.md"));
    assert!(lines.iter().any(|line| line == wanted), "no {wanted}");
}

#[test]
fn scripts_of_the_examples_are_executable() {
    for path in [
        "examples/cron-job.sh",
        "examples/check/worker.sh",
        "examples/check/worker.py",
        "examples/migrate-once.sh",
        "examples/cron-on-ten-machines/try.sh",
        "examples/demo/demo.py",
        "examples/elect/by-role.sh",
        "examples/work/handle.sh",
        "examples/work/handle.py",
        "examples/work/session.sh",
        "examples/roles/instance.sh",
        "examples/roles/primary.sh",
        "examples/roles/standby.sh",
        "examples/roles/on-acquire.sh",
        "examples/roles/on-lost.sh",
        ".ci/run",
        ".ci/package",
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

pub(crate) fn run_help() -> String {
    let definition = definition();
    let run = definition.find_subcommand("run").expect("there is a run");
    run.clone().render_long_help().to_string()
}
