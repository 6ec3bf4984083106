//! What is written about the program agrees with the program: man pages, README, unit, CI script.
//! `BLESS=1 cargo test --test documents` writes the man pages anew.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use trafficcop::{cli, exit};

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
    rest.text([bold("trafficcop-run"), roman("(1)")]);
    rest.to_writer(&mut page).expect(write);
    page
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
        bold("trafficcop-check"),
        roman("(1), "),
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
    fresh("man/trafficcop-check.1", &page_of_check());
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
    let run = run_definition();
    for arg in run.get_arguments().filter(|arg| arg.get_id() != "help") {
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
    for (variable, _) in cli::FOR_THE_COMMAND.iter().chain(cli::FOR_THE_STORE) {
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
    for line in commands(&text("README.md")) {
        // Inside of other commands: only what clap has to say about it.
        if let Some((_, rest)) = line.split_once("trafficcop check") {
            let flag = rest.split(|c: char| ";)\"".contains(c)).next();
            let words = flag.unwrap_or_default().split_whitespace();
            let line = ["trafficcop", "check"].into_iter().chain(words);
            cli::parse(line.map(Into::into)).unwrap_or_else(|why| panic!("{why}"));
        }
    }
    for (_, example) in cli::EXAMPLES {
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
fn the_unit_is_one_systemd_accepts() {
    let dir = tempfile::tempdir().expect("a directory");
    // Verified under a program that exists here: where trafficcop is installed is not known.
    let unit = text("examples/trafficcop@.service");
    assert!(unit.contains("/usr/local/bin/trafficcop"));
    let there = dir.path().join("trafficcop@job.service");
    std::fs::write(
        &there,
        unit.replace("/usr/local/bin/trafficcop", "/bin/true"),
    )
    .expect("written");
    let Ok(verdict) = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&there)
        .output()
    else {
        println!(
            "systemd-analyze is not installed here: examples/trafficcop@.service was not verified"
        );
        return;
    };
    let said = String::from_utf8_lossy(&verdict.stderr);
    let about_it: Vec<&str> = said
        .lines()
        .filter(|line| line.contains(&*there.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    assert!(about_it.is_empty() && verdict.status.success(), "{said}");
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
