//! An issuer of tokens: Entra ID's token endpoint, a platform's identity endpoint and a machine's
//! metadata service in one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use azure_core::base64::encode_url_safe;
use rustls::{ServerConnection, StreamOwned};

use crate::authority::authority;
use crate::support::await_for;

/// Mark in every token, by which one is found wherever it ends up.
pub(crate) const MARK: &str = "t0k3n-0f-3ntra";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Issues a token for this many seconds.
    Issue(u64),
    Hang,
    Answer(u16, String),
}

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: String,
}

struct DeskState {
    manner: Manner,
    asked: Vec<Asked>,
    issued: Vec<String>,
    over: bool,
}

/// Dropping it ends it.
pub(crate) struct Desk {
    pub(crate) port: u16,
    secure: bool,
    state: Arc<Mutex<DeskState>>,
}

/// Makes a token that Azurite accepts, valid for this many seconds.
pub(crate) fn token(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock").as_secs();
    let number = fastrand::u64(..);
    let payload = serde_json::json!({
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 5,
        "nbf": now - 5,
        "exp": now + seconds,
        "jti": format!("{number:x}"),
    })
    .to_string();
    let encode = |text: &str| encode_url_safe(text).trim_end_matches('=').to_owned();
    let header = encode(r#"{"typ":"JWT","alg":"RS256"}"#);
    format!("{header}.{}.{MARK}", encode(&payload))
}

impl Desk {
    pub(crate) fn secure() -> Desk {
        Desk::start(true)
    }

    pub(crate) fn plain() -> Desk {
        Desk::start(false)
    }

    fn start(secure: bool) -> Desk {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(Mutex::new(DeskState {
            manner: Manner::Issue(super::HOUR),
            asked: Vec::new(),
            issued: Vec::new(),
            over: false,
        }));
        let ours = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if lock(&ours).over {
                    return;
                }
                let ours = Arc::clone(&ours);
                std::thread::spawn(move || serve(stream, secure, &ours));
            }
        });
        Desk {
            port,
            secure,
            state,
        }
    }

    pub(crate) fn address(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Changes the reaction, even to requests that wait.
    pub(crate) fn set(&self, manner: Manner) {
        lock(&self.state).manner = manner;
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        lock(&self.state).asked.clone()
    }

    pub(crate) fn issued(&self) -> Vec<String> {
        lock(&self.state).issued.clone()
    }

    pub(crate) fn await_asked(&self, count: usize) {
        await_for(
            &format!("{count} questions for a token"),
            || (self.asked().len() >= count).then_some(()),
            || format!("{:?}", self.asked()),
        );
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        lock(&self.state).over = true;
        // Wakes the accepting thread, which sees the end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn lock(state: &Mutex<DeskState>) -> MutexGuard<'_, DeskState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

trait Line: Read + Write {}
impl<T: Read + Write> Line for T {}

fn serve(stream: TcpStream, secure: bool, state: &Mutex<DeskState>) {
    let _ = stream.set_read_timeout(Some(crate::support::WAIT_LIMIT));
    let mut line: Box<dyn Line> = if secure {
        let config = Arc::clone(&authority().server);
        let connection = ServerConnection::new(config).expect("a connection");
        Box::new(StreamOwned::new(connection, stream))
    } else {
        Box::new(stream)
    };
    let mut reader = BufReader::new(&mut line);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if !matches!(reader.read_line(&mut head), Ok(1..)) {
            return;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is = name.eq_ignore_ascii_case("content-length");
        is.then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let body = String::from_utf8_lossy(&body).into_owned();
    lock(state).asked.push(Asked { head, body });
    let (status, body) = loop {
        let mut state = lock(state);
        match state.manner.clone() {
            _ if state.over => return,
            Manner::Issue(seconds) => {
                let token = token(seconds);
                state.issued.push(token.clone());
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let until = now.expect("a clock").as_secs() + seconds;
                // Entra ID's fields and platforms' in one.
                let text = serde_json::json!({
                    "token_type": "Bearer",
                    "expires_in": seconds,
                    "ext_expires_in": seconds,
                    "expires_on": until.to_string(),
                    "resource": "https://storage.azure.com",
                    "access_token": token,
                })
                .to_string();
                break (200, text);
            }
            Manner::Answer(status, text) => break (status, text),
            Manner::Hang => {}
        }
        drop(state);
        std::thread::sleep(Duration::from_millis(10));
    };
    let answer = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = line.write_all(answer.as_bytes());
    let _ = line.flush();
}
