//! `trafficcop run --blob`: a lease on a real (emulated) store, with a network in between that
//! fails on command.
//!
//! Read as a specification: each test is one sentence of it. Leases of 15 seconds cost real time;
//! the tests spend it side by side, each on a blob of its own.

#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::fs::File;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::clock::Instant;

use support::await_for;
use support::azurite::{ACCOUNT, KEY, azurite, connection_string};
use support::blob::{Blob, sas};
use support::instance::{Ended, Instance, Run};
use support::journal::What;
use support::proxy::{Call, Fate, Mode, Proxy, Seen};
use support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);
/// The shortest lease the service grants.
const LEASE: u64 = 15_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Somebody who is none of our instances.
const STRANGER: &str = "11111111-2222-3333-4444-555555555555";

/// A scene round one blob.
struct Stage {
    scene: Scene,
    blob: Blob,
}

impl Stage {
    fn new(container: &str) -> Stage {
        Stage {
            scene: Scene::new(),
            blob: Blob::named(&format!("{container}/singleton")),
        }
    }

    /// `trafficcop run` on the blob, by way of this port, with the shortest lease.
    fn run(&self, port: u16) -> Run<'_> {
        self.scene
            .run()
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .env("TRAFFICCOP_LEASE", "15s")
            .env("TRAFFICCOP_POLL", "500ms")
            .args(["--blob", &self.blob.name])
    }

    /// An instance whose command writes into the journal until [`Stage::let_end`].
    fn instance(&self, port: u16, name: &str, options: &[&str], command: &[&str]) -> Instance {
        let done = self.scene.path(&format!("{name}.done"));
        let mut words = vec!["--until", done.to_str().unwrap()];
        words.extend(command);
        let run = self.run(port).args(["--identity", name]).args(options);
        run.journalist(name, &words).start()
    }

    fn let_end(&self, name: &str) {
        File::create(self.scene.path(&format!("{name}.done"))).unwrap();
    }

    /// Fails if a command was ever asked to end.
    fn assert_undisturbed(&self) {
        let journal = &self.scene.journal;
        assert!(
            journal.lines().iter().all(|line| line.what != What::Term),
            "{journal}"
        );
    }
}

/// No process of the first may be alive when its lease, renewed for the last time by `last`, can
/// have ended.
fn assert_dead_in_time(stage: &Stage, tag: &str, last: &Seen) {
    let journal = &stage.scene.journal;
    let tenure = journal
        .tenures()
        .into_iter()
        .find(|tenure| tenure.tag == tag)
        .unwrap();
    // The proxy saw the request later than it was sent, so this is no stricter than the promise;
    // that nobody else ran before is what the judge sees.
    assert!(
        tenure.last < last.at + LEASE,
        "lived after its lease\n{journal}"
    );
}

/// The last acquire or renewal whose reply reached the instance.
fn last_grant(proxy: &Proxy) -> Seen {
    let mut log = proxy.log();
    log.retain(|seen| {
        matches!(seen.call, Call::Acquire | Call::Renew)
            && seen.delivered
            && seen.status.is_some_and(|status| status < 300)
    });
    log.pop().expect("a grant")
}

fn assert_no_secret(text: &str) {
    for secret in [KEY, "sig=", "Signature=SharedKey", "AccountKey="] {
        assert!(!text.contains(secret), "a secret is shown:\n{text}");
    }
}

/// A tree that notes a TERM and stays, beside others that do not even note it.
const A_TREE: [&str; 7] = [
    "--term",
    "600000:9",
    "--daemon",
    "--children",
    "1",
    "--storm",
    "3",
];

/// Two instances compete. `end` ends the first; then the second runs long before a lease of a
/// minute would have run out, and not before everything of the first is gone.
fn hand_over(
    container: &str,
    command: &[&str],
    end: impl FnOnce(&Stage, &Instance),
    expected: Ended,
) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    let options = [
        "--lease",
        "60s",
        "--grace",
        "500ms",
        "--grace-on-loss",
        "1s",
    ];
    let port = azurite().port;
    let mut first = stage.instance(port, "first", &options, command);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(port, "second", &options, &[]);
    second.await_log("standing by: first is in control, token 1");
    journal.await_sign_of_life("first");

    let begin = Instant::now();
    end(&stage, &first);
    assert_eq!(first.wait(), expected, "{}", first.stderr());
    journal.await_tag(What::Beat, "second");
    let took = Instant::now().since(begin);
    assert!(
        took < Duration::from_secs(40),
        "the lease was left to run out: {took:?}"
    );
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(journal.judge(), ["first", "second"]);
    assert_eq!(stage.blob.lease_state(), "available");
    assert_eq!(
        stage.blob.metadata("trafficcop_token").as_deref(),
        Some("2")
    );
    assert_no_secret(&(first.stderr() + &second.stderr()));
    stage.scene.await_nobody();
}

#[test]
fn the_end_of_the_command_hands_over() {
    hand_over(
        "by-exit",
        &["--status", "7"],
        |stage, _| stage.let_end("first"),
        Ended::Code(7),
    );
}

#[test]
fn terminate_hands_over() {
    hand_over(
        "by-term",
        &[],
        |_, first| first.signal(Signal::SIGTERM),
        TERM,
    );
}

#[test]
fn a_tree_that_ignores_terminate_is_killed_before_the_hand_over() {
    hand_over(
        "by-kill",
        &A_TREE,
        |_, first| first.signal(Signal::SIGTERM),
        KILL,
    );
}

#[test]
fn the_death_of_the_supervisor_hands_over_because_the_guardian_gives_the_lease_back() {
    hand_over(
        "by-death",
        &A_TREE,
        |_, first| first.signal(Signal::SIGKILL),
        KILL,
    );
}

#[test]
fn of_many_instances_each_gets_its_turn_alone() {
    let stage = Stage::new("crowd");
    let names = ["a", "b", "c", "d"];
    let options = ["--grace", "100ms"];
    let command = ["--beats", "20", "--daemon"];
    let crowd: Vec<Instance> = names
        .iter()
        .map(|name| stage.instance(azurite().port, name, &options, &command))
        .collect();
    for one in crowd {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    let mut order = stage.scene.journal.judge();
    order.sort();
    assert_eq!(order, names);
    stage.scene.await_nobody();
}

#[test]
fn a_holder_cut_off_from_the_store_is_drained_and_gone_before_another_runs() {
    let stage = Stage::new("frozen");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(proxy.port, "first", &[], &A_TREE);
    journal.await_tag(What::Beat, "first/daemon");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    proxy.await_next(Call::Renew);
    proxy.set(Mode::Freeze);

    journal.await_tag(What::Beat, "second");
    let last = last_grant(&proxy);
    assert_dead_in_time(&stage, "first", &last);
    let term = journal.await_tag(What::Term, "first");
    // TERM is due 11 s after t0, which is a moment before the request was seen.
    assert!(
        term.at > last.at + 9 * SECOND,
        "asked to end without need\n{journal}"
    );
    assert!(term.at < last.at + 14 * SECOND, "asked too late\n{journal}");

    proxy.set(Mode::Pass);
    first.await_log("standing by: second is in control");
    first.assert_running();
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    journal.await_line("a third tenure", |line| {
        line.token == 3 && line.tag == "first"
    });
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    assert_eq!(journal.judge(), ["first", "second", "first"]);
    assert_no_secret(&first.stderr());
    stage.scene.await_nobody();
}

#[test]
fn a_holder_whose_store_resets_every_connection_is_gone_in_time_and_ends_with_70_if_asked_to() {
    let stage = Stage::new("cut");
    let proxy = Proxy::before(azurite().port);
    let first = stage.instance(proxy.port, "first", &["--if-lost", "exit"], &A_TREE);
    stage.scene.journal.await_tag(What::Beat, "first/daemon");
    proxy.set(Mode::Cut);
    let finished = first.finish();
    assert_eq!(finished.ended, Ended::Code(70), "{}", finished.stderr);
    assert_dead_in_time(&stage, "first", &last_grant(&proxy));
    assert_no_secret(&finished.stderr);
    stage.scene.await_nobody();
}

/// The store fails in some way from a renewal on, until that was noticed: the command must not.
fn outage(container: &str, begin: impl FnOnce(&Proxy), end: impl FnOnce(&Proxy)) {
    let stage = Stage::new(container);
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &["--term", "60000:9"]);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    begin(&proxy);
    one.await_log("cannot renew the lease");
    end(&proxy);
    one.await_log("the store answers again");
    let recovered = Instant::now().as_nanos();
    // Longer than the old lease could have lasted.
    journal.await_line("life on the new lease", |line| {
        line.at > recovered + 12 * SECOND
    });
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(journal.judge(), ["one"]);
    stage.assert_undisturbed();
    assert_no_secret(&one.stderr());
}

#[test]
fn connections_reset_for_a_while_cost_nothing() {
    outage(
        "outage-cut",
        |proxy| proxy.set(Mode::Cut),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn a_busy_service_costs_nothing() {
    let busy = Mode::Answer(503, "text/html", "<html>503</html>");
    outage(
        "outage-503",
        |proxy| proxy.set(busy),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn a_refusal_in_mid_tenure_is_doubt_and_costs_nothing() {
    let refused = Mode::Answer(403, "application/xml", "<Error><Code>X</Code></Error>");
    outage(
        "outage-403",
        |proxy| proxy.set(refused),
        |proxy| proxy.set(Mode::Pass),
    );
}

#[test]
fn the_lost_reply_to_a_renewal_costs_nothing() {
    outage(
        "outage-lost",
        |proxy| proxy.next(Call::Renew, Fate::LoseReply),
        |_| {},
    );
}

#[test]
fn a_stopped_supervisor_s_tree_is_gone_in_time_and_it_stands_by_when_continued() {
    let stage = Stage::new("stopped");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(proxy.port, "first", &[], &A_TREE);
    journal.await_tag(What::Beat, "first/daemon");
    let mut second = stage.instance(azurite().port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    first.freeze();
    journal.await_tag(What::Beat, "second");
    assert_dead_in_time(&stage, "first", &last_grant(&proxy));

    first.signal(Signal::SIGCONT);
    first.await_log("standing by: second is in control");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    journal.await_line("a third tenure", |line| {
        line.token == 3 && line.tag == "first"
    });
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    assert_eq!(journal.judge(), ["first", "second", "first"]);
    stage.scene.await_nobody();
}

#[test]
fn a_drain_may_last_longer_than_the_lease_because_renewals_go_on() {
    let stage = Stage::new("long-drain");
    let journal = &stage.scene.journal;
    let port = azurite().port;
    let mut first = stage.instance(port, "first", &["--grace", "10m"], &["--term", "18000:5"]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    first.signal(Signal::SIGTERM);
    await_for(
        "the record to say that control will change",
        || {
            let draining = stage.blob.metadata("trafficcop_draining")?;
            (draining == "true").then_some(())
        },
        || format!("{:?}", stage.blob.look()),
    );
    assert_eq!(first.wait(), Ended::Code(5), "{}", first.stderr());
    journal.await_tag(What::End, "first");
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(journal.judge(), ["first", "second"]);
}

#[test]
fn the_record_stands_on_the_blob_and_other_people_s_metadata_stays() {
    let stage = Stage::new("record");
    stage.blob.create(&[("colour", "red"), ("Owner", "ops")]);
    for token in ["1", "2"] {
        let one = stage.instance(azurite().port, "web1", &[], &[]);
        stage
            .scene
            .journal
            .await_line("it", |line| line.token.to_string() == token);
        assert_eq!(stage.blob.lease_state(), "leased");
        let metadata = |name: &str| stage.blob.metadata(name).unwrap_or_default();
        assert_eq!(metadata("trafficcop_token"), token);
        assert_eq!(metadata("trafficcop_holder"), "web1");
        assert_eq!(metadata("trafficcop_pid"), one.pid().to_string());
        assert!(metadata("trafficcop_command").contains("journalist"));
        assert!(metadata("trafficcop_since").ends_with('Z'));
        assert_eq!(
            (metadata("colour"), metadata("owner")),
            ("red".into(), "ops".into())
        );
        stage.let_end("web1");
        assert_eq!(one.finish().ended, Ended::Code(0));
        assert_eq!(stage.blob.lease_state(), "available");
        assert_eq!(stage.blob.metadata("colour").as_deref(), Some("red"));
        std::fs::remove_file(stage.scene.path("web1.done")).unwrap();
    }
}

#[test]
fn the_blob_is_an_empty_block_blob_unless_a_page_blob_is_asked_for() {
    for (container, option, kind, length) in [
        ("kind-block", None, "BlockBlob", "0"),
        ("kind-page", Some("--page-blob"), "PageBlob", "512"),
        ("kind-pages", Some("--page-blob=1M"), "PageBlob", "1048576"),
    ] {
        let stage = Stage::new(container);
        let finished = stage
            .run(azurite().port)
            .args(option)
            .shell("echo $TRAFFICCOP_TOKEN")
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        assert_eq!(finished.stdout, "1\n");
        let headers = stage.blob.look().expect("it was created and not deleted");
        assert_eq!(headers["x-ms-blob-type"], kind);
        assert_eq!(headers["content-length"], length);
    }
}

#[test]
fn no_create_refuses_a_missing_blob_and_creates_nothing() {
    let stage = Stage::new("no-create");
    let finished = stage
        .run(azurite().port)
        .args(["--no-create"])
        .shell("touch marker")
        .finish();
    assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("no-create/singleton"),
        "{}",
        finished.stderr
    );
    assert_eq!(stage.blob.lease_state(), "missing");
    stage.blob.create(&[]);
    let finished = stage
        .run(azurite().port)
        .args(["--no-create"])
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
}

#[test]
fn every_kind_of_credential_opens_the_same_lock() {
    let stage = Stage::new("credentials");
    let port = azurite().port;
    let url = format!("http://127.0.0.1:{port}/{ACCOUNT}/{}", stage.blob.name);
    let with_sas = format!("{url}?{}", sas());
    let string = connection_string(port);
    let sas_string = format!(
        "BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};SharedAccessSignature={}",
        sas()
    );
    let name = stage.blob.name.as_str();
    let rows: [(&str, &[(&str, &str)]); 6] = [
        (name, &[("AZURE_STORAGE_CONNECTION_STRING", &string)]),
        (name, &[("AZURE_STORAGE_CONNECTION_STRING", &sas_string)]),
        (&url, &[("AZURE_STORAGE_CONNECTION_STRING", &string)]),
        (
            &url,
            &[
                ("AZURE_STORAGE_ACCOUNT", ACCOUNT),
                ("AZURE_STORAGE_KEY", KEY),
            ],
        ),
        (&url, &[("AZURE_STORAGE_SAS_TOKEN", sas())]),
        (&with_sas, &[]),
    ];
    for (token, (blob, variables)) in (1..).zip(rows) {
        let mut run = stage.scene.run().args(["--blob", blob, "--status-file"]);
        run = run.arg(stage.scene.path("status"));
        for (name, value) in variables {
            run = run.env(name, value);
        }
        let finished = run
            .shell("echo $TRAFFICCOP_TOKEN $TRAFFICCOP_LOCK")
            .finish();
        assert_eq!(
            finished.ended,
            Ended::Code(0),
            "{blob} {variables:?}: {}",
            finished.stderr
        );
        assert!(
            finished.stdout.starts_with(&format!("{token} ")),
            "{}",
            finished.stdout
        );
        assert!(
            finished.stdout.contains("credentials/singleton"),
            "{}",
            finished.stdout
        );
        assert_no_secret(&finished.stdout);
        assert_no_secret(&finished.stderr);
        assert_no_secret(&std::fs::read_to_string(stage.scene.path("status")).unwrap());
    }
    let record = format!("{:?}", stage.blob.look());
    assert_no_secret(&record);
}

#[test]
fn the_lost_reply_to_an_acquire_is_recognised_when_asked_again() {
    let stage = Stage::new("lost-acquire");
    stage.blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Acquire, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    stage.scene.journal.await_tag(What::Beat, "one");
    let acquires: Vec<Seen> = proxy
        .log()
        .into_iter()
        .filter(|seen| seen.call == Call::Acquire)
        .collect();
    assert!(
        acquires.len() >= 2 && !acquires[0].delivered,
        "{acquires:#?}"
    );
    assert_eq!(acquires[0].lease_id, acquires.last().unwrap().lease_id);
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    assert_eq!(stage.scene.journal.judge(), ["one"]);
}

#[test]
fn the_lost_reply_to_the_record_does_not_lose_the_token() {
    let stage = Stage::new("lost-record");
    stage.blob.create(&[("trafficcop_token", "41")]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::SetMetadata, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    let first = stage.scene.journal.await_tag(What::Start, "one");
    assert!(first.token > 41, "{}", stage.scene.journal);
    assert_eq!(
        stage.blob.metadata("trafficcop_token").unwrap(),
        first.token.to_string()
    );
    stage.let_end("one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
}

#[test]
fn the_lost_reply_to_a_release_is_a_release() {
    let stage = Stage::new("lost-release");
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Release, Fate::LoseReply);
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &["--beats", "3"]);
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    stage.scene.await_nobody();
}

#[test]
fn a_stop_while_an_acquire_is_under_way_leaves_no_lease_behind() {
    let stage = Stage::new("undone");
    stage.blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(Call::Acquire, Fate::DelayReply(Duration::from_secs(3)));
    let mut one = stage.instance(proxy.port, "one", &["--lease", "60s"], &[]);
    stage.blob.await_lease_state("leased");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert_eq!(stage.blob.lease_state(), "available");
    assert!(
        stage.scene.journal.lines().is_empty(),
        "the command must not have run"
    );
    stage.scene.await_nobody();
}

#[test]
fn a_standby_survives_an_outage_of_the_store() {
    let stage = Stage::new("standby-outage");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut first = stage.instance(azurite().port, "first", &[], &[]);
    journal.await_tag(What::Beat, "first");
    let mut second = stage.instance(proxy.port, "second", &[], &[]);
    second.await_log("standing by: first is in control");
    proxy.set(Mode::Answer(500, "text/plain", "no"));
    second.await_log("retrying");
    stage.let_end("first");
    assert_eq!(first.wait(), Ended::Code(0));
    proxy.set(Mode::Pass);
    journal.await_tag(What::Beat, "second");
    stage.let_end("second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(journal.judge(), ["first", "second"]);
}

#[test]
fn a_lease_broken_at_once_kills_at_once_and_says_that_an_overlap_cannot_be_excluded() {
    let stage = Stage::new("broken-now");
    let one = stage.instance(azurite().port, "one", &["--if-lost", "exit"], &A_TREE);
    stage.scene.journal.await_tag(What::Beat, "one/daemon");
    stage.blob.break_lease(Some(0));
    let finished = one.finish();
    assert_eq!(finished.ended, Ended::Code(71), "{}", finished.stderr);
    stage.scene.assert_no_tree();
    // Nothing drains here: who holds the lease by now would have to wait for it.
    let journal = &stage.scene.journal;
    assert!(
        journal.lines().iter().all(|line| line.what != What::Term),
        "{journal}"
    );
    stage.scene.await_nobody();
}

#[test]
fn a_lease_broken_with_a_period_drains_within_it() {
    let stage = Stage::new("broken-later");
    let journal = &stage.scene.journal;
    let command = ["--term", "200:9"];
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &["--if-lost", "exit"], &command);
    journal.await_tag(What::Beat, "one");
    proxy.await_next(Call::Renew);
    stage.blob.break_lease(None);
    let begin = Instant::now().as_nanos();
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    let end = journal.await_tag(What::End, "one");
    assert!(end.at < begin + LEASE, "{journal}");
    stage.scene.await_nobody();
}

#[test]
fn a_lease_taken_over_by_a_stranger_kills_and_the_instance_stands_by_again() {
    let stage = Stage::new("taken");
    let journal = &stage.scene.journal;
    let mut one = stage.instance(azurite().port, "one", &[], &A_TREE);
    journal.await_tag(What::Beat, "one/daemon");
    stage.blob.break_lease(Some(0));
    stage.blob.acquire(STRANGER, 60);
    await_for(
        "the tree to be gone",
        || stage.scene.trees().is_empty().then_some(()),
        || one.stderr(),
    );
    one.await_log("standing by");
    stage.blob.release(STRANGER);
    journal.await_line("a second tenure", |line| line.token == 2);
    stage.let_end("one");
    one.wait();
    journal.judge();
    stage.scene.await_nobody();
}

#[test]
fn a_deleted_blob_kills_and_is_created_again_with_a_greater_token() {
    let stage = Stage::new("deleted");
    let journal = &stage.scene.journal;
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &[], &A_TREE);
    journal.await_tag(What::Beat, "one/daemon");
    stage.blob.delete(&last_grant(&proxy).lease_id.unwrap());
    journal.await_line("a second tenure", |line| line.token == 2);
    stage.let_end("one");
    one.wait();
    assert_eq!(journal.judge(), ["one", "one"]);
    assert_eq!(
        stage.blob.metadata("trafficcop_token").as_deref(),
        Some("2")
    );
    stage.scene.await_nobody();
}

#[test]
fn no_wait_and_wait_give_up_on_a_lease_that_is_held() {
    let stage = Stage::new("conflict");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    for (options, status) in [
        (&["-n"][..], 75),
        (&["-n", "-E", "9"][..], 9),
        (&["-w", "1s"][..], 75),
        (&["-w", "1s", "-E", "0"][..], 0),
    ] {
        let begin = Instant::now();
        let finished = stage
            .run(azurite().port)
            .args(options)
            .shell("touch marker")
            .finish();
        assert_eq!(
            finished.ended,
            Ended::Code(status),
            "{options:?}: {}",
            finished.stderr
        );
        if options[0] == "-w" {
            assert!(Instant::now().since(begin) >= Duration::from_secs(1));
        }
    }
    assert_eq!(
        stage.blob.metadata("trafficcop_token"),
        None,
        "a held lock is only looked at"
    );
}

#[test]
fn a_standby_polls_without_writing() {
    let stage = Stage::new("polls");
    stage.blob.create(&[]);
    stage.blob.acquire(STRANGER, 60);
    let proxy = Proxy::before(azurite().port);
    let mut one = stage.instance(proxy.port, "one", &["--poll", "100ms"], &[]);
    await_for(
        "ten polls",
        || (proxy.log().len() >= 10).then_some(()),
        || format!("{:?}", proxy.log()),
    );
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    let log = proxy.log();
    assert!(log.iter().all(|seen| seen.call == Call::Look), "{log:#?}");
}

#[test]
fn nothing_but_the_standard_streams_reaches_the_command() {
    let stage = Stage::new("descriptors");
    let finished = stage
        .run(azurite().port)
        .command(["ls", "-l", "/proc/self/fd"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    for line in finished.stdout.lines() {
        let Some((left, target)) = line.split_once(" -> ") else {
            continue;
        };
        let number: i32 = left.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(
            number <= 2 || target.starts_with("/proc/"),
            "leaked: {line}"
        );
    }
}
