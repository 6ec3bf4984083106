//! Which attempts are made in place, and what an error of the heartbeat means.

use super::*;

fn candidate() -> Candidate {
    Candidate {
        identity: "a".into(),
        host: "h".into(),
        pid: 1,
        command: String::new(),
    }
}

#[test]
fn an_error_of_the_heartbeat_is_a_loss_only_where_a_server_can_take_the_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut place = Place {
        path: directory.path().join("lock"),
        create: true,
        candidate: candidate(),
        network: true,
        desk: Arc::new(Desk::new(tempfile::tempfile().expect("a file"))),
        duty: None,
    };
    let lost = |failure| matches!(failure, Failure::Lost { until: None, .. });
    for errno in [Errno::EIO, Errno::ESTALE, Errno::ENOLCK, Errno::EBADF] {
        assert!(lost(place.beat_failure(errno)), "{errno}");
    }
    for errno in [Errno::ETIMEDOUT, Errno::EROFS, Errno::ENOSPC, Errno::EACCES] {
        assert!(!lost(place.beat_failure(errno)), "{errno}");
    }
    place.network = false;
    assert!(!lost(place.beat_failure(Errno::EIO)));
}

#[test]
fn only_the_first_attempt_is_made_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = |name| Config {
        path: directory.path().join(name),
        candidate: candidate(),
        heartbeat: Heartbeat::Auto,
        lease: Duration::from_secs(15),
        create: true,
    };
    let usual = File::open(config("usual")).expect("opened");
    assert!(!usual.begins_in_place());
    let file = File::open(config("lock")).expect("opened");
    let file = file.competing_in_place();
    assert!(file.begins_in_place());
    assert!(!file.begins_in_place());
    let beating = Config {
        heartbeat: Heartbeat::On,
        ..config("beating")
    };
    let beating = File::open(beating).expect("opened").competing_in_place();
    assert!(!beating.begins_in_place(), "it has a deadline to keep");
}
