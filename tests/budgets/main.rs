//! Budgets of size and language: no crate grows beyond its ceiling, and the English of the project gets no worse.
//!
//! `table.txt` has one row for each figure: its ceiling and its budget. A ceiling is only ever lowered, down to its
//! budget: `BLESS=1 cargo test --test budgets` lowers those that can be lowered, and never raises one.

mod code;
mod prose;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Lists files below these places, without what is built or installed.
fn files(places: &[&str], ending: &str) -> Vec<PathBuf> {
    fn walk(at: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        if at.is_dir() {
            let skipped = ["target", "node_modules", "book", ".git"];
            if at
                .file_name()
                .is_some_and(|name| skipped.iter().any(|skip| name == *skip))
            {
                return;
            }
            for entry in fs::read_dir(at).into_iter().flatten().flatten() {
                walk(&entry.path(), ending, found);
            }
        } else if at.to_string_lossy().ends_with(ending) {
            found.push(at.to_owned());
        }
    }
    let mut found = Vec::new();
    for place in places {
        walk(&root().join(place), ending, &mut found);
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    ceiling: usize,
    budget: usize,
}

fn parse(table: &str) -> BTreeMap<String, Row> {
    let rows = table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, ceiling, budget] = words[..] else {
            panic!("'{line}' is no row: name, ceiling, budget");
        };
        let number = |text: &str| {
            text.parse()
                .unwrap_or_else(|_| panic!("'{text}' in '{line}'"))
        };
        let (ceiling, budget) = (number(ceiling), number(budget));
        assert!(
            ceiling >= budget,
            "'{line}': a ceiling is never below its budget"
        );
        (name.to_owned(), Row { ceiling, budget })
    };
    rows.map(row).collect()
}

fn exceeded(table: &BTreeMap<String, Row>, today: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, figure) in today {
        match table.get(name) {
            None => wrong.push(format!("{name}: {figure}, and no row in tests/budgets/table.txt")),
            Some(row) if *figure > row.ceiling => wrong.push(format!(
                "{name}: {figure} is above its ceiling of {} (budget {}): take something out, ceilings are never \
                 raised",
                row.ceiling, row.budget
            )),
            Some(_) => {}
        }
    }
    let gone = table.keys().filter(|name| !today.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name}: a row for nothing")));
    wrong
}

fn lowered(table: &str, today: &BTreeMap<String, usize>) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (Some(name), Some(ceiling), Some(budget)) = (words.next(), words.next(), words.next())
        else {
            return line.to_owned();
        };
        let (Ok(ceiling), Ok(budget), Some(figure)) = (
            ceiling.parse::<usize>(),
            budget.parse::<usize>(),
            today.get(name),
        ) else {
            return line.to_owned();
        };
        let ceiling = ceiling.min(budget.max(*figure));
        format!("{name:24} {ceiling:7} {budget:7}")
    };
    table.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

fn today() -> BTreeMap<String, usize> {
    let mut today = code::figures();
    today.extend(prose::figures());
    today
}

#[test]
fn no_figure_is_above_its_ceiling() {
    let path = root().join("tests/budgets/table.txt");
    let (table, today) = (read(&path), today());
    let wrong = exceeded(&parse(&table), &today);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lower = lowered(&table, &today);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, lower).expect("the table can be written");
        return;
    }
    // A ceiling far above its figure would let the next change grow unseen.
    let slack = |(name, row): (&String, &Row)| {
        let reachable = today[name].max(row.budget);
        (row.ceiling > reachable + row.ceiling / 50 + 1)
            .then(|| format!("{name}: {} can be {reachable}", row.ceiling))
    };
    let slack: Vec<String> = parse(&table).iter().filter_map(slack).collect();
    assert!(
        slack.is_empty(),
        "BLESS=1 lowers these ceilings: {}",
        slack.join(", ")
    );
}

#[test]
fn exceeded_ceilings_are_named_with_their_number_and_limit() {
    let table = parse("# name ceiling budget\nlines:core 100 80\nprose:we 0 0\n");
    let today = |core: usize| BTreeMap::from([("lines:core".into(), core), ("prose:we".into(), 0)]);
    assert_eq!(exceeded(&table, &today(100)), [""; 0]);
    let wrong = exceeded(&table, &today(101));
    assert!(
        wrong[0].starts_with("lines:core: 101 is above its ceiling of 100 (budget 80)"),
        "{wrong:?}"
    );
    let unknown = BTreeMap::from([("lines:attic".into(), 1)]);
    assert_eq!(exceeded(&table, &unknown).len(), 3);
}

#[test]
fn bless_lowers_ceilings_down_to_the_budget_and_raises_none() {
    let table = "# a comment\nlines:core 100 80\n";
    let with = |core: usize| lowered(table, &BTreeMap::from([("lines:core".into(), core)]));
    let ceiling = |core: usize| parse(&with(core))["lines:core"].ceiling;
    assert_eq!([ceiling(90), ceiling(70), ceiling(120)], [90, 80, 100]);
    assert!(with(90).starts_with("# a comment\n"));
}
