//! `--sessions`: the messages of a session in sequence, and each session at one worker at a time.

mod exclusive;
mod keeping;
mod order;
mod state;

use nix::sys::signal::Signal;
use service_bus_stand_in::{Act, Fault, On, Outcome};

use super::*;

impl Stage {
    fn of_sessions(lock: Duration) -> Stage {
        Stage::of(
            Settings::default(),
            QueueSettings {
                lock,
                sessions: true,
                ..QueueSettings::default()
            },
        )
    }

    fn talk(&self, session: &str, texts: &[&str]) {
        for text in texts {
            let message = Message::data(text.as_bytes());
            self.broker.put(JOBS, message.in_session(session, text));
        }
    }

    /// Prepares a worker that soon gives up an idle session.
    fn session_worker(&self) -> Run<'_> {
        self.worker()
            .args(["--sessions", "--session-idle", "1s"])
            .env("TMPDIR", self.scene.directory())
            .current_dir(self.scene.directory())
    }

    fn all(&self, more: &[&str], script: &str) -> Finished {
        let worker = self.session_worker().args(["--idle-exit", "0s"]);
        worker.args(more).shell(script).finish()
    }

    fn is_held(&self, session: &'static str) -> bool {
        self.broker.look(move |view| view.is_held(JOBS, session))
    }

    fn state(&self, session: &'static str) -> Option<Vec<u8>> {
        self.broker
            .look(move |view| view.session_state(JOBS, session))
    }

    fn accepted(&self) -> usize {
        self.count(|event| matches!(event, Event::SessionAccepted { .. }))
    }

    /// Waits until the session's lock ends; returns when that was.
    fn freed_at(&self, session: &'static str) -> time::OffsetDateTime {
        let at = self.wait("the session to be free", move |view| {
            let mut all = view.journal().iter().rev();
            let freed = |event: &Event| matches!(event, Event::SessionFreed { session: of, .. } if of == session);
            all.find(|entry| freed(&entry.event)).map(|entry| entry.at)
        });
        time::OffsetDateTime::now_utc() - at.elapsed()
    }

    fn await_free(&self, session: &'static str) {
        self.wait("the session to be free", move |view| {
            (!view.is_held(JOBS, session)).then_some(())
        });
    }
}
