//! The book's tables of figures have the shape of `cargo bench`'s. The figures themselves are those
//! of one machine on one day.

#[path = "../../../benches/figures/rows.rs"]
mod rows;

use crate::documents::text;

/// Checks that the chapter has a table with these names, and a value in each cell.
fn has_table(page: &str, after: &str, columns: &[&str], rows: &[&str]) {
    let chapter = text(page);
    let (_, figures) = chapter.split_once(after).expect("what goes before");
    let mut lines = figures.lines().skip_while(|line| !line.starts_with('|'));
    let head = format!("| | {} |", columns.join(" | "));
    assert_eq!(lines.next(), Some(&*head));
    let cells = |line: &str| line.trim_matches('|').split('|').count();
    assert_eq!(lines.next().map(cells), Some(columns.len() + 1));
    let told: Vec<&str> = lines.take_while(|line| line.starts_with('|')).collect();
    let names: Vec<&str> = told
        .iter()
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .next()
                .unwrap_or("")
                .trim()
        })
        .collect();
    assert_eq!(names, rows);
    assert!(told.iter().all(|line| cells(line) == columns.len() + 1));
}

#[test]
fn the_book_s_figures_are_those_that_cargo_bench_prints() {
    has_table(
        "docs/figures.md",
        "## Beside other tools\n",
        &rows::TOOLS,
        &rows::ROWS,
    );
    has_table(
        "benches/crowd.md",
        "table is simulated",
        &rows::CROWDS,
        &rows::CROWD_ROWS,
    );
}
