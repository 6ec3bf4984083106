//! Secrets that must never be shown.

use std::io::Write;
use std::sync::{Arc, Mutex};

use trafficcop::{Account, AuthOptions};
use trafficcop_lease::LeaseStore;
use trafficcop_lease::blob::{Blob, BlobLock, Target};

use super::server::*;
use crate::support::programs::was_played_alone;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Plays trouble of every kind, on one thread and alone in its process: an event that a thread
/// without a subscriber logs first stays disabled for the process.
fn live(make: impl Fn(&Server) -> Blob) -> (String, Server) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let server = Server::start(vec![
        ("look", error(403, "AuthenticationFailed")),
        ("look", page(200)),
        ("look", lost()),
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
        ("renew", page(502)),
        ("renew", lost()),
        ("renew", renewed()),
        ("release", done()),
    ]);
    let mut told = String::new();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let blob = make(&server);
            told.push_str(&blob.info().name);
            for _ in 0..3 {
                let said = blob.acquire(later()).await.expect_err("trouble");
                told.push_str(&format!("{said} {said:?}\n"));
            }
            blob.acquire(later()).await.expect("control");
            told.push_str(&String::from_utf8_lossy(
                &blob
                    .orphan_release()
                    .expect("known")
                    .release_info
                    .expect("a will"),
            ));
            for _ in 0..2 {
                let said = blob.renew(later()).await.expect_err("trouble");
                told.push_str(&format!("{said} {said:?}\n"));
            }
            blob.renew(later()).await.expect("renewed");
            blob.release(later()).await.expect("released");
        });
    });
    server.played();
    let log = String::from_utf8(log.0.lock().expect("the log").clone()).expect("text");
    assert!(
        log.contains("TRACE") || log.contains("DEBUG"),
        "nothing was logged: {log}"
    );
    (told + &log, server)
}

/// Runs in a process without CA certificates, with a proxy that does not exist.
#[test]
#[ignore = "run in a process of its own by the test below"]
fn bare_process() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let server = Server::start(vec![
            ("look", free()),
            ("acquire", acquired()),
            ("metadata", done()),
        ]);
        server.blob().acquire(later()).await.expect("control");
        server.played();
        let string = format!(
            "AccountName=testacct;AccountKey={SECRET};BlobEndpoint=https://127.0.0.1:1/testacct"
        );
        let get = |name: &str| (name == "AZURE_STORAGE_CONNECTION_STRING").then(|| string.clone());
        let account = Account::find(&get, &AuthOptions::default(), None).expect("an account");
        let blob = open(&BlobLock {
            account,
            ..server.lock()
        });
        let said = blob.acquire(later()).await.expect_err("no certificates");
        assert!(
            matches!(&said, trafficcop_core::Failure::Fatal { .. }),
            "{said:?}"
        );
        assert!(said.to_string().contains("SSL_CERT_FILE"), "{said}");
    });
}

#[test]
fn a_machine_without_ca_certificates_is_told_so_and_can_use_the_emulator() {
    let out = std::process::Command::new(std::env::current_exe().expect("our own path"))
        .args([
            "blob_store::secrets::bare_process",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("SSL_CERT_FILE", "/nonexistent")
        .env("SSL_CERT_DIR", "/nonexistent")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn an_account_key_is_neither_logged_nor_told() {
    if was_played_alone("blob_store::secrets::an_account_key_is_neither_logged_nor_told") {
        return;
    }
    let (told, server) = live(Server::blob);
    assert!(!told.contains(SECRET), "{told}");
    // Nor a signature made with it.
    for request in server.seen() {
        let signature = request
            .header("authorization")
            .rsplit(':')
            .next()
            .unwrap_or_default()
            .to_owned();
        assert!(signature.len() > 20 && !told.contains(&signature), "{told}");
    }
}

#[test]
fn a_sas_is_neither_logged_nor_told_but_sent() {
    if was_played_alone("blob_store::secrets::a_sas_is_neither_logged_nor_told_but_sent") {
        return;
    }
    let (told, server) = live(|server| {
        let url = format!(
            "http://127.0.0.1:{}/testacct/locks/job?sv=2026-04-06&sp=rcw&sig=s3cr3t%2Fsignature",
            server.port
        );
        let target = Target::parse(&url).expect("a target");
        let account =
            Account::find(&|_| None, &AuthOptions::default(), target.url()).expect("an account");
        let lock = BlobLock {
            target,
            account,
            ..server.lock()
        };
        assert!(!format!("{lock:?}").contains("s3cr3t"), "{lock:?}");
        open(&lock)
    });
    assert!(!told.contains("s3cr3t"), "{told}");
    for request in server.seen() {
        assert!(
            request.target.contains("sig=s3cr3t%2Fsignature"),
            "{request:?}"
        );
        assert_eq!(request.header("authorization"), "");
    }
}
