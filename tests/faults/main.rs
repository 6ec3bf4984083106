//! The fault suite: every fault on every lock, with every kind of command, in every containment, on
//! real processes; and random combinations from a seed.
//!
//!     cargo test --test faults                          everything
//!     cargo test --test faults -- KillBoth/Blob         the rows whose names contain this
//!     FAULTS_VERBOSE=1 ...                              a line for each row
//!     FAULTS_SEED=7 FAULTS_RANDOM=100 ...               other combinations, and more of them
//!     FAULTS_JOBS=16 ...                                how many rows are played at the same time
//!
//! It is a separate binary because its rows are data, not functions; it runs beside the other
//! tests.
//!
//! Rows of the promise tolerate nothing. In the other rows, as the guarantees say, no local process
//! can exclude an overlap: overlaps are only counted. A row that cannot run on this machine is
//! named with the reason; so is one that failed while the whole machine was paused, and was played
//! again.

mod acts;
mod gate;
mod judge;
mod play;
mod random;
mod stage;
#[expect(dead_code, reason = "each test binary uses a part of the support")]
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gate::Gate;
use judge::Verdict;
use nix::sys::signal::{SigHandler, Signal, signal};
use random::Made;
use support::instance::Ended;
use support::scene::Scene;
use table::{CONTAINS, Contain, Row};
use trafficcop::Instant;

const RANDOM: u64 = 24;
/// Rows played at the same time: most of their time they wait for a lease.
const JOBS: u64 = 64;
/// Rows that start processes at the same time.
const STARTS: usize = 4;

enum Piece {
    Row(Row),
    Made(Made),
}

impl Piece {
    fn name(&self) -> String {
        match self {
            Piece::Row(row) => row.name(),
            Piece::Made(made) => made.name(),
        }
    }

    fn contain(&self) -> Contain {
        match self {
            Piece::Row(row) => row.contain,
            Piece::Made(made) => made.contain,
        }
    }

    fn faults(&self) -> usize {
        match self {
            Piece::Row(_) => 1,
            Piece::Made(made) => made.faults(),
        }
    }

    fn is_of_the_promise(&self) -> bool {
        match self {
            Piece::Row(row) => row.is_of_the_promise(),
            Piece::Made(_) => true,
        }
    }

    fn wrong(&self, verdict: &Verdict) -> Vec<String> {
        let (may_overlap, may_survive) = match self {
            Piece::Row(row) => (row.may_overlap(), row.may_survive()),
            Piece::Made(_) => (false, false),
        };
        let mut wrong = verdict.needless.clone();
        if !may_overlap {
            wrong.extend(verdict.overlaps.clone());
        }
        if !may_survive {
            wrong.extend(verdict.survivors.clone());
        }
        wrong
    }
}

#[derive(Default)]
struct Sum {
    rows: usize,
    faults: usize,
    overlaps: usize,
    survivors: usize,
    needless: usize,
}

impl Sum {
    fn add(&mut self, piece: &Piece, verdict: &Verdict) {
        self.rows += 1;
        self.faults += piece.faults();
        self.overlaps += usize::from(!verdict.overlaps.is_empty());
        self.survivors += usize::from(!verdict.survivors.is_empty());
        self.needless += usize::from(!verdict.needless.is_empty());
    }

    fn print(&self, title: &str) {
        println!(
            "{title:<42} {:>5} {:>6} {:>8} {:>9} {:>8}",
            self.rows, self.faults, self.overlaps, self.survivors, self.needless
        );
    }
}

#[derive(Default)]
struct Results {
    promise: Sum,
    others: Sum,
    again: usize,
    failed: Vec<(String, Vec<String>)>,
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => otherwise,
    }
}

fn main() -> ExitCode {
    // A shell that starts this process in the background sets these to be ignored.
    for number in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
        // SAFETY: the default disposition runs no code of ours.
        unsafe { signal(number, SigHandler::SigDfl) }.expect("a disposition");
    }
    // A failure prints everything that was seen; its place in this source adds nothing.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let seed = number("FAULTS_SEED", 1);
    let made =
        (0..number("FAULTS_RANDOM", RANDOM)).filter_map(|number| usize::try_from(number).ok());
    let mut pieces: Vec<Piece> = made
        .map(|number| Piece::Made(Made::by(seed, number)))
        .collect();
    pieces.extend(table::rows().into_iter().map(Piece::Row));
    pieces.retain(|piece| {
        let name = piece.name();
        filters.is_empty() || filters.iter().any(|word| name.contains(word.as_str()))
    });
    if words.iter().any(|word| word == "--list") {
        for piece in &pieces {
            println!("{}: test", piece.name());
        }
        return ExitCode::SUCCESS;
    }
    perform(pieces, seed)
}

fn unavailable() -> BTreeMap<&'static str, String> {
    let mut reasons = BTreeMap::new();
    for contain in CONTAINS {
        let scene = Scene::new();
        let run = scene.run_on_file().args(["--contain", contain.word()]);
        let finished = run.command(["true"]).finish();
        if finished.ended != Ended::Code(0) {
            let last = finished.stderr.lines().last().unwrap_or_default();
            reasons.insert(contain.word(), last.to_owned());
        }
    }
    reasons
}

fn perform(mut pieces: Vec<Piece>, seed: u64) -> ExitCode {
    let begin = Instant::now();
    let verbose = std::env::var_os("FAULTS_VERBOSE").is_some();
    let reasons = unavailable();
    let mut cannot: Vec<String> = Vec::new();
    pieces.retain(|piece| {
        let reason = reasons.get(piece.contain().word());
        if let Some(reason) = reason {
            cannot.push(format!("{}: {reason}", piece.name()));
        }
        reason.is_none()
    });
    // Once, before dozens of rows want it at the same time.
    if pieces.iter().any(|piece| piece.name().contains("Blob")) {
        support::blob::Blob::named("faults/first").create(&[]);
    }
    support::programs::journalist();
    support::standstill::watch();

    let gate = Gate::of(STARTS);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Results::default());
    let jobs = usize::try_from(number("FAULTS_JOBS", JOBS)).unwrap_or(1);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(pieces.len()) {
            scope.spawn(|| {
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::SeqCst)) {
                    play(piece, seed, &gate, &results, verbose);
                }
            });
        }
    });

    let results = results
        .into_inner()
        .expect("no thread panicked with the lock");
    println!();
    for row in &cannot {
        println!("cannot run here: {row}");
    }
    println!(
        "{:<42} {:>5} {:>6} {:>8} {:>9} {:>8}",
        "rows with", "rows", "faults", "overlaps", "survivors", "needless"
    );
    results.promise.print("the promise");
    results
        .others
        .print("what cannot be excluded locally: seen");
    println!("{}", support::event_logs::judged());
    println!(
        "{} rows could not run here; {} played again; seed {seed}; {} s; {} failed",
        cannot.len(),
        results.again,
        Instant::now().since(begin).as_secs(),
        results.failed.len()
    );
    for (name, wrong) in &results.failed {
        println!("FAILED {name}: {}", wrong.join("; "));
    }
    if results.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn play_once(piece: &Piece, seed: u64, gate: &Gate) -> (Verdict, Vec<String>) {
    let played = std::panic::catch_unwind(AssertUnwindSafe(|| match piece {
        Piece::Row(row) => play::play(row, gate),
        Piece::Made(made) => random::play(made, seed, gate),
    }));
    match played {
        Ok(verdict) => {
            let wrong = piece.wrong(&verdict);
            (verdict, wrong)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let first = text.and_then(|text| text.lines().next()).unwrap_or("?");
            (Verdict::default(), vec![first.to_owned()])
        }
    }
}

fn play(piece: &Piece, seed: u64, gate: &Gate, results: &Mutex<Results>, verbose: bool) {
    let mut begin = Instant::now();
    let (mut verdict, mut wrong) = play_once(piece, seed, gate);
    let mut again = 0;
    // An overlap, even if the machine was paused.
    let stood_still = match verdict.overlaps[..] {
        [] => support::standstill::since(begin),
        _ => support::standstill::of_all_since(begin),
    };
    if !wrong.is_empty()
        && let Some(late) = stood_still
    {
        println!(
            "{} ... played again: the machine was paused for {late:.1?}, and then {}",
            piece.name(),
            wrong.join("; ")
        );
        again = 1;
        begin = Instant::now();
        (verdict, wrong) = play_once(piece, seed, gate);
    }
    let took: Duration = Instant::now().since(begin);
    let mut results = results.lock().expect("no thread panicked with the lock");
    results.again += again;
    if piece.is_of_the_promise() {
        results.promise.add(piece, &verdict);
    } else {
        results.others.add(piece, &verdict);
    }
    if verbose || !wrong.is_empty() {
        let seen = if verdict.is_clean() { "" } else { ", seen" };
        let word = if wrong.is_empty() { "ok" } else { "FAILED" };
        println!(
            "{} ... {word}{seen} ({:.1} s)",
            piece.name(),
            took.as_secs_f64()
        );
    }
    if !wrong.is_empty() {
        results.failed.push((piece.name(), wrong));
    }
}
