//! A machine that refuses.

use nix::sys::resource::Resource;

use crate::support::instance::assert_ended;
use crate::support::scene::Scene;

#[test]
fn a_limit_of_the_size_of_files_costs_the_event_log_and_not_the_command() {
    const LIMIT: u64 = 64 * 1024;
    let scene = Scene::new();
    let log = scene.path("events");
    std::fs::write(&log, "x".repeat(LIMIT as usize - 1) + "\n").unwrap();
    let finished = scene
        .run_on_file()
        .limited(Resource::RLIMIT_FSIZE, LIMIT)
        .arg("--event-log")
        .arg(&log)
        // Not before the log was to be written, of which nobody waits for.
        .shell("exec 2>/dev/null; head -c 70000 /dev/zero >big; echo $?; exit 3")
        .current_dir(scene.directory())
        .finish();
    assert_ended(&finished, 3, "cannot write the event log");
    // The command dies of what trafficcop does not die of: what is a death is for its starter to say.
    assert_eq!(finished.stdout, "153\n", "{}", finished.stderr);
    assert_eq!(
        finished
            .stderr
            .matches("cannot write the event log")
            .count(),
        1
    );
    assert_eq!(std::fs::metadata(&log).unwrap().len(), LIMIT);
}
