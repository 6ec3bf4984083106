//! A TCP connection's way that can fall silent: what arrives is passed on until it is told to hang.
//!
//! Used by `safety`, between one holder and its store. It understands nothing of what passes, so it
//! serves HTTP and gRPC alike; it closes nothing when it hangs, as a network that drops packets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How soon a hanging direction looks whether that is over.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The way to a port on this machine.
pub(crate) struct Wire {
    /// Where it begins, on 127.0.0.1.
    pub(crate) port: u16,
    hangs: Arc<AtomicBool>,
}

impl Wire {
    /// A way to this port.
    ///
    /// # Errors
    /// Where no port is to be had.
    pub(crate) fn to(upstream: u16) -> Result<Wire, String> {
        let failed = |error: std::io::Error| format!("a wire to port {upstream}: {error}");
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let hangs = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&hangs);
        // These threads end with the process: a benchmark has few wires.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
                        let hangs = Arc::clone(&over);
                        std::thread::spawn(move || pass(from, to, &hangs));
                    }
                }
            }
        });
        Ok(Wire { port, hangs })
    }

    /// From now on nothing arrives any more, in either direction.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.hangs.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, hangs: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while hangs.load(Ordering::SeqCst) {
            std::thread::sleep(POLL_INTERVAL);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
