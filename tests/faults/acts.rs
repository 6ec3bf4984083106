//! The faults, one function each. It checks that the target exists, causes the fault, and waits for
//! its effect before it undoes it.

use std::fs::File;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::stage::{Stage, signal};
use super::support::proxy::{Call, Fate, Mode};
use super::table::{Effect, Fault, Lock, Row, Shape};

/// Longer than any attempt may take.
const TOO_LATE: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_millis(1500);
/// Longest delay with which an attempt of five seconds gets its answer.
const VERY_LATE: Duration = Duration::from_secs(4);
const BUSY: Mode = Mode::Answer(503, "text/html", "<html>503</html>");
const SECOND: u64 = 1_000_000_000;

fn now() -> u64 {
    Instant::now().as_nanos()
}

/// Prepares the row before the first instance starts.
pub(crate) fn prepare(row: &Row, stage: &mut Stage) {
    stage.watched = row.fault == Fault::Hang;
    if row.lock != Lock::Blob {
        return;
    }
    let proxy = stage.put_proxy("a");
    if row.fault == Fault::LoseAcquire {
        proxy.next(Call::Acquire, Fate::LoseReply);
    }
}

/// Causes the row's fault for instance `a`, which is in control with token 1.
pub(crate) fn act(row: &Row, stage: &mut Stage) {
    match row.fault {
        Fault::KillSupervisor => kill_supervisor(stage, "a"),
        Fault::KillGuardian => kill_guardian(stage, "a"),
        Fault::KillBoth => kill_both(row, stage),
        Fault::StopSupervisor => stop_supervisor(stage, "a", stage.first),
        Fault::StopGuardian => stop_guardian(stage, "a"),
        Fault::StopBoth => stop_both(row, stage),
        Fault::StopThenKillSupervisor => {
            let pid = stage.supervisor("a");
            stage.stop(pid);
            signal(pid, Signal::SIGKILL);
        }
        Fault::StopGuardianKillSupervisor => stop_guardian_kill_supervisor(stage),
        Fault::Freeze => outage(stage, Mode::Freeze),
        Fault::Cut => outage(stage, Mode::Cut),
        Fault::Delay => outage(stage, Mode::Delay(TOO_LATE)),
        Fault::Busy => outage(stage, BUSY),
        Fault::LateThenFreeze => late_then_freeze(stage),
        Fault::BriefFreeze => brief_freeze(stage),
        Fault::BriefCut => brief_outage(stage, Mode::Cut),
        Fault::BriefDelay => brief_delay(stage),
        Fault::BriefBusy => brief_outage(stage, BUSY),
        Fault::LoseAcquire => lost_acquire(stage),
        Fault::LoseRenew => lose_renew(stage),
        Fault::LoseRelease => stage.proxy("a").next(Call::Release, Fate::LoseReply),
        Fault::BreakAtItsEnd => break_lease(stage, None),
        Fault::BreakWithPeriod => break_lease(stage, Some(60)),
        Fault::BreakNow => break_lease(stage, Some(0)),
        Fault::Delete => {
            let grant = stage.last_grant("a").expect("a grant");
            stage.blob.delete(&grant.lease_id.expect("an id"));
            await_loss(stage);
        }
        Fault::Replace | Fault::Unlink | Fault::ReplaceAndCome => touch_the_file(row, stage),
        Fault::Hang => {
            // By the process ids of this namespace.
            for pid in stage.tree_of("a") {
                signal(pid, Signal::SIGSTOP);
            }
            stage.await_log("a", "stopping the command: hung: no WATCHDOG=1 for 5s");
        }
    }
}

pub(crate) fn kill_supervisor(stage: &mut Stage, name: &str) {
    stage.guardian(name);
    signal(stage.supervisor(name), Signal::SIGKILL);
}

pub(crate) fn kill_guardian(stage: &mut Stage, name: &str) {
    let guardian = stage.guardian(name);
    signal(guardian, Signal::SIGKILL);
}

fn kill_both(row: &Row, stage: &mut Stage) {
    let guardian = stage.guardian("a");
    signal(guardian, Signal::SIGKILL);
    signal(stage.supervisor("a"), Signal::SIGKILL);
    if row.may_survive() && !row.may_overlap() {
        // The survivors have the lock's descriptor: no other instance gets control while they live.
        stage.await_life_or_tenure(now() + SECOND);
        stage.sweep("a");
    }
}

/// Stops the supervisor until another tenure begins or, where the stopped process keeps the lock,
/// until the tree is empty.
pub(crate) fn stop_supervisor(stage: &mut Stage, name: &str, token: u64) {
    let pid = stage.supervisor(name);
    stage.stop(pid);
    match stage.lock {
        Lock::File => stage.await_life(name, now() + 2 * SECOND),
        Lock::Shared | Lock::Blob | Lock::Store => {
            // Longer than a heartbeat: the journal sees what still runs at the same time.
            let (_, next) = stage.await_tenure_after(token);
            stage.await_life(&next, now() + SECOND / 5);
        }
    }
    signal(pid, Signal::SIGCONT);
}

pub(crate) fn stop_guardian(stage: &mut Stage, name: &str) {
    let guardian = stage.guardian(name);
    signal(guardian, Signal::SIGSTOP);
}

fn stop_both(row: &Row, stage: &mut Stage) {
    let (supervisor, guardian) = (stage.supervisor("a"), stage.guardian("a"));
    stage.stop(supervisor);
    stage.stop(guardian);
    match row.lock {
        Lock::File => stage.await_life("a", now() + 2 * SECOND),
        Lock::Shared | Lock::Blob | Lock::Store => drop(stage.await_tenure_after(stage.first)),
    }
    // First, so that the supervisor does not find it silent.
    signal(guardian, Signal::SIGCONT);
    signal(supervisor, Signal::SIGCONT);
}

fn stop_guardian_kill_supervisor(stage: &mut Stage) {
    let (supervisor, guardian) = (stage.supervisor("a"), stage.guardian("a"));
    // Both, so that the supervisor cannot find the guardian silent before it dies.
    stage.stop(supervisor);
    stage.stop(guardian);
    signal(supervisor, Signal::SIGKILL);
    stage.until("the supervisor to be dead", |stage| {
        stage.instances.get_mut("a")?.ended()
    });
    // The kernel sends it, too, if this death orphaned the guardian's process group.
    signal(guardian, Signal::SIGCONT);
}

fn outage(stage: &mut Stage, mode: Mode) {
    stage.proxy("a").set(mode);
    stage.await_tenure_after(stage.first);
    stage.proxy("a").set(Mode::Pass);
}

/// Delays the last answer: the lease counts from the request, so the late answer must not prolong
/// it.
fn late_then_freeze(stage: &mut Stage) {
    let since = now();
    let late = Fate::DelayReply(VERY_LATE);
    stage.proxy("a").next(Call::Renew, late);
    renewed(stage, since);
    outage(stage, Mode::Freeze);
}

fn brief_freeze(stage: &mut Stage) {
    let since = now();
    stage.proxy("a").set(Mode::Freeze);
    stage.await_seen("a", "a renewal that hangs", |seen| {
        seen.call == Call::Renew && seen.at > since
    });
    stage.proxy("a").set(Mode::Pass);
    renewed(stage, since);
}

fn brief_outage(stage: &mut Stage, mode: Mode) {
    stage.proxy("a").set(mode);
    stage.await_log("a", "cannot renew the lease");
    stage.proxy("a").set(Mode::Pass);
    stage.await_log("a", "the store answers again");
}

fn brief_delay(stage: &mut Stage) {
    let since = now();
    stage.proxy("a").set(Mode::Delay(LATE));
    renewed(stage, since);
    stage.proxy("a").set(Mode::Pass);
}

fn lose_renew(stage: &mut Stage) {
    let since = now();
    stage.proxy("a").next(Call::Renew, Fate::LoseReply);
    renewed(stage, since);
    let lost = |seen: &super::support::proxy::Seen| {
        seen.call == Call::Renew && seen.at > since && seen.status == Some(200) && !seen.delivered
    };
    stage.await_seen("a", "a lost renewal", lost);
}

fn lost_acquire(stage: &mut Stage) {
    stage.await_seen("a", "a lost acquire", |seen| {
        seen.call == Call::Acquire && seen.status == Some(201) && !seen.delivered
    });
}

pub(crate) fn lost_release(stage: &mut Stage) {
    stage.await_seen("a", "a lost release", |seen| {
        seen.call == Call::Release && seen.status == Some(200) && !seen.delivered
    });
}

fn renewed(stage: &mut Stage, since: u64) {
    stage.await_seen("a", "a renewal that is answered", |seen| {
        seen.call == Call::Renew && seen.at > since && seen.delivered
    });
}

fn break_lease(stage: &mut Stage, period: Option<u32>) {
    stage.blob.break_lease(period);
    await_loss(stage);
}

/// Waits until `a` reports the loss. An instance must not ask again after that answer. A store that
/// gets no processor may leave control in doubt before it answers.
fn await_loss(stage: &mut Stage) {
    const LOST: &str = "stopping the command: the lease was lost";
    const UNHEARD: &str = "stopping the command: the lease could not be renewed in time: no ";
    stage.until("a to stop for the loss", |stage| {
        let log = stage.instances["a"].stderr();
        (log.contains(LOST) || log.contains(UNHEARD)).then_some(())
    });
}

fn touch_the_file(row: &Row, stage: &mut Stage) {
    let lock = stage.scene.lock();
    if row.fault == Fault::Unlink {
        std::fs::remove_file(&lock).expect("the lock file can be unlinked");
    } else {
        let fresh = stage.scene.path("fresh");
        File::create(&fresh).expect("a file in the scene");
        std::fs::rename(&fresh, &lock).expect("a file of ours can be moved");
    }
    if row.fault == Fault::ReplaceAndCome {
        stage.start("newcomer", Shape::Plain);
        let by = |line: &super::support::journal::Line| line.tag == "newcomer";
        stage.await_line("the newcomer", by);
    }
    if row.effect() == Effect::Untouched {
        stage.await_life("a", now() + SECOND);
    }
}
