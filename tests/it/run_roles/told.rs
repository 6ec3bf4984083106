//! The commands' environments, their state in the status file, and refusals.

use super::*;

#[test]
fn each_finds_its_role_in_its_environment() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let dump = |file: &str| {
        let fresh = scene.path(&format!("{file}.fresh"));
        let (fresh, file) = (fresh.display(), scene.path(file));
        let file = file.display();
        format!(
            "(env; trafficcop check && echo YES || echo NO; read line && echo \"GOT $line\"; echo END) > {fresh}; \
             mv {fresh} {file}"
        )
    };
    let bin = std::path::Path::new(programs::trafficcop())
        .parent()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let stdin = scene.path("stdin");
    std::fs::write(&stdin, "for the command\n").unwrap();
    let mut second = scene
        .run_on_file()
        .env("PATH", path)
        // As under an outer trafficcop.
        .env("TRAFFICCOP_TOKEN", "999")
        .env("TRAFFICCOP_HOLDER", "outer")
        .env("TRAFFICCOP_TASK", "outer")
        .env("TRAFFICCOP_PERIOD", "outer")
        .stdin(File::open(&stdin).unwrap())
        .args(["--identity", "second"])
        .args(["--standby", &format!("{}; sleep 1000", dump("standby.env"))])
        .args([
            "--on-acquire",
            &dump("hook.env"),
            "--on-lost",
            &dump("lost.env"),
        ])
        .shell(&dump("command.env"))
        .start();
    let standby = await_text(&scene, "standby.env");
    let_end(&scene, "first");
    first.wait();
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    let [hook, command, lost] =
        ["hook.env", "command.env", "lost.env"].map(|file| await_text(&scene, file));
    let lock = format!("\nTRAFFICCOP_LOCK={}\n", scene.lock().display());
    for (text, has, lacks) in [
        (
            &standby,
            ["TRAFFICCOP_ROLE=standby", "TRAFFICCOP_CONTROL=/", "\nNO\n"],
            ["TRAFFICCOP_TOKEN", "TRAFFICCOP_HOLDER", "GOT"],
        ),
        (
            &hook,
            ["TRAFFICCOP_ROLE=holder", "TRAFFICCOP_TOKEN=2", "\nYES\n"],
            ["TRAFFICCOP_CAUSE", "=outer", "GOT"],
        ),
        (
            &command,
            ["TRAFFICCOP_ROLE=holder", "\nYES\n", "GOT for the command"],
            ["TRAFFICCOP_CAUSE", "=outer", "=999"],
        ),
        (
            &lost,
            [
                "TRAFFICCOP_CAUSE=the command ended",
                "TRAFFICCOP_TOKEN=2",
                "\nNO\n",
            ],
            ["=outer", "=999", "GOT"],
        ),
    ] {
        let text = format!("\n{text}");
        assert!(text.contains(&lock), "{lock} is not in {text}");
        for words in has {
            assert!(text.contains(words), "'{words}' is not in {text}");
        }
        for words in lacks {
            assert!(!text.contains(words), "'{words}' is in {text}");
        }
    }
}

#[test]
fn the_status_file_tells_what_runs() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let file = scene.path("status.json");
    let done = until(&scene, "hook");
    let mut second = on_file(&scene, "second")
        .arg("--status-file")
        .arg(&file)
        .args(standby(&scene, "second", ""))
        .args(hook(&scene, "second", &done))
        .start();
    let status = |what: &str, is: &dyn Fn(&serde_json::Value) -> bool| {
        let read = || -> Option<serde_json::Value> {
            serde_json::from_slice(&std::fs::read(&file).ok()?).ok()
        };
        await_for(what, || read().filter(is), || format!("{:?}", read()))
    };
    let begun = standbys(&scene).await_tag(What::Start, "second");
    let now = status("a standby", &|now| now["standby_pid"] == begun.pid);
    assert_eq!(now["state"], "standby");
    let_end(&scene, "first");
    first.wait();
    let now = status("a hook", &|now| {
        now["state"] == "preparing" && now["standby_pid"].is_null()
    });
    assert!(now["command_pid"].is_null());
    let_end(&scene, "hook");
    let begun = scene.journal.await_tag(What::Start, "second");
    status("a holder", &|now| {
        now["state"] == "holding" && now["command_pid"] == begun.pid
    });
    second.signal(Signal::SIGTERM);
    second.wait();
}

#[test]
fn a_command_that_is_empty_is_refused_in_words() {
    for flag in ["--standby", "--on-acquire", "--on-lost", "--if"] {
        let scene = Scene::new();
        let finished = on_file(&scene, "one").args([flag, " "]).finish();
        assert_eq!(finished.ended, Ended::Code(64));
        let words = format!("{flag} is empty: name a command for sh");
        assert!(finished.stderr.contains(&words), "{}", finished.stderr);
        assert!(!scene.lock().exists());
    }
}
