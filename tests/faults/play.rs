//! Plays a row: instances compete, the fault comes, all instances end, and the judge decides.

use std::collections::BTreeSet;

use super::acts;
use super::gate::Gate;
use super::judge::{Verdict, judge, judge_outage};
use super::stage::Stage;
use super::table::{Effect, Fault, Lock, Row, Shape};

const OTHERS: [&str; 2] = ["b", "c"];

/// Plays a row of the table. Panics if something that must happen does not.
pub(crate) fn play(row: &Row, gate: &Gate) -> Verdict {
    let place = format!("row-{}", row.number);
    let mut stage = Stage::new(&place, row.lock, row.contain, row.lease());
    acts::prepare(row, &mut stage);
    excuse(row, &stage);
    let pass = gate.enter();
    stage.start("a", row.shape);
    stage.await_first("a", row.shape);
    for name in &OTHERS[..row.instances - 1] {
        stage.start(name, Shape::Plain);
        stage.await_log(name, "standing by");
    }
    stage.guardian("a");
    drop(pass);

    acts::act(row, &mut stage);

    let mut touched = BTreeSet::new();
    match row.effect() {
        Effect::Untouched => stage.await_life("a", trafficcop::Instant::now().as_nanos()),
        Effect::Lost => {
            touched.insert((stage.first, "a".to_owned()));
            if row.fault == Fault::ReplaceAndCome {
                // The newcomer never saw the old file, so its token is 1, too.
                stage.await_no_tree_of("a");
            } else {
                stage.await_tenure_after(stage.first);
            }
        }
    }
    stage.let_end();
    if row.may_survive() {
        // Wait for the other tenures while the survivors still live, so that the journal sees any
        // overlap.
        stage.await_supervisors();
        let survivors = stage.tree_of("a").len();
        stage.sweep("a");
        stage.await_end();
        let mut verdict = judge(&mut stage, &touched);
        if survivors > 0 {
            let text = format!("{survivors} processes");
            verdict.survivors.push(text);
        }
        return verdict;
    }
    stage.await_end();
    if row.fault == Fault::LoseRelease {
        acts::lost_release(&mut stage);
    }
    let mut verdict = judge(&mut stage, &touched);
    let outages = [
        Fault::LateThenFreeze,
        Fault::Freeze,
        Fault::Cut,
        Fault::Delay,
        Fault::Busy,
    ];
    if outages.contains(&row.fault) {
        judge_outage(&mut stage, &mut verdict);
    }
    if !verdict.overlaps.is_empty() {
        // An instance that lived through an overlap must report it.
        let lives_on = match row.fault {
            Fault::StopBoth | Fault::BreakNow | Fault::Delete => row.lock == Lock::Blob,
            Fault::ReplaceAndCome => true,
            _ => false,
        };
        let says = stage.instances["a"]
            .stderr()
            .contains("may have run at the same time");
        assert!(
            says || !lives_on,
            "an overlap is not reported\n{}",
            stage.story()
        );
    }
    if !verdict.is_clean() && row.is_of_the_promise() {
        eprintln!("{}: {verdict:?}\n{}", row.name(), stage.story());
    }
    verdict
}

/// Excuses the reports of overlaps that this row causes.
fn excuse(row: &Row, stage: &Stage) {
    let scene = &stage.scene;
    if !row.is_of_the_promise() {
        scene.excuse_event_logs("what cannot be excluded is seen, and counted by the journal");
    }
    match row.fault {
        Fault::StopBoth if row.lock != Lock::File => scene.excuse_event_logs(
            "the namespace ends its tree in time, but the process that would record when is stopped",
        ),
        Fault::BreakAtItsEnd | Fault::BreakWithPeriod => scene.excuse_confession(
            "the store says that the lease was broken, and not since when others may have it",
        ),
        Fault::Replace | Fault::Unlink => {
            scene.excuse_confession("the holder of another file's lock is unknown");
        }
        _ => {}
    }
}
