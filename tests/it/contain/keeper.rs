use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use trafficcop::Instant;
use trafficcop_guardian::containment::{Pidns, lock_holder};

use crate::contain::cgroup::{family, forever};
use crate::contain::namespace::{in_namespaces, meet, pidns_or_say_so};
use crate::contain::role::{dies, pidfd, say, told, within};

#[test]
fn the_keeper_holds_the_lock_until_the_namespace_is_empty() {
    in_namespaces("keeper::role_keeper", |mut role| {
        let lock = PathBuf::from(role.hear());
        let guardian = role.hear_number();
        let keeper = pidfd(role.hear_number());
        let (_, all) = meet(&mut role);
        let file = File::options().read(true).write(true).open(&lock);
        let file = file.expect("readable by us");
        assert!(file.try_lock().is_err(), "the guardian holds it");
        kill(Pid::from_raw(guardian), Signal::SIGKILL).expect("killed");
        // The role inherits the main process and, like some containers' process 1, reaps nothing:
        // the kernel keeps the namespace, with only dead processes in it.
        assert!(all[1..].iter().all(dies));
        assert!(dies(&keeper), "the keeper ends by itself");
        file.try_lock().expect("free");
        assert!(!within(&all[0], 0), "init waits for its main process");
        role.tell("reap");
        assert!(all.iter().all(dies));
        role.end_well();
    });
}

#[test]
#[ignore = "a role"]
fn role_keeper() {
    if !pidns_or_say_so() {
        return;
    }
    nix::sys::prctl::set_child_subreaper(true).expect("allowed");
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("lock");
    say(path.display());
    // SAFETY: one thread.
    match unsafe { nix::unistd::fork() }.expect("a guardian") {
        nix::unistd::ForkResult::Child => {
            let lock = File::create(&path).expect("a file");
            lock.lock().expect("ours alone");
            let space = Pidns::open(Instant::FOREVER).expect("a namespace");
            let keeper = lock_holder::start(lock.as_fd(), &space).expect("a keeper");
            // SAFETY: one thread.
            let (main, _) = family(|| unsafe { space.fork() });
            say(std::process::id());
            say(keeper);
            say(space.init());
            say(main);
            forever()
        }
        nix::unistd::ForkResult::Parent { child } => {
            told();
            waitpid(child, None).expect("reaped");
            while waitpid(Pid::from_raw(-1), None).is_ok() {}
        }
    }
}
