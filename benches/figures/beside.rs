//! The table of tools side by side: one column for each, measured in one run on one machine.
//!
//! Called by `main` as the section `beside`; prints Markdown, which docs/figures.md has as it comes.

mod cost;
mod latency;
mod safety;

use crate::numbers::Samples;
use crate::rows::{ROWS, TOOLS};
use crate::tools::{self, Tool, World};

/// What is known of each tool: a cell for each row, empty where nothing was or can be measured.
pub(crate) struct Table {
    cells: Vec<Vec<String>>,
}

impl Table {
    fn new() -> Table {
        Table {
            cells: vec![vec!["-".to_owned(); TOOLS.len()]; ROWS.len()],
        }
    }

    /// # Panics
    /// For a tool or a row that there is not.
    fn set(&mut self, row: &str, tool: &str, cell: String) {
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        let row = place(&ROWS, row).expect("a row of the table");
        let tool = place(&TOOLS, tool).expect("a tool of the table");
        self.cells[row][tool] = cell;
    }

    fn print(&self) {
        println!("| | {} |", TOOLS.join(" | "));
        println!("|---|{}", "---|".repeat(TOOLS.len()));
        for (row, cells) in ROWS.iter().zip(&self.cells) {
            println!("| {row} | {} |", cells.join(" | "));
        }
    }
}

/// A cell: the median, and what one run in a hundred exceeds, where that says more.
fn cell(samples: &Samples) -> String {
    match samples.len() {
        0 => "-".to_owned(),
        1..=4 => short(samples.p50()),
        _ => format!(
            "{} ({})",
            short(samples.p50()),
            short(samples.quantile(0.99))
        ),
    }
}

fn short(value: f64) -> String {
    if value >= 99.5 {
        format!("{value:.0}")
    } else if value >= 9.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Measures and prints. What fails for one tool is said below the table, and costs only its cell.
pub(crate) fn print(world: &World<'_>) {
    let (tools, mut remarks) = tools::all(world);
    println!("\nSide by side: median (p99).");
    for tool in &tools {
        println!("- {}: {}", tool.name, tool.version);
    }
    println!();
    let mut table = Table::new();
    let mut note = |what: &str, done: Result<(), String>| {
        if let Err(why) = done {
            remarks.push(format!("{what}: {why}"));
        }
    };
    note("start", latency::starts(world, &tools, &mut table));
    for tool in &tools {
        note(tool.name, cost::of_one(world, tool, &mut table));
        note(tool.name, cost::of_fifty(world, tool, &mut table));
    }
    // Those that only wait do so side by side.
    let measured: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = tools
            .iter()
            .map(|tool| scope.spawn(move || (tool, waits(world, tool))))
            .collect();
        threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    for (tool, rows) in measured.into_iter().flatten() {
        for (row, cell) in rows {
            match cell {
                Ok(cell) => table.set(row, tool.name, cell),
                Err(why) => note(tool.name, Err(format!("{row}: {why}"))),
            }
        }
    }
    table.print();
    println!();
    for remark in remarks {
        println!("- {remark}");
    }
}

/// A row, and what is in the tool's cell of it.
type Cell = (&'static str, Result<String, String>);

fn waits(world: &World<'_>, tool: &Tool) -> Vec<Cell> {
    let mut cells = vec![(
        ROWS[9],
        latency::hand_over(world, tool).map(|found| cell(&found)),
    )];
    cells.extend(safety::all(world, tool));
    cells
}
