//! Sockets: one thread accepts, one reads each connection and one writes it. None of them decides
//! anything; what they read goes to the engine, what they write comes from it.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::codec::frame::{self, Failure, Input};

use super::engine::Message;

/// What turns the bytes of a socket into those of AMQP: nothing, or TLS.
pub(crate) type Split = Arc<
    dyn Fn(TcpStream) -> io::Result<(Box<dyn Read + Send>, Box<dyn Write + Send>)> + Send + Sync,
>;

/// The writing end of a connection.
#[derive(Debug)]
pub(crate) struct Line {
    /// Nothing once the connection is to be closed behind what was written.
    out: Option<Sender<Vec<u8>>>,
    socket: TcpStream,
}

impl Line {
    /// Writes, some time soon. A line that is gone takes it, too.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        if let Some(out) = &self.out {
            // A writer that has ended reports nothing: the reader does.
            let _gone = out.send(bytes);
        }
    }

    /// Closes the connection when all is written.
    pub(crate) fn finish(&mut self) {
        self.out = None;
    }

    /// Closes the connection now.
    pub(crate) fn cut(&self) {
        // Fails only if the peer was faster.
        let _already = self.socket.shutdown(Shutdown::Both);
    }
}

/// Accepts until `stop` says otherwise and one more connection comes.
pub(crate) fn accept(
    listener: &TcpListener,
    stop: &AtomicBool,
    split: &Split,
    max_frame: u32,
    engine: &Sender<Message>,
) {
    for (connection, socket) in (1..).zip(listener.incoming()) {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(socket) = socket else { continue };
        // A connection that cannot be set up is one that was cut at once.
        if let Err(error) = start(connection, socket, split, max_frame, engine) {
            eprintln!("stand-in broker: a connection could not be set up: {error}");
        }
    }
}

fn start(
    connection: u64,
    socket: TcpStream,
    split: &Split,
    max_frame: u32,
    engine: &Sender<Message>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (out, written) = channel();
    let line = Line {
        out: Some(out),
        socket: socket.try_clone()?,
    };
    let end = socket.try_clone()?;
    let (read, write) = split(socket)?;
    let reader_engine = engine.clone();
    // The engine hears of the connection before anything that comes from it.
    if engine.send(Message::Accepted(connection, line)).is_err() {
        return Ok(());
    }
    thread::Builder::new()
        .name("broker-write".into())
        .spawn(move || write_all(write, &written, &end))?;
    thread::Builder::new()
        .name("broker-read".into())
        .spawn(move || read_all(connection, read, max_frame, &reader_engine))?;
    Ok(())
}

fn write_all(mut write: Box<dyn Write + Send>, bytes: &Receiver<Vec<u8>>, end: &TcpStream) {
    while let Ok(mut bytes_now) = bytes.recv() {
        while let Ok(more) = bytes.try_recv() {
            bytes_now.extend(more);
        }
        if write
            .write_all(&bytes_now)
            .and_then(|()| write.flush())
            .is_err()
        {
            break;
        }
    }
    // Fails only if the peer was faster.
    let _already = end.shutdown(Shutdown::Both);
}

fn read_all(connection: u64, read: Box<dyn Read + Send>, max_frame: u32, engine: &Sender<Message>) {
    let mut read = BufReader::with_capacity(64 * 1024, read);
    loop {
        let message = match frame::read(&mut read, max_frame) {
            Ok(input) => Message::Input(connection, input),
            Err(Failure::Malformed(malformed)) => Message::Malformed(connection, malformed),
            Err(Failure::Gone(_)) => Message::Gone(connection),
        };
        let last = !matches!(message, Message::Input(..));
        if engine.send(message).is_err() || last {
            break;
        }
    }
    // Behind a malformed frame nothing can be read any more, but the peer may still write: what it
    // writes is thrown away until it has read why and hangs up.
    let _ended = io::copy(&mut read, &mut io::sink());
    let _stopped = engine.send(Message::Gone(connection));
}

/// Nothing between the socket and AMQP.
pub(crate) fn plain() -> Split {
    Arc::new(|socket| Ok((Box::new(socket.try_clone()?), Box::new(socket))))
}

/// What an [`Input`] is called in messages to people.
pub(crate) fn name(input: &Input) -> &'static str {
    match input {
        Input::Header(_) => "a protocol header",
        Input::Heartbeat => "an empty frame",
        Input::Frame { .. } => "a frame",
    }
}
