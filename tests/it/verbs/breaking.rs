//! `break` announces what it does, asks before, and breaks only the lease that it has shown.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use super::{Place, STRING, connection_string, refused, said};
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::Ended;
use crate::support::programs::trafficcop;
use crate::support::proxy::{Call, Proxy};
use crate::support::scene::Scene;

const ID: &str = "11111111-2222-3333-4444-555555555555";

/// Makes a blob with the lease of a foreign client.
fn leased(name: &str) -> Blob {
    let blob = Blob::named(name);
    blob.create(&[("trafficcop_token", "5"), ("trafficcop_holder", "web5-17")]);
    blob.acquire(ID, 60);
    blob
}

#[test]
fn break_without_yes_breaks_nothing() {
    let scene = Scene::new();
    let blob = leased("breaking/unasked");
    let proxy = Proxy::before(azurite().port);
    let place = Place::blob_at(&blob.name, proxy.port);
    for args in [&[][..], &["--period", "0"]] {
        let finished = place.verb(&scene, "break").args(args).finish();
        refused(&finished, 64, &["--yes", "nothing was broken"]);
        assert!(finished.stdout.contains("web5-17"), "{finished:?}");
    }
    let log = proxy.log();
    assert!(log.iter().all(|seen| seen.call == Call::Look), "{log:?}");
    assert_eq!(blob.lease_state(), "leased");
}

/// Other programs take such leases, and have not agreed to lose them at once.
#[test]
fn a_lease_without_an_end_is_not_broken_at_once() {
    let scene = Scene::new();
    let blob = Blob::named("breaking/endless");
    blob.create(&[]);
    blob.acquire(ID, -1);
    let place = Place::blob(&blob.name);
    let finished = place.verb(&scene, "break").arg("--yes").finish();
    said(&finished, 0, &["in 60 seconds"]);
    assert_eq!(blob.lease_state(), "breaking");
}

#[test]
fn a_break_says_what_it_does_and_does_it() {
    let scene = Scene::new();
    let end = |name: &str, args: &[&str]| {
        let place = Place::blob(name);
        place.verb(&scene, "break").arg("--yes").args(args).finish()
    };
    let now = leased("breaking/now");
    let words = [
        "web5-17",
        "AT ONCE",
        "run at the same time until then",
        "--if-lost exit",
        "control now",
    ];
    said(&end(&now.name, &["--period", "0"]), 0, &words);
    assert_eq!(now.lease_state(), "broken");

    let soon = leased("breaking/soon");
    said(
        &end(&soon.name, &["--period", "20"]),
        0,
        &["in 20 seconds", "next renewal"],
    );
    assert_eq!(soon.lease_state(), "breaking");
    let status = Place::blob(&soon.name).status(&scene);
    assert_eq!(
        (&status["state"], &status["held"]),
        (&"breaking".into(), &true.into())
    );
    // A second break can make it shorter.
    said(
        &end(&soon.name, &["--period", "0"]),
        0,
        &["breaking already", "control now"],
    );
    assert_eq!(soon.lease_state(), "broken");

    let later = leased("breaking/later");
    let finished = end(&later.name, &[]);
    said(
        &finished,
        0,
        &["its time is over", "another instance can have control in"],
    );
    assert_eq!(later.lease_state(), "breaking");

    said(&end(&now.name, &[]), 1, &["free", "nothing to break"]);
    said(&end("breaking/never-made", &[]), 1, &["nothing to break"]);
    assert_eq!(Blob::named("breaking/never-made").look(), None);
}

#[test]
fn a_holder_whose_lease_is_broken_at_its_end_has_stopped_by_then() {
    let scene = Scene::new();
    let place = Place::blob("breaking/holder");
    let run = place
        .verb(&scene, "run")
        .args(["--lease", "15s", "--if-lost", "exit"]);
    let mut holder = run.journalist("a", &[]).start();
    holder.await_log("in control");
    said(
        &place.verb(&scene, "break").arg("--yes").finish(),
        0,
        &["another instance can have control in"],
    );
    assert_eq!(holder.wait(), Ended::Code(70), "{}", holder.stderr());
    scene.assert_no_tree();
}

#[test]
fn a_lock_on_a_file_is_not_broken_but_its_holder_named() {
    let scene = Scene::new();
    let place = Place::file(&scene);
    let mut holder = place.hold(&scene, "web1", "sleep 600");
    let pid = format!("kill {}", holder.pid());
    let finished = place.verb(&scene, "break").arg("--yes").finish();
    refused(&finished, 64, &["cannot be broken", &pid, "web1"]);
    holder.assert_running();
    holder.signal(Signal::SIGTERM);
    holder.wait();
    let finished = place.verb(&scene, "break").arg("--yes").finish();
    said(&finished, 1, &["free", "nothing to break"]);
}

struct Asked {
    child: Child,
    terminal: File,
}

impl Asked {
    fn about(blob: &Blob) -> Asked {
        let pty = crate::support::pty::open(None);
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let child = Command::new(trafficcop())
            .env_clear()
            .env(STRING, connection_string(azurite().port))
            .args(["break", "--period", "0", "--blob", &blob.name])
            .stdin(end())
            .stderr(end())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        drop(pty.slave);
        let mut terminal = File::from(pty.master);
        let mut shown = Vec::new();
        while !shown.ends_with(b"[y/N] ") {
            let mut byte = [0];
            terminal.read_exact(&mut byte).expect("a question");
            shown.push(byte[0]);
        }
        Asked { child, terminal }
    }

    fn answers(mut self, text: &str) -> (Option<i32>, String) {
        self.terminal.write_all(text.as_bytes()).expect("typed");
        let output = self.child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    }
}

#[test]
fn a_person_is_asked_and_everything_but_yes_is_no() {
    let blob = leased("breaking/asked");
    for no in ["n\n", "\n", "yesterday\n", "\x04"] {
        let (status, said) = Asked::about(&blob).answers(no);
        assert_eq!(status, Some(1), "{no:?}: {said}");
        assert!(said.contains("nothing was broken"), "{said}");
        assert_eq!(blob.lease_state(), "leased", "after {no:?}");
    }
    let (status, said) = Asked::about(&blob).answers("y\n");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(blob.lease_state(), "broken");
}

#[test]
fn a_lock_that_changed_hands_while_one_thought_is_left_alone() {
    let scene = Scene::new();
    let blob = leased("breaking/changed");
    let asked = Asked::about(&blob);
    blob.release(ID);
    let mut next = Place::blob(&blob.name).hold(&scene, "web6", "sleep 600");
    let (status, said) = asked.answers("y\n");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("changed hands"), "{said}");
    assert_eq!(blob.lease_state(), "leased");
    next.assert_running();
}
