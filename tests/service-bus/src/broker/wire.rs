//! Sockets: one thread accepts, and two for each connection read and write. They decide nothing:
//! all goes to the engine, or comes from it.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::codec::frame::{self, Failure, Input};

use super::engine::Message;

/// Splits a socket into AMQP's byte streams, directly or through TLS.
pub(crate) type Split = Arc<
    dyn Fn(TcpStream) -> io::Result<(Box<dyn Read + Send>, Box<dyn Write + Send>)> + Send + Sync,
>;

#[derive(Debug)]
pub(crate) struct Line {
    /// `None` once the connection shall be closed after all that is written.
    out: Option<Sender<Vec<u8>>>,
    socket: TcpStream,
}

impl Line {
    /// Queues bytes for writing; ignored after the connection's end.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        if let Some(out) = &self.out {
            // The reader reports the end, not the writer.
            let _gone = out.send(bytes);
        }
    }

    /// Closes when everything is written.
    pub(crate) fn finish(&mut self) {
        self.out = None;
    }

    pub(crate) fn cut(&self) {
        // Fails only if the peer closed it first.
        let _already = self.socket.shutdown(Shutdown::Both);
    }
}

/// Runs until `stop` is set and one more connection comes.
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
        // A connection that cannot be set up counts as cut at once.
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
    // It must know the connection before its first input.
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
    // Fails only if the peer closed it first.
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
    // Nothing can be read after a malformed frame. The peer's bytes are dropped until it has read
    // the reason and hangs up.
    let _ended = io::copy(&mut read, &mut io::sink());
    let _stopped = engine.send(Message::Gone(connection));
}

pub(crate) fn plain() -> Split {
    Arc::new(|socket| Ok((Box::new(socket.try_clone()?), Box::new(socket))))
}

pub(crate) fn name(input: &Input) -> &'static str {
    match input {
        Input::Header(_) => "a protocol header",
        Input::Heartbeat => "an empty frame",
        Input::Frame { .. } => "a frame",
    }
}
