//! What `run` needs of the machine, whatever the store: a guardian, and what keeps a tree together.
//!
//! Called by `doctor` before there is a second thread. It must never kill what other instances left.

use super::{Check, Findings, brief};
use crate::clock::Instant;
use crate::commands::lock_target;
use crate::guardian::containment::{Cgroup, Pidns};
use crate::guardian::{self, Contain, Program, Setup};

/// Forks a guardian and ends it, tries each containment.
pub(super) fn examine(findings: &mut Findings) {
    let cgroup = Cgroup::available();
    let pidns = Pidns::available();
    findings.add(guardian());
    findings.add(match &cgroup {
        Ok(()) => Check::ok("cgroup", "can be had: --contain auto uses one"),
        Err(why) => Check::warn(
            "cgroup",
            why,
            "without it --contain auto kills process by process",
        ),
    });
    findings.add(match pidns {
        Ok(_) => Check::ok("pidns", "can be had with --contain pidns"),
        Err(why) => Check::warn("pidns", why, "needed only for --contain pidns"),
    });
}

fn guardian() -> Check {
    const NAME: &str = "guardian";
    let begun = Instant::now();
    let forked = guardian::fork(Setup {
        programs: vec![Program {
            words: vec!["true".into()],
            in_front: false,
        }],
        contain: Contain::None,
        grace: std::time::Duration::ZERO,
        on_orphaned: |_| (),
        withheld: Vec::new(),
    });
    let guardian = match forked {
        Ok(guardian) => guardian,
        Err(why) => return Check::fail(NAME, why.to_string(), ""),
    };
    let dismissed = lock_target::run(async {
        let handle = guardian.attend()?;
        let took = Instant::now().since(begun);
        handle.dismiss().await;
        Ok(took)
    });
    match dismissed {
        Ok(took) => Check::ok(NAME, format!("forked and answered in {}", brief(took))),
        Err(why) => Check::fail(NAME, format!("{why:#}"), ""),
    }
}
