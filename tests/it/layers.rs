//! Dependencies between modules, by the rules of the architecture: the core knows only the clock,
//! stores and processes do not know each other, nothing below the command line knows clap, prints
//! or exits, and `unsafe` stays in its modules.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules that a module of `src/` or a crate may name. The kernel's side of `trafficcop-core`
/// counts as separate modules, so that the decisions stay pure. A new module needs a line here.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("units", &[]),
    ("util", &[]),
    ("machine", &["clock"]),
    ("core", &["clock"]),
    ("azure", &["clock", "core", "machine"]),
    ("guardian", &["clock", "core", "machine"]),
    ("lease", &["azure", "clock", "core", "machine"]),
    ("service-bus", &["azure", "clock", "core"]),
    ("timeline", &["units"]),
    ("queue", &["azure", "service-bus"]),
    ("signals", &["core", "machine"]),
    ("notify", &["clock", "core", "driver", "report", "guardian"]),
    ("hooks", &["clock", "core"]),
    (
        "driver",
        &["doorbell", "clock", "core", "machine", "lease", "signals"],
    ),
    (
        "embed",
        &[
            "doorbell", "azure", "clock", "core", "driver", "host", "lease", "queue", "signals",
            "work",
        ],
    ),
    (
        "work",
        &[
            "azure", "clock", "core", "events", "exit", "driver", "host", "machine", "lease",
            "notify", "config", "queue", "report", "run", "serve", "signals", "status", "guardian",
            "units",
        ],
    ),
    (
        "elect",
        &[
            "doorbell", "args", "clock", "core", "deadline", "exit", "driver", "host", "machine",
            "lease", "config", "report", "run", "signals", "guardian", "units",
        ],
    ),
    ("deadline", &["clock", "guardian"]),
    ("host", &["deadline", "machine"]),
    ("exit", &["core", "queue"]),
    (
        "args",
        &[
            "doorbell", "azure", "core", "exit", "guardian", "host", "notify", "queue", "report",
            "units",
        ],
    ),
    (
        "events",
        &["clock", "core", "driver", "machine", "report", "timeline"],
    ),
    (
        "config",
        &[
            "doorbell", "azure", "args", "core", "exit", "host", "lease", "notify", "queue",
            "report", "serve", "guardian", "units",
        ],
    ),
    (
        "serve",
        &[
            "clock", "core", "driver", "machine", "report", "status", "guardian",
        ],
    ),
    (
        "report",
        &["clock", "core", "driver", "exit", "timeline", "units"],
    ),
    ("doorbell", &["clock", "core"]),
    (
        "cli",
        &[
            "args", "commands", "config", "elect", "exit", "guardian", "machine", "report", "run",
            "work",
        ],
    ),
    ("status", &["machine", "report"]),
    (
        "commands",
        &[
            "doorbell", "azure", "args", "clock", "core", "deadline", "exit", "host", "lease",
            "config", "machine", "report", "signals", "guardian", "timeline", "units",
        ],
    ),
    (
        "run",
        &[
            "doorbell", "azure", "clock", "core", "events", "exit", "driver", "lease", "machine",
            "notify", "config", "report", "hooks", "host", "serve", "signals", "status",
            "guardian", "units",
        ],
    ),
];

const CRATES: [&str; 6] = [
    "azure",
    "core",
    "guardian",
    "lease",
    "service-bus",
    "timeline",
];

const KERNEL_S_SIDE: [&str; 4] = ["clock", "machine", "units", "util"];

/// Words that only some modules may contain, and why.
const WORDS: &[(&[&str], &[&str], &str)] = &[
    (
        &["clap::"],
        &["args"],
        "only the command line knows clap, but for what a kind is called (clap::ValueEnum)",
    ),
    (
        &[
            "println!",
            "print!",
            "eprintln!",
            "eprint!",
            "dbg!",
            "io::stderr(",
            "io::stdout(",
        ],
        &["report", "main"],
        "one place writes to people",
    ),
    (
        &["process::exit", "process::abort"],
        &["exit", "main"],
        "one place decides how we end (a guardian leaves by _exit)",
    ),
    (
        &["anyhow::", "anyhow!"],
        &[
            "cli", "elect", "exit", "report", "run", "timeline", "commands", "work",
        ],
        "errors are typed below the top",
    ),
    (
        &["env::var", "env::vars"],
        &[
            "args", "cli", "deadline", "elect", "host", "run", "runtime", "guardian", "commands",
            "work",
        ],
        "the environment is passed in",
    ),
    (
        &[
            "std::time::Instant",
            "SystemTime",
            "tokio::time::Instant",
            "time::{Instant",
        ],
        &["azure", "report", "status", "main"],
        "deadlines are on the clock that counts suspend; wall clocks are for people",
    ),
    (
        &["unsafe {", "unsafe fn", "unsafe impl"],
        // The C library's entry point.
        &["guardian", "main"],
        "unsafe stays in its room",
    ),
];

struct Source {
    room: String,
    path: PathBuf,
    code: String,
    text: String,
}

fn sources() -> Vec<Source> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("src can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join("src"), &mut found);
    for entry in std::fs::read_dir(root.join("crates")).expect("the crates") {
        walk(&entry.expect("a crate").path().join("src"), &mut found);
    }
    found.sort();
    let sources: Vec<Source> = found
        .into_iter()
        .filter(|path| !path.ends_with("tests.rs"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source can be read");
            let inside = path.strip_prefix(root).expect("below the root");
            Source {
                room: room(inside),
                code: code(&text),
                text,
                path,
            }
        })
        .collect();
    assert!(
        sources.len() > 10,
        "only {} sources: looked in the wrong place",
        sources.len()
    );
    sources
}

/// Returns the module of a path: the folder or file below `src`, or the crate.
fn room(inside: &Path) -> String {
    let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
    let part = |at: usize| parts[at].trim_end_matches(".rs").to_owned();
    match &*parts[0] {
        "src" => part(1),
        _ if parts[1] == "core" && KERNEL_S_SIDE.contains(&&*part(3)) => part(3),
        _ => part(1),
    }
}

fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek().map_or("", |next| next.trim_start());
        if line.trim() == "#[cfg(test)]" && (next.starts_with("mod ") || next.starts_with("#[")) {
            break;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// Returns the modules named by `crate::room`, by `crate::{room, ...}` or as a crate.
fn named(code: &str) -> BTreeSet<String> {
    let (own, core) = (below("crate::", code), below("trafficcop_core::", code));
    let of_core = |name: String| match KERNEL_S_SIDE.contains(&&*name) {
        true => name,
        false => "core".to_owned(),
    };
    let crates = ["azure", "guardian", "lease", "service_bus", "timeline"];
    let crates = crates
        .into_iter()
        .filter(|name| code.contains(&format!("trafficcop_{name}")));
    let crates = crates.map(|name| name.replace('_', "-"));
    let own = own.into_iter().map(|name| match &*name {
        "lasting" | "procfs" | "runtime" | "background_writer" => "machine".to_owned(),
        _ => name,
    });
    own.chain(core.into_iter().map(of_core))
        .chain(crates)
        .collect()
}

/// Returns the first names after this beginning of a path.
fn below(begin: &str, code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices(begin) {
        let rest = &code[at + begin.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            rooms.insert(word(rest));
            continue;
        };
        let mut depth = 1;
        let mut fresh = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                c if fresh && c.is_alphabetic() => {
                    rooms.insert(word(&group[at..]));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    rooms
}

/// Whether a chain of `super::` reaches the crate's root.
fn leaves_by_super(path: &Path, code: &str) -> bool {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let depth = inside.unwrap_or(path).components().count();
    let depth = depth - usize::from(path.ends_with("mod.rs"));
    code.contains(&"super::".repeat(depth))
}

fn strangers(room: &str, code: &str) -> Vec<String> {
    let Some((_, known)) = MAY_KNOW.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{room} is a new room: say in tests/it/layers.rs whom it may know"
        )];
    };
    let of_core = room == "core" || KERNEL_S_SIDE.contains(&room);
    let in_a_crate = CRATES.contains(&room);
    named(code)
        .into_iter()
        // `crate::` stays in its crate, except for the parts of the core.
        .filter(|name| match of_core {
            true => KERNEL_S_SIDE.contains(&&**name) || CRATES.contains(&&**name),
            false => !in_a_crate || CRATES.contains(&&**name) || KERNEL_S_SIDE.contains(&&**name),
        })
        // Capitalized names are re-exports of lib.rs.
        .filter(|name| name != room && name.starts_with(char::is_lowercase))
        // Every module may use it; it uses none.
        .filter(|name| name != "util")
        .filter(|name| !known.contains(&name.as_str()))
        .map(|name| format!("{room} knows {name}"))
        .collect()
}

fn misplaced(room: &str, code: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // An enum of the command line has its own spelling and help.
    let code = code.replace("clap::ValueEnum", "");
    for (words, rooms, why) in WORDS.iter().filter(|(_, rooms, _)| !rooms.contains(&room)) {
        for word in words.iter().filter(|word| code.contains(*word)) {
            faults.push(format!("'{word}' outside {}: {why}", rooms.join(", ")));
        }
    }
    faults
}

#[test]
fn rooms_know_only_whom_they_may() {
    let mut faults = Vec::new();
    for source in sources() {
        if ["main", "lib"].contains(&&*source.room) {
            continue;
        }
        for fault in strangers(&source.room, &source.code) {
            faults.push(format!("{}: {fault}", source.path.display()));
        }
        if source
            .path
            .starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
            && leaves_by_super(&source.path, &source.code)
        {
            faults.push(format!(
                "{}: leaves its room by super::",
                source.path.display()
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn words_stay_in_their_rooms() {
    let mut faults = Vec::new();
    for source in sources() {
        for fault in misplaced(&source.room, &source.code) {
            faults.push(format!("{}: {fault}", source.path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether an enum has more than spellings and help.
fn logic(code: &str) -> bool {
    let mut impls = code.lines().filter(|line| line.starts_with("impl"));
    code.lines()
        .any(|line| line.starts_with("fn ") || line.starts_with("pub fn "))
        || impls.any(|line| !line.contains("Display for "))
}

#[test]
fn files_say_what_they_are_for_and_stay_small() {
    let mut faults = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//! ") {
            faults.push(format!(
                "{}: does not begin with its purpose",
                source.path.display()
            ));
        }
        let lines = source.code.lines().count();
        if lines > 500 {
            faults.push(format!(
                "{}: {lines} lines want to be two files",
                source.path.display()
            ));
        }
        if source.path.ends_with("mod.rs") && logic(&source.code) {
            faults.push(format!("{}: a mod.rs has no logic", source.path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Rules are useful only if a violation fails.
#[test]
fn a_broken_rule_is_seen() {
    assert_eq!(strangers("core", "use crate::clock::Instant;"), [""; 0]);
    assert_eq!(
        strangers("core", "use trafficcop_lease::LeaseStore;"),
        ["core knows lease"]
    );
    assert_eq!(
        strangers("guardian", "use trafficcop_lease::LeaseStore;"),
        ["guardian knows lease"]
    );
    assert_eq!(
        strangers("lease", "fn f(x: trafficcop_guardian::Guardian) {}"),
        ["lease knows guardian"]
    );
    assert_eq!(
        strangers("core", "use crate::{budget, machine::{procfs}};"),
        ["core knows machine"]
    );
    assert_eq!(
        strangers(
            "hooks",
            "use crate::{clock, core::{Exit, lease}, lease::{self}};"
        ),
        ["hooks knows lease"]
    );
    assert_eq!(strangers("attic", "").len(), 1);
    assert_eq!(misplaced("driver", "std::process::exit(1)").len(), 1);
    assert_eq!(misplaced("azure", "use clap::Args;").len(), 1);
    assert!(misplaced("azure", "use clap::ValueEnum;").is_empty());
    assert_eq!(misplaced("lease", "let now = SystemTime::now();").len(), 1);
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let two = "use super::super::Exit;";
    assert!(leaves_by_super(&src.join("run/open.rs"), two));
    assert!(!leaves_by_super(&src.join("commands/doctor/blob.rs"), two));
    assert!(logic("pub fn f() {}") && logic("impl X {") && !logic("pub trait T {\n    fn f();"));
    assert!(misplaced("exit", "std::process::exit(1)").is_empty());
    let text = "use a; // crate::lease\n#[cfg(test)]\nmod tests {\n println!() }";
    assert_eq!(code(text), "use a; \n");
}
