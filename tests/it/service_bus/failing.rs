//! A service that refuses, is overloaded, or unreachable.

use nix::sys::signal::Signal;
use service_bus_stand_in::{Access, Act, Fault, On};

use super::*;
use crate::support::processes::processor_time;

#[test]
fn wrong_key_is_reported_at_once_and_not_retried() {
    let stage = Stage::one("x");
    let string = stage.broker.connection_string();
    let wrong = string.replace("SharedAccessKey=", "SharedAccessKey=wr0ng");
    let done = stage
        .scene
        .verb("work")
        .args(["--service-bus", JOBS])
        .env(STRING, wrong)
        .command(["true"])
        .finish();
    assert_ended(&done, 77, "not authorised");
    assert!(!done.stderr.contains("wr0ng"), "{}", done.stderr);
    assert_eq!(stage.count(|e| matches!(e, Event::TokenPut { .. })), 1);
    stage.assert_holds(1, 0);
}

/// The service's clock is behind this machine's.
#[test]
fn signature_expired_by_the_local_clock_only_is_not_reported_repeatedly() {
    let access = Access {
        behind: Duration::from_secs(3600),
        ..Access::default()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.expect("after 1970").as_secs()).expect("small");
    let signature = access.sign("sb%3a%2f%2f127.0.0.1%2fjobs", now - 5);
    let settings = Settings {
        access,
        ..Settings::default()
    };
    let queue = QueueSettings {
        lock: SHORT,
        ..QueueSettings::default()
    };
    let stage = Stage::of(settings, queue);
    let string = stage.broker.connection_string();
    let (endpoint, _) = string.split_once(";SharedAccessKeyName").expect("a key");
    let string =
        format!("{endpoint};SharedAccessSignature={signature};UseDevelopmentEmulator=true");
    stage.put("x");
    let worker = stage.worker().arg("--once").env(STRING, string);
    let done = worker.shell("sleep 6").finish();
    assert_ended(&done, 0, "completed, attempt 1");
    let put = stage.count(|e| matches!(e, Event::TokenPut { .. }));
    assert_eq!(put, 1, "{}", done.stderr);
}

#[test]
fn missing_right_is_reported_at_once() {
    let stage = Stage::one("x");
    let act = Act::Refuse {
        status: 401,
        condition: "amqp:unauthorized-access".into(),
        text: "Unauthorized access. 'Listen' claim(s) are required to perform this operation."
            .into(),
    };
    stage
        .broker
        .fault(Fault::new(On::Attach, act).at(JOBS).times(u32::MAX));
    let done = stage.worker().command(["true"]).finish();
    assert_ended(&done, 77, "Listen");
    stage.assert_holds(1, 0);
}

#[test]
fn a_right_that_is_taken_away_later_is_waited_for() {
    let stage = Stage::with(SHORT);
    let running = stage.worker().command(["true"]).start();
    stage.put("one");
    running.await_log("completed");
    stage
        .broker
        .fault(Fault::new(On::PutToken, Act::unauthorized()).times(2));
    stage.broker.cut();
    running.await_log("cannot take messages");
    stage.put("two");
    running.await_log_times("completed", 2);
    stopped_by(Signal::SIGTERM, running);
}

#[test]
fn a_queue_that_is_not_there_that_has_sessions_or_is_disabled_is_explained() {
    let stage = Stage::one("x");
    let done = stage.worker_on("nowhere").command(["true"]).finish();
    assert_ended(&done, 66, "nowhere");
    let sessions = QueueSettings {
        sessions: true,
        ..QueueSettings::default()
    };
    stage.broker.create("talks", sessions);
    let done = stage.worker_on("talks").command(["true"]).finish();
    assert_ended(&done, 64, "add --sessions");
    let disabled = QueueSettings {
        disabled: true,
        ..QueueSettings::default()
    };
    stage.broker.create("asleep", disabled);
    let done = stage.worker_on("asleep").command(["true"]).finish();
    assert_ended(&done, 69, "disabled");
}

#[test]
fn a_queue_that_is_disabled_for_a_while_is_waited_for() {
    let stage = Stage::with(SHORT);
    let running = stage.worker().command(["true"]).start();
    stage.put("x");
    running.await_log("completed");
    stage.broker.disable(JOBS, true);
    running.await_log("cannot take messages");
    stage.broker.disable(JOBS, false);
    stage.put("y");
    running.await_log_times("completed", 2);
    stopped_by(Signal::SIGTERM, running);
}

#[test]
fn an_overloaded_service_is_left_alone_for_four_seconds() {
    let stage = Stage::one("x");
    stage
        .broker
        .fault(Fault::new(On::Attach, Act::server_busy()).at(JOBS));
    let begin = trafficcop::Instant::now();
    assert_ended(&stage.once(&[], "exit 0"), 0, "completed");
    let took = trafficcop::Instant::now().since(begin);
    assert!(took >= Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_connection_that_is_cut_costs_a_running_command_nothing() {
    let stage = Stage::with(Duration::from_secs(10));
    stage.put("x");
    let running = stage
        .worker()
        .shell("echo runs >&2; sleep 12; echo done >&2")
        .start();
    running.await_log("runs");
    stage.broker.refuse_connections(true);
    stage.broker.cut();
    // Unreachable for this long.
    std::thread::sleep(Duration::from_secs(2));
    stage.broker.refuse_connections(false);
    running.await_log("completed, attempt 1");
    // Later messages are taken.
    stage.put("y");
    running.await_log_times("runs", 2);
    assert_eq!(stage.expired(), 0);
    running.signal(Signal::SIGKILL);
}

#[test]
fn links_that_are_detached_for_idleness_are_made_anew() {
    let settings = Settings {
        idle_detach: Duration::from_secs(2),
        ..Settings::default()
    };
    let stage = Stage::of(settings, QueueSettings::default());
    let running = stage.worker().command(["true"]).start();
    // If the first is that of the tokens, all are replaced before another becomes idle.
    stage.wait("a link to be detached", |view| {
        let forced = |entry: &service_bus_stand_in::Entry| {
            matches!(
                &entry.event,
                Event::Detached {
                    condition: Some(_),
                    ..
                }
            )
        };
        view.journal().iter().any(forced).then_some(())
    });
    stage.put("x");
    // Not the first attempt, if a link got it that was being detached.
    running.await_log("message 1: completed");
    stopped_by(Signal::SIGTERM, running);
}

#[test]
fn a_service_that_says_nothing_for_a_while_is_worked_on_again() {
    let stage = Stage::with(SHORT);
    let running = stage.worker().command(["true"]).start();
    stage.put("x");
    running.await_log("completed");
    stage.broker.freeze();
    stage.put("y");
    // Longer than the lock of a message on its way.
    std::thread::sleep(SHORT + Duration::from_secs(3));
    stage.broker.thaw();
    running.await_log_times("completed", 2);
    stopped_by(Signal::SIGTERM, running);
    stage.assert_holds(0, 0);
}

/// The given-up connection is silent, and does not close properly.
#[test]
fn a_connection_that_is_given_up_takes_no_processor() {
    let stage = Stage::with(Duration::from_secs(10));
    stage.put("x");
    stage
        .broker
        .fault(Fault::new(On::RenewLock, Act::Freeze).at(JOBS));
    let running = stage.deaf();
    // The first goes unanswered; the second is sent on the next connection.
    let before = stage.await_renewals(2);
    assert_eq!(stage.count(|e| matches!(e, Event::Connected { .. })), 2);
    let used = processor_time(running.pid());
    stage.await_renewals(before + 1);
    let used = processor_time(running.pid()) - used;
    assert!(used < Duration::from_secs(2), "it spins: {used:?}");
}

/// The connection is never completed, because its last link is not answered.
#[test]
fn an_attempt_to_connect_that_is_given_up_takes_no_processor() {
    let stage = Stage::with(Duration::from_secs(60));
    let running = stage.worker().shell("sleep $(cat)").start();
    stage.put("0");
    running.await_log("message 1: completed");
    stage
        .broker
        .fault(Fault::new(On::Attach, Act::Freeze).at(JOBS));
    stage.broker.cut();
    stage.wait("the attempt after the one that is given up", |view| {
        let journal = view.journal().iter();
        let connected = journal.filter(|entry| matches!(entry.event, Event::Connected { .. }));
        (connected.count() == 3).then_some(())
    });
    let used = processor_time(running.pid());
    stage.put("5");
    running.await_log("message 2: completed");
    let used = processor_time(running.pid()) - used;
    assert!(used < Duration::from_secs(1), "it spins: {used:?}");
    stopped_by(Signal::SIGTERM, running);
}

#[test]
fn a_service_that_is_not_there_is_given_up_after_a_while_without_a_storm() {
    let stage = Stage::one("x");
    stage.broker.refuse_connections(true);
    let done = stage.worker().command(["true"]).finish();
    assert_ended(&done, 69, "cannot reach");
    let attempts = stage.count(|e| matches!(e, Event::Connected { .. }));
    assert!(attempts < 60, "{attempts} connections");
}

#[test]
fn a_server_that_is_no_broker_is_called_what_it_is() {
    let scene = Scene::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        listener.set_nonblocking(false).expect("blocking");
        let mut served = 0;
        while let Ok((mut stream, _)) = listener.accept() {
            let mut bytes = [0; 1024];
            let count = stream.read(&mut bytes).unwrap_or(0);
            if bytes[..count].starts_with(b"bye") {
                return served;
            }
            served += 1;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
        served
    });
    let string = format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    );
    let done = scene
        .verb("work")
        .args(["--service-bus", JOBS])
        .env(STRING, string)
        .command(["true"])
        .finish();
    assert_ended(&done, 69, "not an AMQP server");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    std::io::Write::write_all(&mut stream, b"bye").expect("it reads");
    let served = server.join().expect("a server");
    assert!(served < 40, "{served} connections");
}

#[test]
fn a_frame_that_cannot_be_ends_the_connection_and_nothing_else() {
    std::thread::scope(|scope| {
        for size in 0..8 {
            scope.spawn(move || {
                // So that the second attempt has enough time on a busy machine.
                let stage = Stage::with(Duration::from_secs(12));
                let act = Act::Bytes(vec![0, 0, 0, size]);
                stage.broker.fault(Fault::new(On::RenewLock, act));
                stage.put("x");
                // Longer than the lock, which another connection renews.
                let done = stage.once(&[], "sleep 15");
                assert_ended(&done, 0, "completed, attempt 1, exit 0");
                assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
                assert_eq!(stage.expired(), 0);
                stage.assert_holds(0, 0);
            });
        }
    });
}

/// A new connection needs the service's name resolved.
#[test]
fn a_machine_without_a_thread_to_spare_keeps_its_message() {
    let stage = Stage::with(SHORT);
    stage.put("x");
    let string = stage.broker.connection_string();
    let by_name = string.replace("127.0.0.1", "localhost");
    let go_on = stage.scene.path("go-on");
    let script = format!(
        "echo runs >&2; until [ -e {} ]; do sleep 0.1; done",
        go_on.display()
    );
    let running = stage
        .worker()
        .env(STRING, by_name)
        .on_a_machine_that_refuses()
        .arg("--once")
        .shell(&script)
        .start();
    running.await_log("runs");
    // A thread may stay for a while after its last work.
    let before = stage.await_renewals(8);
    stage.scene.refuse("pthread_create");
    stage.broker.cut();
    stage.await_renewals(before + 2);
    std::fs::write(go_on, "").expect("a file in the scene");
    let done = running.finish();
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
    assert_eq!(stage.expired(), 0);
    stage.assert_holds(0, 0);
}

#[test]
fn worker_on_a_deleted_queue_is_idle() {
    let stage = Stage::one("x");
    let running = stage
        .worker()
        .args(["--idle-exit", "4s"])
        .command(["true"])
        .start();
    running.await_log("completed");
    stage.broker.delete(JOBS);
    running.await_log("the queue was deleted");
    let done = running.finish();
    assert_ended(&done, 0, "there was no message for --idle-exit");
}
