use std::path::Path;

use super::*;
use crate::core::Notice;

/// Returns a service manager's socket, and the handle that sends to it.
fn heard_in(place: &Path, ready: Ready, word: &str) -> (UnixDatagram, ServiceManager) {
    let path = place.join("manager");
    let manager = UnixDatagram::bind(&path).unwrap();
    let variable = |name: &str| match name {
        "NOTIFY_SOCKET" => Some(path.clone().into_os_string()),
        "RUNTIME_DIRECTORY" => Some(place.into()),
        _ => None,
    };
    let here = Surroundings {
        variable: &variable,
        pid: 7,
    };
    let service_manager = ServiceManager::open(&here, ready, word, 1, false, None).unwrap();
    (manager, service_manager)
}

#[test]
fn lost_socket_is_retried_at_the_usual_pace() {
    let place = tempfile::tempdir().unwrap();
    let (manager, service_manager) = heard_in(place.path(), Ready::Standby, "looking");
    service_manager.works("waiting".into());
    assert_eq!(
        service_manager.0.owes(PACE),
        None,
        "READY and STATUS were sent"
    );
    drop(manager);
    service_manager.0.state().told_at = Instant::ZERO;
    service_manager.works("working".into());
    service_manager.0.try_again();
    let wait = service_manager.0.owes(Duration::MAX).unwrap();
    assert!(!wait.is_zero() && wait <= PACE, "{wait:?}");
}

#[test]
fn last_messages_of_a_command_are_not_attributed_to_the_next() {
    let place = tempfile::tempdir().unwrap();
    let (manager, mut service_manager) = heard_in(place.path(), Ready::Command, "competing");
    let socket = service_manager.for_the_command(0).unwrap();
    let command = UnixDatagram::unbound().unwrap();
    command.send_to(b"READY=1\nSTATUS=done", &socket).unwrap();
    service_manager.workload_event(0, &WorkloadEvent::TreeEmpty { at: Instant::ZERO });
    let (notice, lock) = (&Notice::Released, "file:/x");
    let released = Observation::Notice { notice, lock };
    service_manager.take(&Happened::new(Instant::ZERO, &released));
    let mut buffer = [0; 1024];
    manager.set_nonblocking(true).unwrap();
    let mut said = String::new();
    while let Ok(length) = manager.recv(&mut buffer) {
        said.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    assert_eq!(said.matches("READY=1").count(), 1, "{said}");
    let last = said.lines().last().unwrap();
    assert!(!last.contains("done"), "{said}");
    let unheard = service_manager.0.state().proxy.as_ref().unwrap().unheard(0);
    assert_eq!(unheard, [b""; 0]);
}

#[test]
fn delayed_ready_and_stopping_are_two_messages() {
    let place = tempfile::tempdir().unwrap();
    let (manager, service_manager) = heard_in(place.path(), Ready::Standby, "looking");
    manager.set_nonblocking(true).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler
        .send_to(b"X=filled", place.path().join("manager"))
        .is_ok()
    {}
    service_manager.works("waiting".into());
    service_manager.stops();
    let mut buffer = [0; 1024];
    while manager.recv(&mut buffer).is_ok() {}
    service_manager.0.try_again();
    let mut said = Vec::new();
    while let Ok(length) = manager.recv(&mut buffer) {
        said.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    let [ready, stopping] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(
        ready.contains("READY=1") && !ready.contains("STOPPING=1"),
        "{said:?}"
    );
    assert!(
        stopping.contains("STOPPING=1") && stopping.contains("STATUS="),
        "{said:?}"
    );
}
