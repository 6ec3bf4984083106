//! Which attempts are made in place.

use super::*;

fn candidate() -> Candidate {
    Candidate {
        identity: "a".into(),
        host: "h".into(),
        pid: 1,
        command: String::new(),
        bell: None,
    }
}

#[test]
fn only_the_first_attempt_is_made_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = |name| Config {
        path: directory.path().join(name),
        candidate: candidate(),
        create: true,
    };
    let usual = File::open(config("usual")).expect("opened");
    assert!(!usual.begins_in_place());
    let mut file = File::open(config("lock")).expect("opened");
    file.in_place = AtomicBool::new(true);
    assert!(file.begins_in_place());
    assert!(!file.begins_in_place());
}
