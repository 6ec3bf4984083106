//! Tests of the configuration of `work`: defaults, accepted settings and refusals.

use super::*;

fn config(line: &str) -> Result<Work, UsageError> {
    let words = ["trafficcop", "work"]
        .into_iter()
        .chain(line.split_whitespace());
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let typed = args::parse(words.clone());
    let typed = typed.map_err(|error| args::refusal(&error, &words).expect("a refusal"))?;
    let args::Verb::Work(typed) = typed.verb else {
        panic!("not work");
    };
    let place = Host {
        host: "web1".into(),
        pid: 42,
        seed: 1,
        outer: Vec::new(),
    };
    Work::new(*typed, &place)
}

fn refused(line: &str) -> String {
    config(line).unwrap_err().to_string()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn work_defaults_are_the_documented_ones() {
    let config = config("--queue orders -- job").unwrap();
    let Source::Storage(storage) = &config.source else {
        panic!("{:?}", config.source);
    };
    assert_eq!((storage.lock_time, config.renew_at), (secs(60), 70));
    assert_eq!(storage.encoding, None);
    assert_eq!((config.concurrency, config.max_attempts), (1, Some(5)));
    assert_eq!(config.retry_delay, (secs(10), secs(300)));
    assert_eq!(config.dead_letter_exit, [65..=65]);
    assert_eq!(config.retry_exit, [75..=75]);
    assert_eq!((config.grace, config.kill_after), (secs(30), secs(10)));
    assert_eq!(
        (config.timeout, config.idle_exit, config.max_messages),
        (None, None, None)
    );
    assert_eq!((config.max_body, config.in_directories), (100 << 20, false));
    assert_eq!(config.identity, "web1-42");
    assert_eq!(config.command, ["job"]);
}

#[test]
fn work_settings_are_parsed() {
    let config = config(
        "--queue q -j 8 --lock-time 2s --renew-at 50 --retry-delay 0s --max-body 64K \
         --dead-letter-exit 1-60,65 --retry-exit none --message file --encoding text -- job -j 9",
    )
    .unwrap();
    assert_eq!((config.concurrency, config.max_body), (8, 64 << 10));
    let Source::Storage(storage) = &config.source else {
        panic!("{:?}", config.source);
    };
    assert_eq!((storage.lock_time, config.renew_at), (secs(2), 50));
    assert_eq!(config.retry_delay, (Duration::ZERO, Duration::ZERO));
    assert_eq!(config.dead_letter_exit, [1..=60, 65..=65]);
    assert!(config.retry_exit.is_empty() && config.in_directories);
    assert_eq!(config.command, ["job", "-j", "9"]);
}

#[test]
fn once_means_one_message_and_one_command() {
    assert_eq!(
        config("--queue q --once -- job").unwrap().max_messages,
        Some(1)
    );
    assert!(refused("--queue q --once -j 2 -- job").contains("one command at a time"));
    assert!(refused("--queue q --once --max-messages 2 -- job").contains("choose one"));
}

#[test]
fn a_url_with_a_signature_is_withheld_with_the_credentials() {
    let withheld = |line: &str| {
        let line = format!("{line} --no-credentials -- job");
        config(&line).unwrap().withheld
    };
    let signed = "--queue https://a.queue.core.windows.net/q?sig=x";
    assert!(withheld(signed).contains(&"TRAFFICCOP_QUEUE".into()));
    assert!(!withheld("--queue q").contains(&"TRAFFICCOP_QUEUE".into()));
}

#[test]
fn bad_work_settings_are_refused_in_one_line() {
    for (line, word) in [
        ("--queue q", "no command"),
        ("-- job", "no queue"),
        ("--queue= -- job", "--queue is empty"),
        ("--queue q -j 0 -- job", "-j 0: take a number from 1 to 128"),
        ("--queue q -j many -- job", "-j many"),
        ("--queue q --lock-time 1s -- job", "take 2s to 7d"),
        ("--queue q --lock-time 8d -- job", "take 2s to 7d"),
        (
            "--queue q --lock-time 2500ms -- job",
            "whole seconds: take 2s",
        ),
        ("--queue q --renew-at 5% -- job", "take 10% to 90%"),
        ("--queue q --renew-at soon -- job", "take 10% to 90%"),
        ("--queue q --max-attempts 0 -- job", "--max-attempts 0"),
        ("--queue q --retry-delay 5m..10s -- job", "swap them"),
        ("--queue q --retry-delay 8d -- job", "7d at most"),
        ("--queue q --retry-delay x -- job", "--retry-delay"),
        ("--queue q --dead-letter-exit 0 -- job", "has done its work"),
        ("--queue q --dead-letter-exit 9-3 -- job", "smaller"),
        ("--queue q --retry-exit 256 -- job", "1 to 255"),
        ("--queue q --timeout 0s -- job", "no limit"),
        ("--queue q --max-body 0 -- job", "--max-body 0"),
        ("--queue q --max-body 2G -- job", "--max-body 2G"),
        ("--queue q --max-messages 0 -- job", "--max-messages 0"),
        ("--queue q --quiet --verbose -- job", "choose one"),
        ("--queue q --status-file / -- job", "--status-file"),
    ] {
        let line_ = refused(line);
        assert!(
            line_.contains(word) && !line_.contains('\n'),
            "{line}: {line_}"
        );
    }
}

#[cfg(feature = "service-bus")]
#[test]
fn service_bus_accepts_only_its_own_settings() {
    let bus = |line: &str| match config(line).unwrap().source {
        Source::ServiceBus(bus) => bus,
        storage => panic!("{storage:?}"),
    };
    let whole = "--service-bus ns/orders --lock-time 7500ms --auth managed -- job";
    let orders = bus(whole);
    assert_eq!(orders.asked.entity, "ns/orders");
    assert_eq!(orders.lock_time, Some(Duration::from_millis(7500)));
    assert_eq!(orders.options.auth, crate::azure::Auth::Managed);
    let plain = config("--service-bus orders -- job").unwrap();
    assert_eq!(plain.max_attempts, None, "the queue's own");
    assert!(plain.source.puts_aside());
    let few = config("--service-bus orders --max-attempts 3 -- job").unwrap();
    assert_eq!(few.max_attempts, Some(3));
    let dead = "--service-bus orders --dead-letter-queue --connection-string-env BUS -- job";
    let dead = config(dead).unwrap();
    assert!(!dead.source.puts_aside());
    for (line, word) in [
        ("--queue q --service-bus q -- job", "choose one queue"),
        ("--service-bus= -- job", "--service-bus is empty"),
        ("--service-bus q --create -- job", "az servicebus"),
        (
            "--service-bus q --emulator -- job",
            "UseDevelopmentEmulator",
        ),
        (
            "--service-bus q --poison-queue p -- job",
            "dead-letter queue",
        ),
        ("--service-bus q --encoding text -- job", "bytes"),
        ("--service-bus q --lock-time 4s -- job", "5s to 5m"),
        ("--service-bus q --lock-time 6m -- job", "5s to 5m"),
        ("--service-bus q --renew-at 0 -- job", "10% to 90%"),
        ("--service-bus q -j 0 -- job", "-j 0"),
        (
            "--service-bus q --dead-letter-queue --max-attempts 3 -- job",
            "--max-attempts cannot be used with --dead-letter-queue",
        ),
        (
            "--service-bus q --dead-letter-queue --dead-letter-exit 3 -- job",
            "--dead-letter-exit cannot be used with --dead-letter-queue",
        ),
        (
            "--service-bus q --connection-string-env Endpoint=sb://h;SharedAccessKey=s3cret -- job",
            "name of a variable",
        ),
        ("--queue q --dead-letter-queue -- job", "--service-bus has"),
        (
            "--queue q --lock-delay 2s -- job",
            "--lock-delay has no meaning without --sessions",
        ),
        (
            "--service-bus q --lock-delay 2s -- job",
            "--lock-delay has no meaning without --sessions",
        ),
        (
            "--service-bus q --sessions --lock-delay 1999ms -- job",
            "--lock-delay 1s999ms: a worker that loses a session has until then to kill its command: take 2s",
        ),
        (
            "--queue q --connection-string-env BUS -- job",
            "--service-bus has",
        ),
    ] {
        let said = refused(line);
        assert!(
            said.contains(word) && !said.contains("s3cret"),
            "{line}: {said}"
        );
    }
}

#[test]
fn at_most_once_refuses_flags_that_need_the_message_later() {
    assert!(
        config("--queue q --at-most-once -- job")
            .unwrap()
            .at_most_once
    );
    assert!(config("--queue q --at-most-once --max-attempts 3 --timeout 1m -- job").is_ok());
    for flag in [
        "--retry-delay 1s",
        "--dead-letter-exit 1",
        "--retry-exit 1",
        "--renew-at 50",
    ] {
        let why = refused(&format!("--queue q --at-most-once {flag} -- job"));
        let name = flag.split(' ').next().unwrap();
        assert!(
            why.starts_with(&format!("{name} cannot be used with --at-most-once")),
            "{why}"
        );
    }
}

#[cfg(feature = "service-bus")]
#[test]
fn at_most_once_refuses_sessions() {
    let why = refused("--service-bus q --sessions --at-most-once -- job");
    assert!(
        why.starts_with("--at-most-once cannot be used with --sessions"),
        "{why}"
    );
}
