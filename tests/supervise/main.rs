//! The guardian on real processes, with the worst commands.
//!
//! This binary plays three roles. It has no usual harness, because a guardian can only be forked
//! from a process of one thread, which a test under that harness never is.

mod cases;
mod proc;
mod roles;
mod scene;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::{SigHandler, Signal, signal};
use scene::Who;
use trafficcop_guardian::Contain;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("--supervisor") => {
            let command = words[2..].iter().map(Into::into).collect();
            roles::supervisor(&words[1], command);
            ExitCode::SUCCESS
        }
        Some("--nursery") => {
            roles::nursery(&words[1..]);
            ExitCode::SUCCESS
        }
        Some("--probe") => roles::probed(&words[1]),
        Some("--act") => {
            roles::act(&words[1..]);
            ExitCode::SUCCESS
        }
        _ => judge(&words),
    }
}

/// Runs the cases whose names contain one of the words; accepts what `cargo test` passes on.
fn judge(words: &[String]) -> ExitCode {
    // A shell that starts this process in the background sets these to be ignored, and the commands
    // would inherit that.
    for number in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
        // SAFETY: the default disposition runs no code of ours.
        unsafe { signal(number, SigHandler::SigDfl) }.expect("a disposition");
    }
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let mut cases: Vec<(String, cases::Case, Who)> = Vec::new();
    for (who, suffix) in settings() {
        for (name, case) in cases::ALL {
            cases.push((format!("{name}{suffix}"), *case, who));
        }
    }
    cases.retain(|(name, ..)| {
        filters.is_empty() || filters.iter().any(|word| name.contains(word.as_str()))
    });
    if words.iter().any(|word| word == "--list") {
        for (name, ..) in &cases {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((name, case, who)) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let result = std::panic::catch_unwind(AssertUnwindSafe(|| case(*who)));
                    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
                    println!("{name} ... {verdict}");
                    if result.is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} run, {} failed {failed:?}", cases.len(), failed.len());
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the settings that every case runs in; prints what the machine refuses.
fn settings() -> Vec<(Who, &'static str)> {
    let all = [
        (false, Contain::None, ""),
        (true, Contain::None, "_as_nobody"),
        (false, Contain::Cgroup, "_in_a_cgroup"),
        (false, Contain::Pidns, "_in_a_namespace"),
        (true, Contain::Pidns, "_in_a_namespace_as_nobody"),
    ];
    let mut settings = Vec::new();
    for (nobody, contain, suffix) in all {
        let who = Who { nobody, contain };
        if nobody && !nix::unistd::geteuid().is_root() {
            println!("*{suffix} ... skipped: only root can become another user");
        } else if let Err(why) = roles::probe(who) {
            println!("*{suffix} ... skipped: {why}");
        } else {
            settings.push((who, suffix));
        }
    }
    settings
}
