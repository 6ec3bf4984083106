//! The key and everything made of it are never shown, at the highest log level, with a service that
//! fails now and then.

use service_bus_stand_in::{Access, Act, Fault, On};

use super::*;

#[test]
fn neither_key_nor_signature_is_in_any_output_or_given_to_the_command() {
    let stage = Stage::of(Settings::default(), QueueSettings::default());
    for text in ["0", "65", "1", "0"] {
        stage.put(text);
    }
    for (on, act) in [
        (On::PutToken, Act::unauthorized()),
        (On::UpdateDisposition, Act::Cut),
        (On::UpdateDisposition, Act::server_busy()),
    ] {
        stage.broker.fault(Fault::new(on, act).after(1));
    }
    let (events, status) = (stage.scene.path("events"), stage.scene.path("status"));
    let done = stage
        .worker()
        .args(["-v", "--idle-exit", "1s", "--retry-delay", "1h", "--max-attempts", "1"])
        .args(["--log", "json", "--message", "file"])
        .arg("--event-log")
        .arg(&events)
        .arg("--status-file")
        .arg(&status)
        .env("RUST_LOG", "trace")
        .env("AZURE_LOG_LEVEL", "verbose")
        // The inherited environment contains it; the added variables are checked.
        .shell(
            "env | grep -v ^AZURE_SERVICEBUS_CONNECTION_STRING=; cat $TRAFFICCOP_MESSAGE_DIR/message.json; \
             tr '\\0' ' ' < /proc/$PPID/cmdline; exit $(cat $TRAFFICCOP_MESSAGE_FILE)",
        )
        .finish();
    assert_ended(&done, 0, "dead-lettered");
    let read = |path| std::fs::read_to_string(path).expect("it was written");
    let key = Access::default().key;
    let said = [done.stdout, done.stderr, read(&events), read(&status)];
    for text in said {
        assert!(!text.is_empty());
        for needle in [&*key, "SharedAccessSignature sr", "sig="] {
            assert!(!text.contains(needle), "{needle} is in {text}");
        }
    }
}
