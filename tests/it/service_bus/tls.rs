//! The service over TLS, and with Entra ID.

use service_bus_stand_in::{Access, Tls};

use super::*;
use crate::authority::authority;

fn over_tls(queue: QueueSettings, access: Access) -> Stage {
    let read = |path| std::fs::read(path).expect("a file");
    let tls = Tls::from_pem(&read(&authority().certificate), &read(&authority().key));
    let settings = Settings {
        tls: Some(tls.expect("a certificate")),
        access,
        ..Settings::default()
    };
    let stage = Stage::of(settings, queue);
    stage.put("x");
    stage
}

#[test]
fn trusted_certificate_is_accepted() {
    let stage = over_tls(QueueSettings::default(), Access::default());
    let done = stage
        .worker()
        .arg("--ca-file")
        .arg(&authority().file)
        .arg("--once")
        .command(["cat"])
        .finish();
    assert_ended(&done, 0, "completed");
    assert_eq!(done.stdout, "x");
    stage.assert_holds(0, 0);
}

#[test]
fn untrusted_or_misnamed_certificate_is_reported_and_nothing_is_sent() {
    let stage = over_tls(QueueSettings::default(), Access::default());
    let done = stage.worker().command(["true"]).finish();
    assert_ended(&done, 69, "TLS");
    assert!(done.stderr.contains("--ca-file"), "{}", done.stderr);
    // The certificate is for localhost and 127.0.0.1.
    let other = stage
        .broker
        .connection_string()
        .replace("//localhost", "//[::ffff:127.0.0.1]");
    let done = stage
        .worker()
        .env(STRING, other)
        .arg("--ca-file")
        .arg(&authority().file)
        .command(["true"])
        .finish();
    assert_ended(&done, 69, "TLS");
    assert_eq!(stage.count(|e| matches!(e, Event::TokenPut { .. })), 0);
    // And to a server without TLS.
    let plain = Stage::one("x");
    let string = plain.broker.connection_string();
    let string = string.replace(";UseDevelopmentEmulator=true", "");
    let done = plain
        .worker()
        .env(STRING, string)
        .command(["true"])
        .finish();
    assert_ended(&done, 69, "TLS");
    plain.assert_holds(1, 0);
}
