use std::process::Command;

use trafficcop::internals::{args, exit};

use crate::documents::pages::{page_of_elect, page_of_run, page_of_trafficcop, page_of_work};
use crate::documents::promises::page_of_guarantees;
use crate::documents::readme::run_help;
use crate::documents::stores::page_of_store;
use crate::documents::verbs::{
    VERBS, page_of_check, page_of_completions, page_of_formats, page_of_man, page_of_timeline,
    page_of_verb,
};
use crate::documents::{definition, fresh, root, text};

const UNITS: [&str; 4] = [
    "examples/trafficcop@.service",
    "examples/work/trafficcop-work@.service",
    "examples/timer/trafficcop-daily@.service",
    "examples/timer/trafficcop-daily@.timer",
];

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
    fresh("man/trafficcop-store.7", &page_of_store());
    fresh("man/trafficcop-man.1", &page_of_man());
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
    for path in ["man/*.1", "man/*.5", "man/*.7"].into_iter().chain(UNITS) {
        let debian = format!("[\"{path}\", ");
        let rpm = format!("source = \"{path}\", ");
        assert!(
            package.contains(&debian) && package.contains(&rpm),
            "{path}"
        );
    }
    for line in package.lines().filter(|line| line.starts_with("    [\"")) {
        let path = line.split('"').nth(1).expect("a path");
        let built = path.starts_with("target/");
        let there = path.contains('*') || root().join(path).exists();
        assert!(built || there, "the Debian package wants {path}");
    }
}

/// rpm leaves directories that no package owns when it erases a package.
#[test]
fn the_directories_of_the_rpm_that_are_ours_alone_go_with_it() {
    let package = text("Cargo.toml");
    let mut ours: Vec<&str> = package
        .lines()
        .filter_map(|line| line.split_once("dest = \"")?.1.split('"').next())
        .filter(|place| place.contains("/trafficcop/"))
        .filter_map(|place| Some(place.rsplit_once('/')?.0))
        .collect();
    ours.push("/usr/share/trafficcop");
    ours.sort_unstable();
    ours.dedup();
    let script = package.split("post_uninstall_script").nth(1);
    let removed = script.and_then(|script| script.split("rmdir ").nth(1));
    let removed = removed.and_then(|rest| rest.split(" 2>").next());
    let mut removed: Vec<&str> = removed.expect("a script").split(' ').collect();
    // Innermost first.
    for (at, place) in removed.iter().enumerate() {
        let inside = |later: &&str| later.starts_with(&format!("{place}/"));
        assert!(!removed[at..].iter().any(inside), "{removed:?}");
    }
    removed.sort_unstable();
    ours.sort_unstable();
    assert_eq!(removed, ours);
}

#[test]
fn the_binary_writes_every_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let man = dir.path().join("share/man");
    let output = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
        .arg("man")
        .arg(&man)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    let pages = std::fs::read_dir(root().join("man")).expect("the pages");
    let mut count = 0;
    for page in pages.map(|page| page.expect("a page").path()) {
        let name = page.file_name().and_then(|name| name.to_str());
        let (name, section) = name
            .and_then(|n| Some((n, n.rsplit_once('.')?.1)))
            .expect("NAME.N");
        let written = std::fs::read(man.join(format!("man{section}")).join(name));
        let written = written.unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(written == std::fs::read(&page).expect("the page"), "{name}");
        count += 1;
    }
    // The example's build has the files that are compiled into the binary.
    assert!(text("examples/Dockerfile").contains("\nCOPY man man\n"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with(&format!("{count} pages written to ")),
        "{said}"
    );
    std::fs::write(dir.path().join("file"), "").expect("a file");
    let output = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
        .args([
            std::ffi::OsStr::new("man"),
            dir.path().join("file").as_os_str(),
        ])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("file/man1/trafficcop.1"), "{said}");
}

#[test]
fn the_timeline_s_picture_is_what_is_drawn_of_its_logs() {
    let names = ["web1", "web2", "web3"];
    let logs = names.map(|name| text(&format!("examples/timeline/{name}.events")));
    let log = trafficcop_timeline::read(logs.iter().map(|text| ("example", text.as_bytes())));
    let drawn = trafficcop_timeline::svg(&trafficcop_timeline::merge(&log, 0));
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
            args::parse(line.split_whitespace().map(Into::into))
                .unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
fn the_help_names_every_exit_status_and_variable() {
    let help = run_help();
    for (name, _) in exit::TABLE
        .iter()
        .chain(args::FOR_THE_COMMAND)
        .chain(args::FOR_THE_STORE)
    {
        assert!(help.contains(name), "{name}");
    }
}
