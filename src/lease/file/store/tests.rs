//! Which attempts are made in place.

use std::time::Duration;

use super::*;

fn competitor(in_place: bool) -> Competitor {
    let candidate = Candidate {
        identity: "a".into(),
        host: "h".into(),
        pid: 1,
        command: String::new(),
        bell: None,
    };
    Competitor {
        in_place,
        ..Competitor::new(candidate, Duration::ZERO)
    }
}

#[test]
fn only_the_first_attempt_is_made_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name| directory.path().join(name);
    let usual = File::open(&path("usual"), &competitor(false)).expect("opened");
    assert!(!usual.begins_in_place());
    let file = File::open(&path("lock"), &competitor(true)).expect("opened");
    assert!(file.begins_in_place());
    assert!(!file.begins_in_place());
}
