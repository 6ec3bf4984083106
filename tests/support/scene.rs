//! A scene: a directory with a lock, a journal, and competing instances. Every test begins with
//! one. At its end all its processes are killed, whatever the result.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use trafficcop::Instant;

use super::await_for;
use super::event_logs::{self, EventLogs, Excused};
use super::instance::Run;
use super::journal::Journal;
use super::processes::{self, Process};
use super::standstill;

pub(crate) struct Scene {
    directory: tempfile::TempDir,
    pub(crate) journal: Journal,
    pub(super) event_logs: EventLogs,
    begun: Instant,
}

impl Scene {
    #[must_use]
    pub(crate) fn new() -> Scene {
        standstill::watch();
        let directory = tempfile::tempdir().expect("a directory for the scene");
        let journal = Journal::at(directory.path().join("journal"));
        Scene {
            directory,
            journal,
            event_logs: EventLogs::new(),
            begun: Instant::now(),
        }
    }

    #[must_use]
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    #[must_use]
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    #[must_use]
    pub(crate) fn lock(&self) -> PathBuf {
        self.path("singleton.lock")
    }

    /// Writes a helper for `--store`, whose entries are in the directory `STORE`.
    pub(crate) fn helper(&self) -> PathBuf {
        let path = self.path("helper");
        std::fs::write(&path, include_str!("helper.sh")).expect("a file in the scene");
        let all: std::fs::Permissions = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, all).expect("it is ours");
        path
    }

    /// Prepares an instance: `trafficcop run` without a lock or a command yet.
    #[must_use]
    pub(crate) fn run(&self) -> Run<'_> {
        Run::new(self, "run")
    }

    #[must_use]
    pub(crate) fn verb(&self, verb: &str) -> Run<'_> {
        Run::new(self, verb)
    }

    /// Prepares an instance: `trafficcop elect` without a lock yet.
    #[must_use]
    pub(crate) fn elect(&self) -> Run<'_> {
        Run::new(self, "elect")
    }

    /// Prepares an instance on the scene's lock file.
    #[must_use]
    pub(crate) fn run_on_file(&self) -> Run<'_> {
        let lock = self.lock();
        self.run().arg("--file").arg(lock)
    }

    /// Excludes this scene's event logs from the judgement, because the scene contradicts the
    /// promise or forges logs. Each call gives the reason.
    pub(crate) fn excuse_event_logs(&self, _why: &'static str) {
        self.event_logs.excuse(Excused::Everything);
    }

    /// Excuses instances that report a possible overlap: they hear of the loss of their lease, but
    /// not who has it. Each call gives the reason.
    pub(crate) fn excuse_confession(&self, _why: &'static str) {
        self.event_logs.excuse(Excused::Confessions);
    }

    /// Writes into the journal under this name; `journalist.rs` explains `options`.
    #[must_use]
    pub(crate) fn journalist(&self, tag: &str, options: &[&str]) -> Vec<OsString> {
        let mut words = vec![
            super::programs::journalist().into(),
            self.journal.path().into(),
            OsString::from(tag),
        ];
        words.extend(options.iter().map(OsString::from));
        words
    }

    /// Refuses this call from now on, to instances [on such a
    /// machine](Run::on_a_machine_that_refuses).
    pub(crate) fn refuse(&self, call: &str) {
        let directory = self.path("refusing");
        std::fs::create_dir_all(&directory).expect("a directory in the scene");
        std::fs::write(directory.join(call), "").expect("a file in the scene");
    }

    /// Refuses it after some that are granted to a process, and only some times.
    pub(crate) fn refuse_after(&self, call: &str, granted: u32, refused: u32) {
        self.refuse(call);
        let path = self.path("refusing").join(call);
        std::fs::write(path, format!("{granted} {refused}")).expect("a file in the scene");
    }

    pub(crate) fn grant(&self, call: &str) {
        std::fs::remove_file(self.path("refusing").join(call)).expect("it was refused");
    }

    /// Lists all living processes of the scene that are not `trafficcop` itself: the commands'
    /// trees.
    #[must_use]
    pub(crate) fn trees(&self) -> Vec<Process> {
        let mut all = processes::marked(self.directory());
        all.retain(|process| !process.is_ours());
        all
    }

    /// Waits until no process of the scene is alive: no command, descendant, supervisor or
    /// guardian.
    pub(crate) fn await_nobody(&self) {
        await_for(
            "everybody to be gone",
            || processes::marked(self.directory()).is_empty().then_some(()),
            || {
                format!(
                    "still there: {:?}\n{}",
                    processes::marked(self.directory()),
                    self.journal
                )
            },
        );
    }

    pub(crate) fn assert_no_tree(&self) {
        let trees = self.trees();
        assert!(trees.is_empty(), "survivors: {trees:?}\n{}", self.journal);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        processes::sweep(self.directory.path());
        let mut contradictions = self.event_logs.contradictions();
        if !contradictions.is_empty()
            && let Some(late) = standstill::since(self.begun)
        {
            println!("the machine was paused for {late:.1?}: {contradictions:?}");
            let owned_up = |said: &String| {
                said.contains("reports that its command may have run") || said.contains("lived for")
            };
            contradictions.retain(|said| !owned_up(said));
        }
        // --show-output shows it for each test: the last one has the sum. The fault suite prints it
        // at its end: its threads have no test's name.
        if std::thread::current()
            .name()
            .is_some_and(|name| name.contains("::"))
        {
            println!("so far {}", event_logs::judged());
        }
        // A failing test has a better reason.
        assert!(
            contradictions.is_empty() || std::thread::panicking(),
            "the event logs contradict the promise: {}\n{}",
            contradictions.join("; "),
            self.journal
        );
    }
}
