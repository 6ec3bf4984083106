//! `trafficcop elect`: a reader is told who is in control, end to end.
//!
//! Read as a specification: each test is one sentence of it. A reader stamps each line with
//! CLOCK_BOOTTIME when it has read it, and the stamps are judged as the journals of commands are.

#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::clock::Instant;

use support::await_for;
use support::azurite::{azurite, connection_string};
use support::instance::{Ended, Instance, Run};
use support::processes::{Process, marked};
use support::programs::trafficcop;
use support::proxy::{Call, Mode, Proxy};
use support::scene::Scene;

const SECOND: u64 = 1_000_000_000;
const PIPE: Ended = Ended::Died(Signal::SIGPIPE);
const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

/// What a reader knows: lines with their stamps, and when the end came.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Hearing>>);

/// Stamped lines, and the end.
type Hearing = (Vec<(u64, String)>, Option<u64>);

impl Heard {
    fn lines(&self) -> Vec<(u64, String)> {
        self.0.lock().unwrap().0.clone()
    }

    fn texts(&self) -> Vec<String> {
        self.lines().into_iter().map(|(_, text)| text).collect()
    }

    fn end(&self) -> Option<u64> {
        self.0.lock().unwrap().1
    }

    /// Waits for a line, and says when it was read.
    fn await_line(&self, wanted: &str) -> u64 {
        await_for(
            &format!("the line {wanted:?}"),
            || Some(self.lines().into_iter().find(|line| line.1 == wanted)?.0),
            || format!("{:#?}", self.lines()),
        )
    }

    /// From when to when the reader believed that it was in control, with which token.
    fn tenures(&self) -> Vec<(u64, u64, u64)> {
        let mut found = Vec::new();
        let mut since = None;
        for (at, text) in self.lines() {
            if let Some((begin, token)) = since.take() {
                found.push((begin, at, token));
            }
            if let Some(token) = text.strip_prefix("holder ") {
                since = Some((at, token.parse().expect("a token")));
            }
        }
        if let Some((begin, token)) = since {
            found.push((begin, self.end().unwrap_or(u64::MAX), token));
        }
        found
    }
}

fn listen(reader: PipeReader) -> Heard {
    let heard = Heard::default();
    let theirs = heard.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines() {
            let line = line.expect("text");
            let at = Instant::now().as_nanos();
            theirs.0.lock().unwrap().0.push((at, line));
        }
        theirs.0.lock().unwrap().1 = Some(Instant::now().as_nanos());
    });
    heard
}

/// An instance with a reader that reads.
struct Pair {
    name: String,
    instance: Instance,
    heard: Heard,
}

impl Pair {
    fn start(name: &str, run: Run<'_>) -> Pair {
        let (reader, writer) = std::io::pipe().unwrap();
        let instance = run.args(["--identity", name]).stdout(writer).start();
        Pair {
            name: name.into(),
            instance,
            heard: listen(reader),
        }
    }
}

/// An instance whose reader is in our hands.
fn unread(run: Run<'_>) -> (Instance, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (run.stdout(writer).start(), reader)
}

fn first_line(reader: &mut PipeReader) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        assert_eq!(reader.read(&mut byte).unwrap(), 1, "{line:?}");
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn on_file(scene: &Scene) -> Run<'_> {
    scene.elect().arg("--file").arg(scene.lock())
}

fn on_blob<'a>(scene: &'a Scene, port: u16, blob: &str) -> Run<'a> {
    scene
        .elect()
        .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
        .args(["--lease", "15s", "--poll", "500ms", "--blob", blob])
}

/// No two readers believed at the same time, and tokens grow.
fn judge(pairs: &[Pair]) {
    let mut all: Vec<(u64, u64, u64, &str)> = Vec::new();
    for pair in pairs {
        let tenures = pair.heard.tenures();
        all.extend(tenures.iter().map(|t| (t.0, t.1, t.2, &*pair.name)));
    }
    all.sort_unstable();
    for both in all.windows(2) {
        assert!(both[0].1 < both[1].0, "an overlap: {all:#?}");
        assert!(
            both[0].2 < both[1].2,
            "a token that does not grow: {all:#?}"
        );
    }
}

/// Waits for the holder among them that has this token; there must be one, and nobody else new.
fn holder(pairs: &[Pair], token: u64) -> usize {
    let wanted = format!("holder {token}");
    await_for(
        &wanted,
        || {
            let mut those =
                (0..pairs.len()).filter(|at| pairs[*at].heard.texts().contains(&wanted));
            let found = those.next()?;
            assert_eq!(those.next(), None, "two were told {wanted}");
            Some(found)
        },
        || {
            format!(
                "{:#?}",
                pairs.iter().map(|p| p.heard.lines()).collect::<Vec<_>>()
            )
        },
    )
}

/// Three instances; the holders end one after another, killed, asked to, and hung up on.
fn one_after_another(mut start: impl FnMut(&str) -> Pair) {
    let mut pairs: Vec<Pair> = ["a", "b", "c"].iter().map(|name| start(name)).collect();
    let mut left: BTreeSet<usize> = (0..3).collect();
    for (token, end) in [
        (1, Signal::SIGKILL),
        (2, Signal::SIGTERM),
        (3, Signal::SIGINT),
    ] {
        let at = holder(&pairs, token);
        assert!(left.remove(&at), "a holder that had ended");
        let named = format!("standby {}", pairs[at].name);
        for other in &left {
            pairs[*other].heard.await_line(&named);
        }
        let told: usize = pairs
            .iter()
            .map(|pair| {
                pair.heard
                    .texts()
                    .iter()
                    .filter(|l| l.starts_with("holder"))
                    .count()
            })
            .sum();
        assert_eq!(told as u64, token, "one line for each tenure");
        pairs[at].instance.signal(end);
        assert_eq!(pairs[at].instance.wait(), Ended::Died(end));
    }
    for pair in &pairs {
        await_for("the end", || pair.heard.end(), String::new);
        let texts = pair.heard.texts();
        assert_eq!(texts.last().unwrap(), "standby unknown", "{texts:?}");
        let mut twice = texts.windows(2);
        assert!(twice.all(|both| both[0] != both[1]), "{texts:?}");
    }
    judge(&pairs);
}

#[test]
fn on_a_file_killed_and_stopped_holders_are_followed_by_one_each_and_readers_never_overlap() {
    let scene = Scene::new();
    one_after_another(|name| Pair::start(name, on_file(&scene).args(["--grace", "3s"])));
    scene.await_nobody();
}

#[test]
fn on_a_blob_killed_and_stopped_holders_are_followed_by_one_each_and_readers_never_overlap() {
    let scene = Scene::new();
    let blob = "elect/three";
    one_after_another(|name| {
        let run = on_blob(&scene, azurite().port, blob).args(["--grace", "3s"]);
        Pair::start(name, run)
    });
    scene.await_nobody();
}

#[test]
fn a_holder_whose_store_is_frozen_says_standby_before_another_can_hold() {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let first = Pair::start("first", on_blob(&scene, proxy.port, "elect/frozen"));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_blob(&scene, azurite().port, "elect/frozen"));
    second.heard.await_line("standby first");
    proxy.set(Mode::Freeze);
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    // Grace (3 s) and margin (1 s) lie between, but for what a busy machine takes to print.
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    proxy.set(Mode::Pass);
    first.heard.await_line("standby second");
    judge(&[first, second]);
}

#[test]
fn a_holder_that_is_stopped_says_standby_all_the_same_and_nothing_else_when_continued() {
    let scene = Scene::new();
    let port = azurite().port;
    let first = Pair::start("first", on_blob(&scene, port, "elect/stopped"));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_blob(&scene, port, "elect/stopped"));
    second.heard.await_line("standby first");
    first.instance.freeze();
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert_eq!(first.heard.texts(), ["holder 1", "standby unknown"]);
    first.instance.signal(Signal::SIGCONT);
    first.heard.await_line("standby second");
    assert_eq!(first.heard.texts().len(), 3);
    judge(&[first, second]);
}

#[test]
fn a_holder_all_of_whose_processes_were_stopped_says_standby_first() {
    let scene = Scene::new();
    let port = azurite().port;
    let first = Pair::start("first", on_blob(&scene, port, "elect/all-stopped"));
    first.heard.await_line("holder 1");
    let all: Vec<Process> = marked(scene.directory());
    assert_eq!(all.len(), 3, "supervisor, guardian and teller: {all:?}");
    for process in &all {
        kill(Pid::from_raw(process.pid), Signal::SIGSTOP).expect("ours");
    }
    let second = Pair::start("second", on_blob(&scene, port, "elect/all-stopped"));
    second.heard.await_line("holder 2");
    assert_eq!(first.heard.texts(), ["holder 1"]);
    // The guardian before the supervisor, which would finish for a silent one. The teller may be
    // killed before its turn.
    for process in all.iter().rev() {
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
    }
    first.heard.await_line("standby second");
    let texts = first.heard.texts();
    assert_eq!(texts[..2], ["holder 1", "standby unknown"], "{texts:?}");
}

#[test]
fn a_reader_that_hangs_up_on_a_holder_ends_it_by_sigpipe_and_frees_the_lock_at_once() {
    let scene = Scene::new();
    // A grace that nobody would wait for.
    let run = on_file(&scene).args(["--grace", "1h"]);
    let (mut instance, mut reader) = unread(run);
    assert_eq!(first_line(&mut reader), "holder 1");
    drop(reader);
    assert_eq!(instance.wait(), PIPE, "{}", instance.stderr());
    let (_next, mut reader) = unread(on_file(&scene).arg("-n"));
    assert_eq!(first_line(&mut reader), "holder 2");
}

#[test]
fn a_reader_that_hangs_up_on_a_standby_ends_it_by_sigpipe_though_nothing_is_said() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene));
    first.heard.await_line("holder 1");
    let (mut second, mut reader) = unread(on_file(&scene));
    assert_eq!(first_line(&mut reader), "standby first");
    drop(reader);
    assert_eq!(second.wait(), PIPE, "{}", second.stderr());
    assert_eq!(first.heard.texts(), ["holder 1"]);
}

/// Fills a pipe, so that nothing more goes in.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
    fcntl(&writer, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_that_never_reads_stops_no_renewal_and_is_not_told_what_is_not_true_any_more() {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let (mut reader, writer) = full_pipe();
    let run = on_blob(&scene, proxy.port, "elect/deaf").args(["--grace", "1h"]);
    let mut instance = run.stdout(writer).start();
    for _ in 0..3 {
        proxy.await_next(Call::Renew);
    }
    instance.assert_running();
    // Nobody was told anything, so nobody needs the grace.
    instance.signal(Signal::SIGTERM);
    assert_eq!(instance.wait(), TERM);
    let mut all = String::new();
    reader.read_to_string(&mut all).unwrap();
    assert_eq!(all.trim_start_matches('.'), "");
}

#[test]
fn a_reader_that_reads_late_is_told_where_we_stand_then() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene).args(["--grace", "0"]));
    first.heard.await_line("holder 1");
    let (reader, writer) = full_pipe();
    let second = on_file(&scene).stdout(writer).start();
    second.await_log("standing by");
    first.instance.signal(Signal::SIGTERM);
    second.await_log("in control, token 2");
    let heard = listen(reader);
    let line = await_for(
        "a line",
        || heard.texts().first().cloned(),
        || format!("{:?}", heard.lines()),
    );
    assert_eq!(line.trim_start_matches('.'), "holder 2");
}

#[test]
fn a_requested_stop_says_standby_and_waits_the_grace_unless_the_reader_hangs_up() {
    let scene = Scene::new();
    let (mut first, mut reader) = unread(on_file(&scene).args(["--grace", "1h"]));
    assert_eq!(first_line(&mut reader), "holder 1");
    let second = Pair::start("second", on_file(&scene).args(["--grace", "2s"]));
    await_for(
        "the second to stand by",
        || (!second.heard.texts().is_empty()).then_some(()),
        String::new,
    );
    first.signal(Signal::SIGTERM);
    assert_eq!(first_line(&mut reader), "standby unknown");
    first.assert_running();
    assert!(second.heard.tenures().is_empty());
    drop(reader);
    assert_eq!(first.wait(), TERM);
    second.heard.await_line("holder 2");
    // One that goes on reading gets its grace.
    let third = Pair::start("third", on_file(&scene));
    third.heard.await_line("standby second");
    second.instance.signal(Signal::SIGHUP);
    let told = second.heard.await_line("standby unknown");
    let held = third.heard.await_line("holder 3");
    assert!(held > told + SECOND, "told {} ns before", held - told);
}

#[test]
fn a_killed_supervisor_s_reader_gets_its_grace_before_a_file_s_lock_is_free() {
    let scene = Scene::new();
    let mut first = Pair::start("first", on_file(&scene).args(["--grace", "4s"]));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene));
    second.heard.await_line("standby first");
    first.instance.signal(Signal::SIGKILL);
    assert_eq!(first.instance.wait(), KILL);
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert!(first.heard.end().is_some_and(|end| end > told));
}

/// The teller or the guardian dies: the reader is told by who is left, and gets a grace.
fn dies(which: &str) {
    let scene = Scene::new();
    let mut first = Pair::start("first", on_file(&scene).args(["--grace", "4s"]));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene));
    second.heard.await_line("standby first");
    let guardian = first.instance.guardian();
    let victim = match which {
        "guardian" => guardian,
        _ => {
            let all = marked(scene.directory());
            all.iter()
                .find(|one| one.parent == guardian)
                .expect("a teller")
                .pid
        }
    };
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    let told = first.heard.await_line("standby unknown");
    let held = second.heard.await_line("holder 2");
    assert!(held > told + 2 * SECOND, "told {} ns before", held - told);
    assert_eq!(
        first.instance.wait(),
        Ended::Code(70),
        "{}",
        first.instance.stderr()
    );
    assert_eq!(first.heard.texts(), ["holder 1", "standby unknown"]);
}

#[test]
fn the_death_of_the_teller_gives_the_reader_a_grace_and_is_status_70() {
    dies("teller");
}

#[test]
fn the_death_of_the_guardian_gives_the_reader_a_grace_and_is_status_70() {
    dies("guardian");
}

fn check(control: &PathBuf) -> Option<i32> {
    let mut command = Command::new(trafficcop());
    command.arg("check").env("TRAFFICCOP_CONTROL", control);
    command.status().expect("it can be run").code()
}

#[test]
fn json_has_the_documented_fields_and_the_control_file_tells_the_same() {
    let scene = Scene::new();
    let link = scene.path("control");
    let run = on_file(&scene).args(["--json", "--grace", "1h", "--control-file"]);
    let (mut first, mut reader) = unread(run.arg(&link).args(["--identity", "one"]));
    let holder: serde_json::Value = serde_json::from_str(&first_line(&mut reader)).unwrap();
    let lock = scene.lock().to_string_lossy().into_owned();
    let fields: Vec<&String> = holder.as_object().unwrap().keys().collect();
    let mut wanted: Vec<&str> = trafficcop::cli::FIELDS.iter().map(|f| f.0).collect();
    wanted.sort_unstable();
    assert_eq!(fields, wanted);
    assert_eq!(holder["role"], "holder");
    assert_eq!(holder["token"], 1);
    assert_eq!(holder["holder"], "one");
    assert_eq!(holder["identity"], "one");
    assert!(holder["lock"].as_str().unwrap().contains(&lock), "{holder}");
    assert_eq!(holder["slot"], 0);
    let control = PathBuf::from(holder["control"].as_str().unwrap());
    assert_eq!(std::fs::read_link(&link).unwrap(), control);
    assert_eq!(check(&link), Some(0));

    let (_second, mut other) = unread(on_file(&scene).arg("--json"));
    let standby: serde_json::Value = serde_json::from_str(&first_line(&mut other)).unwrap();
    assert_eq!(standby["role"], "standby");
    assert_eq!(standby["holder"], "one");
    assert_eq!(standby["token"], 1);

    // The reader is told to stop, and is not killed: from that line on it has no control.
    first.signal(Signal::SIGTERM);
    let leaving: serde_json::Value = serde_json::from_str(&first_line(&mut reader)).unwrap();
    assert_eq!(leaving["role"], "standby");
    assert_eq!(leaving["holder"], serde_json::Value::Null);
    assert_eq!(check(&link), Some(1));
    drop(reader);
    assert_eq!(first.wait(), TERM);
    assert!(link.symlink_metadata().is_err(), "the link is left");
}

#[test]
fn max_hold_hands_control_round_with_a_line_each() {
    let scene = Scene::new();
    // Looking often enough to be there while the other stands back.
    let turns = [
        "--max-hold",
        "2s",
        "--cooldown",
        "3s",
        "--grace",
        "1s",
        "--poll",
        "200ms",
    ];
    let first = Pair::start("first", on_file(&scene).args(turns));
    first.heard.await_line("holder 1");
    let second = Pair::start("second", on_file(&scene).args(turns));
    first.heard.await_line("standby unknown");
    second.heard.await_line("holder 2");
    first.heard.await_line("standby second");
    first.heard.await_line("holder 3");
    judge(&[first, second]);
}

#[test]
fn who_does_not_wait_names_the_holder_and_exits_75() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene));
    first.heard.await_line("holder 1");
    let finished = on_file(&scene).arg("-n").finish();
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    assert_eq!(finished.stdout, "standby first\n");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let refused = |more: &[&str], words: &[&str]| {
        let scene = Scene::new();
        let finished = on_file(&scene).args(more).finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        for word in words {
            assert!(finished.stderr.contains(word), "{}", finished.stderr);
        }
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(!scene.lock().exists(), "the lock's file was made");
    };
    refused(
        &["--", "job", "-x"],
        &["no command", "trafficcop run", "job -x"],
    );
    refused(&["job"], &["no command"]);
    refused(
        &["--control-file", "/etc"],
        &["--control-file", "symbolic link"],
    );
    refused(&["--control-file", ""], &["--control-file"]);
    refused(&["--grace", "soon"], &["--grace"]);
    refused(&["--max-hold", "1ms"], &["--max-hold"]);
    refused(&["--cooldown", "9s"], &["--cooldown"]);
}

#[test]
fn a_full_disk_is_no_reader_that_hung_up() {
    let scene = Scene::new();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut instance = on_file(&scene).stdout(full).start();
    assert_eq!(instance.wait(), Ended::Code(74), "{}", instance.stderr());
    assert!(
        instance.stderr().contains("cannot write"),
        "{}",
        instance.stderr()
    );
}

#[test]
fn the_event_log_of_two_on_a_blob_is_a_timeline_without_an_overlap() {
    let scene = Scene::new();
    let logs = ["one", "two"].map(|name| scene.path(&format!("{name}.events")));
    let start = |name: &str, log: &PathBuf| {
        let elect = scene.elect().args(["--blob", "elect-events/one"]);
        elect
            .env(
                "AZURE_STORAGE_CONNECTION_STRING",
                connection_string(azurite().port),
            )
            .args(["--lease", "15s", "--poll", "500ms", "--identity", name])
            .arg("--event-log")
            .arg(log)
            .start()
    };
    let says = |instance: &Instance, words: &str| {
        await_for(
            &format!("{words:?} on stdout"),
            || instance.stdout().contains(words).then_some(()),
            || instance.stderr(),
        );
    };
    let mut one = start("one", &logs[0]);
    says(&one, "holder 1\n");
    let mut two = start("two", &logs[1]);
    says(&two, "standby one\n");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    says(&two, "holder 2\n");
    two.signal(Signal::SIGTERM);
    assert_eq!(two.wait(), TERM);
    let told = Command::new(trafficcop())
        .args(["timeline", "--json"])
        .args(&logs)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&told.stdout);
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let locks = json["locks"].as_array().expect("locks");
    assert_eq!(locks.len(), 1, "{json:#}");
    let lock = locks[0]["lock"].as_str().expect("its address");
    assert!(lock.ends_with("/elect-events/one"), "{lock}");
    let tenures = locks[0]["tenures"].as_array().expect("tenures");
    let told: Vec<_> = tenures
        .iter()
        .map(|tenure| {
            let text = |field: &str| tenure[field].as_str().expect(field).to_owned();
            (text("identity"), tenure["token"].as_u64(), text("end"))
        })
        .collect();
    let released = "released".to_owned();
    assert_eq!(
        told,
        [
            ("one".to_owned(), Some(1), released.clone()),
            ("two".to_owned(), Some(2), released)
        ],
        "{json:#}"
    );
    assert_eq!(json["overlap"], false);
}
