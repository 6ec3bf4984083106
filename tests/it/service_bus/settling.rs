//! Outcomes of a message: every row of the table.

use service_bus_stand_in::{Act, Fault, On, Outcome, Value, Way};

use super::*;

fn dead(stage: &Stage) -> (String, String) {
    let letters = stage.messages(DEAD);
    assert_eq!(letters.len(), 1, "{:?}", stage.events());
    let (reason, text) = letters[0].dead_letter();
    (reason.unwrap_or_default(), text.unwrap_or_default())
}

fn pair(reason: &str, text: &str) -> (String, String) {
    (reason.to_owned(), text.to_owned())
}

#[test]
fn a_message_whose_command_succeeds_is_completed_by_its_lock_token() {
    let stage = Stage::one("x");
    let done = stage.once(&[], "exit 0");
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    stage.assert_holds(0, 0);
    let by_token = |event: &Event| {
        matches!(
            event,
            Event::Settled {
                outcome: Outcome::Complete,
                way: Way::Management,
                ..
            }
        )
    };
    assert_eq!(stage.count(by_token), 1);
}

#[test]
fn a_status_of_dead_letter_exit_dead_letters_it_with_reason_and_text() {
    let stage = Stage::one("a \0\u{ff} c");
    let done = stage.once(&[], "exit 65");
    assert_ended(&done, 65, "dead-lettered, attempt 1, exit 65");
    stage.assert_holds(0, 1);
    assert_eq!(dead(&stage), pair("CommandRejected", "exit status 65"));
    let letter = stage.messages(DEAD).remove(0);
    assert_eq!(letter.message.body(), "a \0\u{ff} c".as_bytes());
}

#[test]
fn any_other_end_keeps_it_for_the_delay_and_abandons_it_then() {
    for (script, words) in [
        ("exit 75", "retried, attempt 1, exit 75"),
        ("exit 3", "retried, attempt 1, exit 3"),
        ("kill -9 $$", "retried, attempt 1, exit 137"),
    ] {
        let stage = Stage::one("x");
        let begin = trafficcop::Instant::now();
        let done = stage.once(&["--retry-delay", "1s"], script);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(done.stderr.contains("kept for 1s"), "{}", done.stderr);
        let took = trafficcop::Instant::now().since(begin);
        assert!(took >= Duration::from_secs(1), "{took:?}");
        stage.assert_holds(1, 0);
        assert_eq!(stage.messages(JOBS)[0].failed, 1, "it counts");
    }
}

#[test]
fn the_lock_is_renewed_through_a_delay_that_is_longer_and_a_stop_ends_the_delay() {
    let stage = Stage::brief("x");
    let running = stage
        .worker()
        .args(["--retry-delay", "1h"])
        .shell("exit 1")
        .start();
    running.await_log("kept for 1h");
    // Past the first lock, by two renewals.
    stage.wait("two renewals", |view| {
        let renewed =
            |entry: &&service_bus_stand_in::Entry| matches!(entry.event, Event::Renewed { .. });
        (view.journal().iter().filter(renewed).count() >= 2).then_some(())
    });
    assert_eq!(stage.counts(JOBS).locked, 1);
    running.signal(nix::sys::signal::Signal::SIGTERM);
    let done = running.finish();
    assert!(
        done.stderr.contains("retried, attempt 1"),
        "{}",
        done.stderr
    );
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 1);
    assert_eq!(stage.expired(), 0);
}

#[test]
fn on_the_last_attempt_it_is_dead_lettered_with_the_real_reason() {
    let stage = Stage::one("x");
    let done = stage
        .worker()
        .args([
            "--max-attempts",
            "2",
            "--retry-delay",
            "0s",
            "--idle-exit",
            "0s",
        ])
        .shell("exit 3")
        .finish();
    assert_ended(&done, 0, "retried, attempt 1, exit 3");
    assert!(
        done.stderr.contains("dead-lettered, attempt 2"),
        "{}",
        done.stderr
    );
    assert_eq!(
        dead(&stage),
        pair("CommandFailed", "exit status 3, attempt 2 of 2")
    );
}

#[test]
fn without_max_attempts_the_queue_s_own_number_counts() {
    let stage = Stage::of(
        Settings::default(),
        QueueSettings {
            max_delivery_count: 3,
            ..QueueSettings::default()
        },
    );
    stage.put("x");
    let done = stage
        .worker()
        .args(["--retry-delay", "0s", "--idle-exit", "0s"])
        .shell(
            "echo ${TRAFFICCOP_MESSAGE_ATTEMPT}of${TRAFFICCOP_MESSAGE_MAX_ATTEMPTS-theirs}; exit 1",
        )
        .finish();
    assert_ended(&done, 0, "retried, attempt 3");
    assert_eq!(done.stdout, "1oftheirs\n2oftheirs\n3oftheirs\n");
    stage.assert_holds(0, 1);
    assert_eq!(dead(&stage).0, "MaxDeliveryCountExceeded");
}

#[test]
fn a_timeout_is_a_failure_with_a_reason_of_its_own() {
    let stage = Stage::one("x");
    let done = stage.once(
        &[
            "--timeout",
            "1s",
            "--kill-after",
            "1s",
            "--max-attempts",
            "1",
        ],
        "trap '' TERM; while :; do sleep 1; done",
    );
    assert!(done.stderr.contains("dead-lettered"), "{}", done.stderr);
    assert_eq!(
        dead(&stage),
        pair("CommandTimedOut", "it ran longer than 1s, attempt 1 of 1")
    );
}

#[test]
fn too_many_attempts_and_bodies_that_cannot_be_handed_over_are_dead_lettered_unrun() {
    let stage = Stage::brief("x");
    stage.once(&["--retry-delay", "0s"], "exit 1");
    stage.once(&["--retry-delay", "0s"], "exit 1");
    let map = Value::Map(vec![(Value::string("a"), Value::Bool(true))]);
    for (message, more, reason) in [
        (None, &["--max-attempts", "2"][..], "TooManyAttempts"),
        (
            Some(Message::data(&[7; 2000])),
            &["--max-body", "1K"],
            "TooLarge",
        ),
        (Some(Message::value(&map)), &[], "UnsupportedBody"),
    ] {
        let before = stage.counts(DEAD).ready;
        if let Some(message) = message {
            stage.broker.put(JOBS, message);
        }
        let done = stage
            .worker()
            .args(["--idle-exit", "0s"])
            .args(more)
            .current_dir(stage.scene.directory())
            .shell("touch never")
            .finish();
        assert_ended(&done, 0, reason);
        assert!(!stage.scene.path("never").exists(), "{reason}");
        stage.assert_holds(0, before + 1);
        let said = stage.messages(DEAD).last().expect("one").dead_letter();
        assert_eq!(said.0.as_deref(), Some(reason));
    }
}

#[test]
fn message_of_a_command_that_cannot_start_is_released_uncounted() {
    let stage = Stage::one("x");
    let script = stage.scene.path("script");
    std::fs::write(&script, "#!/etc\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its mode");
    let done = stage.worker().command([&script]).finish();
    assert_ended(&done, 126, "released");
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 0, "it does not count");
}

#[test]
fn a_lock_that_is_lost_ends_the_command_and_settles_nothing() {
    let stage = Stage::brief("x");
    let running = stage.deaf();
    stage
        .broker
        .fault(Fault::new(On::RenewLock, Act::lock_lost()).times(u32::MAX));
    let done = running.finish();
    // Another worker may have had it.
    assert_ended(&done, 71, "lost, attempt 1");
    stage.scene.await_nobody();
    assert_eq!(stage.settled(), 0);
}

#[test]
fn a_lock_in_doubt_ends_the_command_before_its_time_and_settles_nothing() {
    let stage = Stage::brief("x");
    let running = stage.deaf();
    stage.broker.freeze();
    let done = running.finish();
    assert_ended(&done, 70, "LockInDoubt");
    stage.scene.await_nobody();
    stage.broker.thaw();
    assert_eq!(stage.settled(), 0);
}

#[test]
fn a_settlement_whose_answer_is_lost_is_unconfirmed_and_never_failed() {
    for act in [Act::Lose, Act::CutAfter] {
        let stage = Stage::brief("x");
        // Done, but its answer lost; the repetition gets "lock lost".
        stage
            .broker
            .fault(Fault::new(On::UpdateDisposition, act.clone()).at(JOBS));
        let done = stage.once(&[], "exit 0");
        assert_ended(&done, 70, "unconfirmed");
        stage.assert_holds(0, 0);
        assert!(!done.stderr.contains(" lost"), "{act:?}: {}", done.stderr);
    }
}

#[test]
fn a_settlement_that_is_refused_for_now_is_asked_for_again() {
    let stage = Stage::one("x");
    let busy = Fault::new(On::UpdateDisposition, Act::server_busy()).at(JOBS);
    stage.broker.fault(busy);
    assert_ended(&stage.once(&[], "exit 0"), 0, "completed");
    stage.assert_holds(0, 0);
}

#[test]
fn a_message_that_cannot_be_dead_lettered_is_not_run_and_after_five_the_worker_leaves() {
    let stage = Stage::with(SHORT);
    for _ in 0..6 {
        stage.broker.put(JOBS, Message::data(&[7; 2000]));
    }
    let refuse = Act::Refuse {
        status: 401,
        condition: "amqp:unauthorized-access".into(),
        text: "Unauthorized access. 'Listen' claim(s) are required.".into(),
    };
    stage
        .broker
        .fault(Fault::new(On::UpdateDisposition, refuse).times(u32::MAX));
    let done = stage
        .worker()
        .args(["--max-body", "1K", "-j", "5"])
        .current_dir(stage.scene.directory())
        .shell("touch never")
        .finish();
    assert_ended(&done, 69, "messages cannot be dead-lettered");
    assert!(!stage.scene.path("never").exists());
    let counts = stage.counts(JOBS);
    assert_eq!(counts.ready + counts.locked, 6, "nothing was lost");
}

#[test]
fn dead_letters_can_be_processed_and_stay_on_failure() {
    let stage = Stage::one("x");
    stage.once(&[], "exit 65");
    let again = |script: &str| {
        stage
            .worker()
            .args(["--dead-letter-queue", "--once", "--retry-delay", "0s"])
            .shell(script)
            .finish()
    };
    assert!(again("exit 65").stderr.contains("retried"));
    stage.assert_holds(0, 1);
    assert_eq!(dead(&stage), pair("CommandRejected", "exit status 65"));
    let done = again("cat; echo \" $TRAFFICCOP_MESSAGE_QUEUE\"");
    assert_ended(&done, 0, "completed");
    assert!(
        done.stdout.starts_with("x sb://127.0.0.1:"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.trim_end().ends_with("/jobs/$DeadLetterQueue"));
    stage.assert_holds(0, 0);
}

#[test]
fn a_subscription_is_worked_on_like_a_queue() {
    let stage = Stage::one("not this one");
    let news = "news/Subscriptions/web";
    stage.broker.create(news, QueueSettings::default());
    stage.broker.put("news", Message::data(b"to all"));
    let done = stage
        .worker_on(news)
        .arg("--once")
        .command(["cat"])
        .finish();
    assert_ended(&done, 0, "completed");
    assert_eq!(done.stdout, "to all");
    assert_eq!(stage.broker.look(move |view| view.counts(news).ready), 0);
    stage.assert_holds(1, 0);
}

#[test]
fn a_body_of_any_size_arrives_byte_for_byte_with_what_is_known_of_it() {
    let stage = Stage::with(Duration::from_secs(60));
    let body: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 % 256) as u8).collect();
    stage.broker.put(JOBS, Message::data(&body));
    let done = stage
        .worker()
        .arg("--once")
        .current_dir(stage.scene.directory())
        .shell("cat > body; env | grep ^TRAFFICCOP_MESSAGE_")
        .finish();
    assert_ended(&done, 0, "completed");
    assert!(std::fs::read(stage.scene.path("body")).expect("it") == body);
    for words in [
        "MESSAGE_ID=",
        "MESSAGE_ATTEMPT=1\n",
        "_ENQUEUED_AT=2",
        "_LOCKED_UNTIL=2",
    ] {
        assert!(done.stdout.contains(words), "{words}: {}", done.stdout);
    }
}

#[test]
fn the_hidden_switch_settles_on_the_link() {
    let stage = Stage::one("x");
    assert_ended(&stage.once(&["--link-settle"], "exit 0"), 0, "completed");
    stage.assert_holds(0, 0);
    let by_link = |event: &Event| matches!(event, Event::Settled { way: Way::Link, .. });
    assert_eq!(stage.count(by_link), 1);
}

/// A refusal on the link is final; the repetition uses the lock's token.
#[test]
fn busy_refusal_on_the_link_is_settled_by_the_token() {
    let stage = Stage::one("x");
    stage
        .broker
        .fault(Fault::new(On::Settle, Act::server_busy()).at(JOBS));
    assert_ended(&stage.once(&["--link-settle"], "exit 0"), 0, "completed");
    stage.assert_holds(0, 0);
}
