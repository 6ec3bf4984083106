//! The README and the CI script say what is so.

use std::path::Path;

use trafficcop::internals::{args, exit};

use crate::documents::making::definition_of;
use crate::documents::verbs::VERBS;
use crate::documents::{definition, root, table, text};

#[test]
fn the_readme_mentions_every_flag() {
    let readme = text("README.md");
    let drivers = ["run", "elect", "work"].map(definition_of);
    let whole = definition();
    let verbs = VERBS
        .iter()
        .filter_map(|verb| whole.find_subcommand(verb.0));
    let arguments = verbs.chain(&drivers).flat_map(clap::Command::get_arguments);
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
    let told = args::FOR_THE_MESSAGE.iter();
    let told = told.flat_map(|(names, meaning)| names.split(", ").map(move |name| (name, meaning)));
    for (variable, _) in args::FOR_THE_COMMAND
        .iter()
        .chain(args::FOR_THE_STORE)
        .map(|(name, meaning)| (*name, meaning))
        .chain(told)
    {
        assert!(
            readme.contains(variable),
            "README.md does not mention {variable}"
        );
    }
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
pub(crate) fn commands(readme: &str) -> Vec<String> {
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
    // In parts, of which some run beside others.
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
        args::parse(line).unwrap_or_else(|why| panic!("{why}"));
        seen += 1;
    }
    assert!(seen >= 5, "only {seen} command lines were found");
    let mut looked = 0;
    for line in commands(&text("README.md")) {
        if let Some((_, rest)) = line.split_once("trafficcop work ") {
            let line = ["trafficcop", "work"].into_iter();
            let line = line.chain(rest.split_whitespace()).map(Into::into);
            args::parse(line).unwrap_or_else(|why| panic!("{why}"));
        }
        if let Some((_, rest)) = line.split_once("trafficcop elect") {
            let words = rest.split(" | ").next().unwrap_or_default();
            let line = ["trafficcop", "elect"].into_iter();
            let line = line.chain(words.split_whitespace()).map(Into::into);
            args::parse(line).unwrap_or_else(|why| panic!("{why}"));
        }
        if let Some(at) = VERBS
            .iter()
            .find_map(|verb| line.find(&format!("trafficcop {} ", verb.0)))
        {
            let (line, _pipe) = line[at..].split_once(" | ").unwrap_or((&line[at..], ""));
            args::parse(line.split_whitespace().map(Into::into))
                .unwrap_or_else(|why| panic!("{why}"));
            looked += 1;
        }
        // Inside of other commands: only what clap has to say about it.
        if let Some((_, rest)) = line.split_once("trafficcop check") {
            let flag = rest.split(|c: char| ";)\"".contains(c)).next();
            let words = flag.unwrap_or_default().split_whitespace();
            let line = ["trafficcop", "check"].into_iter().chain(words);
            args::parse(line.map(Into::into)).unwrap_or_else(|why| panic!("{why}"));
        }
    }
    assert!(
        looked >= 5,
        "only {looked} lines with the other verbs were found"
    );
    for (_, example) in args::EXAMPLES
        .iter()
        .chain(args::ELECT_EXAMPLES)
        .chain(args::WORK_EXAMPLES)
    {
        let example = example.split(" | ").next().unwrap_or_default();
        args::parse(example.split_whitespace().map(Into::into))
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

pub(crate) fn run_help() -> String {
    let definition = definition();
    let run = definition.find_subcommand("run").expect("there is a run");
    run.clone().render_long_help().to_string()
}
