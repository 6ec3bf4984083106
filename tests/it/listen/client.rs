//! One request on one connection, written by hand.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::instance::Instance;
use crate::support::{WAIT_LIMIT, await_for};

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names are in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

pub(crate) fn address(instance: &Instance) -> SocketAddr {
    let words = "answering at http://";
    instance.await_log(words);
    let log = instance.stderr();
    let (_, rest) = log.split_once(words).expect("awaited");
    let address = rest.lines().next().expect("a line");
    address.parse().expect("an address")
}

pub(crate) fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    Ok(stream)
}

pub(crate) fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n")
}

pub(crate) fn read(mut stream: impl Read) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    let nonsense = || io::Error::other(format!("no answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    Ok(Reply {
        status: status
            .and_then(|status| status.parse().ok())
            .ok_or_else(nonsense)?,
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    })
}

pub(crate) fn try_ask(to: SocketAddr, method: &str, path: &str) -> io::Result<Reply> {
    let mut stream = connect(to)?;
    stream.write_all(request(method, path).as_bytes())?;
    read(stream)
}

pub(crate) fn ask(to: SocketAddr, method: &str, path: &str) -> Reply {
    try_ask(to, method, path).unwrap_or_else(|why| panic!("{method} {path}: {why}"))
}

pub(crate) fn get(to: SocketAddr, path: &str) -> Reply {
    ask(to, "GET", path)
}

pub(crate) fn get_at(path: &Path, page: &str) -> Reply {
    let mut stream = UnixStream::connect(path).expect("an instance listens there");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a limit");
    stream
        .write_all(request("GET", page).as_bytes())
        .expect("it reads");
    read(stream).expect("an answer")
}

pub(crate) fn status(to: SocketAddr) -> serde_json::Value {
    let reply = get(to, "/status");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/json");
    serde_json::from_str(&reply.body).unwrap_or_else(|why| panic!("{why}: {reply:?}"))
}

pub(crate) fn await_status(
    to: SocketAddr,
    what: &str,
    mut is: impl FnMut(&serde_json::Value) -> bool,
) -> serde_json::Value {
    await_for(
        &format!("the status to say {what}"),
        || Some(status(to)).filter(&mut is),
        || status(to).to_string(),
    )
}

pub(crate) fn await_state(to: SocketAddr, state: &str) -> serde_json::Value {
    await_status(to, state, |status| status["state"] == state)
}

pub(crate) fn await_leader(to: SocketAddr) {
    await_for(
        "it to lead",
        || (get(to, "/leader").status == 200).then_some(()),
        || status(to).to_string(),
    );
}
