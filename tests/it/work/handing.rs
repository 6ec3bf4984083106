//! Passing a message to its command.

use std::os::unix::fs::MetadataExt as _;

use nix::sys::resource::Resource;

use super::*;
use crate::support::processes::allow_descriptors;

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |number: u32| char::from(LETTERS[(number & 63) as usize]);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.push(letter(bits >> 18));
        text.push(letter(bits >> 12));
        text.push(if chunk.len() > 1 {
            letter(bits >> 6)
        } else {
            '='
        });
        text.push(if chunk.len() > 2 { letter(bits) } else { '=' });
    }
    text
}

#[test]
fn every_byte_of_a_body_of_64_kib_arrives() {
    let body: Vec<u8> = (0..48 << 10).map(|n: u32| (n * 7 % 256) as u8).collect();
    assert!(body.contains(&0) && body.contains(&0xff));
    let (scene, mailbox) = with(&base64(&body));
    let done = worker(&scene, &mailbox)
        .args(["--once", "--encoding", "base64"])
        .current_dir(scene.directory())
        .shell("cat > body")
        .finish();
    assert_ended(&done, 0, "completed");
    assert!(std::fs::read(scene.path("body")).unwrap() == body);
}

#[test]
fn text_stays_what_it_is() {
    let text = "{\"a\": \"<&>\", \"b\": \"grüße\"}";
    let (scene, mailbox) = with(text);
    let done = once(&scene, &mailbox, &[], "cat; head -c 9 /dev/stdin");
    assert_ended(&done, 0, "completed");
    assert_eq!(
        done.stdout,
        format!("{text}{}", &text[..9]),
        "and can be read twice"
    );
}

/// An earlier version decoded these, because they look like base64.
#[test]
fn text_is_never_decoded_unasked_and_the_first_that_can_be_base64_is_warned_of() {
    let texts = ["abc=", "aGVsbG8=", "YWJjZGVm", "Zm9vYmFyMTIzZm9vYmFyMTIz"];
    let script = "cat; echo \" $TRAFFICCOP_MESSAGE_ENCODING\"";
    let ask = |more: &[&str]| {
        let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
        texts.iter().for_each(|text| mailbox.put(text));
        let worker = worker(&scene, &mailbox)
            .args(["--idle-exit", "0s"])
            .args(more);
        worker.shell(script).finish()
    };
    let warning = "pass --encoding base64 if";
    let as_sent: String = texts.iter().map(|text| format!("{text} text\n")).collect();
    let done = ask(&[]);
    assert_ended(&done, 0, warning);
    assert_eq!(done.stdout, as_sent);
    assert_eq!(done.stderr.matches(warning).count(), 1, "{}", done.stderr);
    let done = ask(&["--encoding", "text"]);
    assert_eq!(done.stdout, as_sent);
    assert!(!done.stderr.contains(warning), "{}", done.stderr);
    // The first is two bytes that are no text.
    let done = ask(&["--encoding", "base64"]);
    let decoded = "hello base64\nabcdef base64\nfoobar123foobar123 base64\n";
    assert!(done.stdout.ends_with(decoded), "{}", done.stdout);
}

#[test]
fn a_command_that_never_reads_or_closes_its_stdin_is_none_the_worse_and_its_lock_is_renewed() {
    for script in ["exec 0<&-; sleep 11", "sleep 11"] {
        let (scene, mailbox) = with(&"x".repeat(60 << 10));
        let running = worker(&scene, &mailbox)
            .args(["--once", "--lock-time", "10s", "-v"])
            .shell(&format!("echo runs >&2; {script}"))
            .start();
        running.await_log("runs");
        let done = running.finish();
        assert_ended(&done, 0, "completed, attempt 1");
        assert!(
            done.stderr.matches(": renewed").count() >= 1,
            "{}",
            done.stderr
        );
    }
}

#[test]
fn message_is_described_in_the_environment_without_outer_variables() {
    let (scene, mailbox) = with("x");
    let done = worker(&scene, &mailbox)
        .arg("--once")
        .env("TRAFFICCOP_TOKEN", "7")
        .env("TRAFFICCOP_MESSAGE_DIR", "/outer")
        .shell("env | grep ^TRAFFICCOP_ | sort; test -r $TRAFFICCOP_CONTROL && echo control")
        .finish();
    assert_ended(&done, 0, "completed");
    let has = |words: &str| done.stdout.contains(words);
    assert!(has("TRAFFICCOP_MESSAGE_ATTEMPT=1\n"), "{}", done.stdout);
    assert!(
        has("TRAFFICCOP_MESSAGE_MAX_ATTEMPTS=5\n"),
        "{}",
        done.stdout
    );
    assert!(has("TRAFFICCOP_MESSAGE_ID=") && has("TRAFFICCOP_MESSAGE_ENQUEUED_AT=2"));
    assert!(has(&format!("/{}\n", mailbox.name)) && has("\ncontrol\n"));
    assert!(
        !has("TRAFFICCOP_TOKEN") && !has("/outer"),
        "{}",
        done.stdout
    );
}

#[test]
fn message_directory_is_private_and_removed_afterwards() {
    let (scene, mailbox) = with("a body");
    let place = scene.path("place");
    std::fs::create_dir(&place).unwrap();
    let script = "stat -c %a $TRAFFICCOP_MESSAGE_DIR; cat $TRAFFICCOP_MESSAGE_FILE; \
                  grep -c '\"attempt\": 1' $TRAFFICCOP_MESSAGE_DIR/message.json; cat; exit 65";
    let done = worker(&scene, &mailbox)
        .args(["--once", "--message", "file"])
        .env("TMPDIR", &place)
        .shell(script)
        .finish();
    assert_ended(&done, 65, "dead-lettered");
    assert_eq!(done.stdout, "700\na body1\n", "and nothing on stdin");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn message_directory_of_a_killed_worker_is_swept_by_the_next() {
    let (scene, mailbox) = with("a secret");
    let place = scene.path("place");
    std::fs::create_dir(&place).unwrap();
    let at = |more: &[&str]| {
        worker(&scene, &mailbox)
            .args([
                "--message",
                "file",
                "--lock-time",
                "10s",
                "--kill-after",
                "1s",
            ])
            .args(more)
            .env("TMPDIR", &place)
    };
    let running = at(&["--once"]).shell("echo runs >&2; sleep 600").start();
    running.await_log("runs");
    let left = || std::fs::read_dir(&place).unwrap().count();
    // Another new worker leaves it alone.
    let other = Mailbox::fresh();
    let beside = worker(&scene, &other)
        .args(["--message", "file", "--idle-exit", "0s"])
        .env("TMPDIR", &place)
        .command(["true"])
        .finish();
    assert_ended(&beside, 0, "--idle-exit");
    assert_eq!(left(), 1);
    running.signal(nix::sys::signal::Signal::SIGKILL);
    scene.await_nobody();
    assert_eq!(left(), 1, "its worker was killed and could not remove it");
    let done = at(&["--once"]).command(["true"]).finish();
    assert_ended(&done, 0, "completed, attempt 2");
    assert_eq!(left(), 0);
    assert_eq!(std::fs::metadata(&place).unwrap().nlink(), 2);
}

#[test]
fn directories_that_cannot_be_entered_go_too() {
    let (scene, mailbox) = with("a secret");
    let place = scene.path("place");
    std::fs::create_dir(&place).unwrap();
    let script = "cd $TRAFFICCOP_MESSAGE_DIR && mkdir -p a/b && cp body a/b/copy && chmod 0 a/b && chmod 500 a .";
    let done = worker(&scene, &mailbox)
        .args(["--once", "--message", "file"])
        .env("TMPDIR", &place)
        .bound_by_permissions()
        .shell(script)
        .finish();
    assert_ended(&done, 0, "completed");
    assert_eq!(
        std::fs::read_dir(&place).unwrap().count(),
        0,
        "{}",
        done.stderr
    );
}

#[test]
fn a_message_that_cannot_be_handed_over_here_is_given_back_and_the_worker_leaves() {
    let (scene, mailbox) = with("x");
    mailbox.put("y");
    let place = scene.path("place");
    std::fs::create_dir(&place).unwrap();
    // The first command removes the next one's directory.
    let done = worker(&scene, &mailbox)
        .args(["--message", "file", "--lock-time", "1h"])
        .env("TMPDIR", &place)
        .shell("echo ran; rm -r $TMPDIR")
        .finish();
    assert_ended(&done, 126, "messages cannot be handed over here");
    assert_eq!(done.stdout, "ran\n");
    let left = mailbox.visible();
    assert_eq!(left.len(), 1, "{}", done.stderr);
    assert_eq!(left[0].count, 1, "it did not go round and round");
}

#[test]
fn with_too_few_descriptors_a_command_is_not_started_rather_than_with_less_than_its_message() {
    let (scene, mailbox) = with("a whole body");
    let (mut handed, mut refused) = (0, 0);
    for limit in 6..32 {
        let run = worker(&scene, &mailbox).limited(Resource::RLIMIT_NOFILE, limit);
        let done = run
            .args(["--once", "--max-attempts", "100", "--retry-delay", "0s"])
            .shell("cat; exit 9")
            .finish();
        let Ended::Code(code) = done.ended else {
            panic!("{limit}: {:?}\n{}", done.ended, done.stderr);
        };
        match code {
            // The command's own end: it had everything.
            9 => {
                assert_eq!(done.stdout, "a whole body", "{limit}: {}", done.stderr);
                handed += 1;
            }
            69 | 70 => {
                assert_eq!(done.stdout, "", "{limit}: {}", done.stderr);
                refused += 1;
            }
            other => panic!("{limit}: {other}\n{}", done.stderr),
        }
    }
    assert!(handed > 3 && refused > 3, "{handed} {refused}");
}

#[test]
fn a_handler_has_our_credentials_unless_they_are_to_be_kept_from_it() {
    for (options, told) in [
        (&[][..], format!("{CONNECTION}\n")),
        (&["--no-credentials"], String::new()),
    ] {
        let (scene, mailbox) = with("x");
        let script = "env | grep -o '^AZURE_[A-Z_]*'; true";
        let done = once(&scene, &mailbox, options, script);
        assert_ended(&done, 0, "completed");
        assert_eq!(done.stdout, told);
    }
}

#[test]
fn a_message_that_its_guardian_cannot_receive_is_given_back_and_nothing_runs_without_it() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let run = worker(&scene, &mailbox).args(["--retry-delay", "1s"]);
    let working = run.shell("cat; echo .").start();
    // By then its guardian is set up, which needs descriptors.
    working.await_log("takes messages from");
    let guardian = working.guardian();
    allow_descriptors(guardian, 0);
    mailbox.put("a whole body");
    let done = working.finish();
    assert_ended(&done, 69, "Too many open files");
    assert_eq!(done.stdout, "", "nothing ran");
    let left = mailbox.await_take(60);
    assert_eq!((left.count, &*left.text), (2, "a whole body"));
}
