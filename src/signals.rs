//! Stream of what the supervisor is told: requests to stop, signals for the command, the terminal's stop.
//!
//! Made after the guardian was forked, which keeps the inherited dispositions.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;

use crate::core::Cordon;
use crate::procfs;

// From a service manager, Ctrl-C, or a terminal that closes.
const STOP: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
// They mean nothing to trafficcop and may mean something to the command.
const PASS: [Signal; 5] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGURG,
];

/// Meaning of a signal to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// Drain, give the lease back, and exit.
    Stop(i32),
    /// Send it on to the command.
    Pass(i32),
    /// Ctrl-Z or `kill -TSTP`: stop the command, then this process.
    Pause,
    /// This machine must not have control, or (`None`) may again.
    Cordon(Option<Cordon>),
    /// The command is about to end, by its own notice.
    CommandStopping,
}

/// Stream of signals and notices.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(SignalEvent, Stream)>,
    // Another request to stop stands for this signal.
    other: Option<(oneshot::Receiver<()>, Signal)>,
    // From `work`, which runs many commands: a signal is for all of them.
    relay: Option<mpsc::UnboundedReceiver<SignalEvent>>,
    cordons: Option<UnboundedReceiver<Option<Cordon>>>,
    stopping: Option<UnboundedReceiver<()>>,
    // Read before the driver ran.
    kept: Option<SignalEvent>,
}

impl Signals {
    /// Takes over the signals of the process. SIGHUP (`nohup`), SIGINT and SIGQUIT (a shell's background commands)
    /// and SIGTSTP stay ignored if they were.
    pub(crate) fn listen() -> io::Result<Signals> {
        // The first handler changes the answer.
        let ignored = inherited_ignored();
        let mut streams = Vec::new();
        for stop in STOP {
            if stop == Signal::SIGTERM || ignored & bit(stop) == 0 {
                streams.push((SignalEvent::Stop(stop as i32), stream(stop)?));
            }
        }
        for pass in PASS {
            streams.push((SignalEvent::Pass(pass as i32), stream(pass)?));
        }
        if ignored & bit(Signal::SIGTSTP) == 0 {
            streams.push((SignalEvent::Pause, stream(Signal::SIGTSTP)?));
        }
        Ok(Signals {
            streams,
            other: None,
            relay: None,
            cordons: None,
            stopping: None,
            kept: None,
        })
    }

    pub(crate) fn add_cordons(&mut self, cordons: UnboundedReceiver<Option<Cordon>>) {
        self.cordons = Some(cordons);
    }

    pub(crate) fn add_stopping(&mut self, stopping: UnboundedReceiver<()>) {
        self.stopping = Some(stopping);
    }

    pub(crate) fn keep(&mut self, asked: SignalEvent) {
        self.kept = Some(asked);
    }

    /// Adds a request to stop, by a message through `gone` or by its end: the reader of stdout has hung up.
    #[must_use]
    pub(crate) fn and_hang_up(mut self, gone: oneshot::Receiver<()>) -> Signals {
        self.other = Some((gone, Signal::SIGPIPE));
        self
    }

    /// Creates a stream for a program that keeps its signals to itself. A message through `stop`, or its end, stands
    /// for SIGTERM.
    #[must_use]
    pub(crate) fn of_program(stop: oneshot::Receiver<()>) -> Signals {
        Signals {
            streams: Vec::new(),
            other: Some((stop, Signal::SIGTERM)),
            cordons: None,
            stopping: None,
            kept: None,
            relay: None,
        }
    }

    /// Creates a stream of what another part of this process passes on.
    #[must_use]
    pub fn relayed(by: mpsc::UnboundedReceiver<SignalEvent>) -> Signals {
        Signals {
            streams: Vec::new(),
            other: None,
            cordons: None,
            stopping: None,
            kept: None,
            relay: Some(by),
        }
    }

    /// Returns the next signal, stops first. Cancel-safe.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        // In the order of their installation: STOP before PASS.
        std::future::poll_fn(|cx| {
            for (asked, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(asked.clone());
                }
            }
            if let Some((stop, signal)) = &mut self.other
                && Pin::new(stop).poll(cx).is_ready()
            {
                let signal = *signal as i32;
                self.other = None;
                return Poll::Ready(SignalEvent::Stop(signal));
            }
            if let Some(relay) = &mut self.relay
                && let Poll::Ready(Some(asked)) = relay.poll_recv(cx)
            {
                return Poll::Ready(asked);
            }
            if let Some(cordons) = &mut self.cordons {
                match cordons.poll_recv(cx) {
                    Poll::Ready(Some(cordon)) => return Poll::Ready(SignalEvent::Cordon(cordon)),
                    Poll::Ready(None) => self.cordons = None,
                    Poll::Pending => {}
                }
            }
            if let Some(stopping) = &mut self.stopping {
                match stopping.poll_recv(cx) {
                    Poll::Ready(Some(())) => return Poll::Ready(SignalEvent::CommandStopping),
                    Poll::Ready(None) => self.stopping = None,
                    Poll::Pending => {}
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn stream(which: Signal) -> io::Result<Stream> {
    signal(SignalKind::from_raw(which as i32))
}

fn bit(which: Signal) -> u64 {
    1 << (which as u64 - 1)
}

/// Finds none without /proc.
fn inherited_ignored() -> u64 {
    let status = procfs::text("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}
