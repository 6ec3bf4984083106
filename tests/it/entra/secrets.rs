//! Tokens and client secrets appear only in requests.

use std::io::Write;
use std::sync::{Arc, Mutex};

use trafficcop::{Account, AuthOptions};
use trafficcop_lease::blob::{Blob, BlobLock, Target};
use trafficcop_lease::record::Candidate;
use trafficcop_lease::{Competitor, LeaseStore};

use super::*;
use crate::entra::desk::Manner;
use crate::support::processes;

#[test]
fn outputs_and_processes_show_no_secret() {
    let stage = Stage::new("secrets");
    let (status, events) = (stage.scene.path("status"), stage.scene.path("events"));
    stage.desk.set(Manner::Issue(6));
    let run = stage.with_secret(stage.run()).args(["-v", "--log", "json"]);
    let run = run.arg("--status-file").arg(&status);
    let run = run.arg("--event-log").arg(&events);
    let mut one = stage.instance(run, "one", &["--children", "1"]);
    stage.scene.journal.await_tag(What::Beat, "one");
    stage.desk.await_asked(2);
    stage.desk.set(Manner::Answer(500, "no".into()));
    one.await_log("no new token");

    let all = processes::marked(stage.scene.directory());
    assert!(all.len() >= 3, "{all:?}");
    for process in &all {
        for file in ["cmdline", "environ", "comm"] {
            let path = format!("/proc/{}/{file}", process.pid);
            let bytes = std::fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            // The secret was in the environment from the start.
            let text = match file {
                "environ" => text.replace(&format!("AZURE_CLIENT_SECRET={SECRET}"), ""),
                _ => text.into_owned(),
            };
            no_secret(&text);
        }
    }
    stage.desk.set(Manner::Issue(HOUR));
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    let read = |path| std::fs::read_to_string(path).expect("written");
    let texts = [one.stderr(), one.stdout(), read(status), read(events)];
    for text in &texts {
        no_secret(text);
        for token in stage.desk.issued() {
            let payload = token.split('.').nth(1).expect("a payload");
            assert!(!text.contains(payload), "{text}");
        }
    }
    assert!(texts[2].contains("one") && texts[3].contains("one"));
}

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

#[test]
fn libraries_show_no_secret_at_their_highest_log_level() {
    // With other threads it may log only a part.
    let this = "entra::secrets::libraries_show_no_secret_at_their_highest_log_level";
    if crate::support::programs::was_played_alone(this) {
        return;
    }
    let stage = Stage::new("secrets-trace");
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let authority_host = stage.desk.address();
    let get = |name: &str| {
        let value = match name {
            "AZURE_TENANT_ID" => TENANT,
            "AZURE_CLIENT_ID" => CLIENT,
            "AZURE_CLIENT_SECRET" => SECRET,
            "AZURE_AUTHORITY_HOST" => &authority_host,
            _ => return None,
        };
        Some(value.to_owned())
    };
    let options = AuthOptions {
        ca_file: Some(authority().file.clone()),
        ..AuthOptions::default()
    };
    let target = Target::parse(&stage.blob).expect("a target");
    let mut told = String::new();
    tracing::subscriber::with_default(subscriber, || {
        let account = Account::find(&get, &options, target.url()).expect("an account");
        told += &format!("{account:?}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let lock = BlobLock {
                target,
                account,
                create: true,
                page_blob: None,
            };
            let candidate = Candidate {
                identity: "one".into(),
                host: "here".into(),
                pid: 1,
                command: "job".into(),
                bell: None,
            };
            let competitor = Competitor::new(candidate, std::time::Duration::from_secs(15));
            let blob = Blob::open(&lock, &competitor).expect("a store");
            let later = || trafficcop::Instant::now() + crate::support::WAIT_LIMIT;
            let refusal = format!(r#"{{"error":"x","error_description":"{SECRET}"}}"#);
            stage.desk.set(Manner::Answer(401, refusal));
            let said = blob.acquire(later()).await.expect_err("refused");
            told += &format!("{said} {said:?}");
            stage.desk.set(Manner::Issue(HOUR));
            while let Err(said) = blob.acquire(later()).await {
                told += &format!("{said} {said:?}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            blob.renew(later()).await.expect("renewed");
            told += &String::from_utf8_lossy(
                &blob
                    .orphan_release()
                    .expect("known")
                    .release_info
                    .expect("a will"),
            );
            blob.release(later()).await.expect("released");
        });
    });
    let log = String::from_utf8(log.0.lock().expect("the log").clone()).expect("text");
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    no_secret(&(told + &log));
}
