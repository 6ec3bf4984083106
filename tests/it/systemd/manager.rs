//! The service manager's side: a socket, and its messages.

use std::cell::RefCell;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use crate::support::await_for;
use crate::support::scene::Scene;

pub(crate) struct Manager {
    socket: UnixDatagram,
    pub(crate) path: PathBuf,
    heard: RefCell<Vec<String>>,
}

impl Manager {
    pub(crate) fn at(scene: &Scene, name: &str) -> Manager {
        let path = scene.path(name);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("ours");
        Manager {
            socket,
            path,
            heard: RefCell::default(),
        }
    }

    pub(crate) fn messages(&self) -> Vec<String> {
        let mut buffer = [0; 8192];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let message = std::str::from_utf8(&buffer[..length]).expect("text");
            self.heard.borrow_mut().push(message.to_owned());
        }
        self.heard.borrow().clone()
    }

    pub(crate) fn said(&self) -> Vec<String> {
        let messages = self.messages();
        let lines = messages.iter().flat_map(|message| message.lines());
        lines.map(str::to_owned).collect()
    }

    pub(crate) fn count(&self, begin: &str) -> usize {
        let said = self.said();
        said.iter().filter(|line| line.starts_with(begin)).count()
    }

    /// Waits until a line contains this; returns its number.
    pub(crate) fn await_line(&self, words: &str) -> usize {
        self.await_times(words, 1)
    }

    /// Waits until this many lines contain this; returns the number of the last.
    pub(crate) fn await_times(&self, words: &str, times: usize) -> usize {
        await_for(
            &format!("\"{words}\" to be sent to the service manager"),
            || {
                let said = self.said();
                let mut lines = said.iter().enumerate();
                let found = lines.by_ref().filter(|(_, line)| line.contains(words));
                found.map(|(number, _)| number).nth(times - 1)
            },
            || format!("{:#?}", self.said()),
        )
    }

    pub(crate) fn fill(&self) {
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("ours");
        while sender.send_to(b"X=filled", &self.path).is_ok() {}
    }
}
