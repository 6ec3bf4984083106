//! The signals the supervisor is sent, as a stream: those that ask for a stop, those that are
//! passed on to the command, and the terminal's stop.
//!
//! Made by `run` inside the runtime, after the guardian was forked (which so keeps the
//! dispositions we were started with); read by the driver. It sends nothing itself.

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

// Signals that ask for a stop: of a service manager, of Ctrl-C, of a terminal that is closed.
const STOP: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
// Signals that mean nothing to us, and may mean something to the command.
const PASS: [Signal; 5] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGURG,
];

/// What a signal to the supervisor means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// End: drain, give the lease back, leave.
    Stop(i32),
    /// Hand it to the command.
    Pass(i32),
    /// Ctrl-Z or `kill -TSTP`: stop the command, then ourselves.
    Pause,
    /// No signal, but a word of the platform's: this machine must not have control, or (`None`) may
    /// have it again.
    Cordon(Option<Cordon>),
    /// Nor this: the command has said that it is about to end.
    CommandStopping,
}

/// The stream of signals.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(SignalEvent, Stream)>,
    // Something else that asks for a stop, and as which signal.
    other: Option<(oneshot::Receiver<()>, Signal)>,
    // Somebody of this process who has taken them over and passes on what is for us: of `work`, which
    // runs many commands, a signal is for all of them.
    relay: Option<mpsc::UnboundedReceiver<SignalEvent>>,
    // What the platform says of this machine.
    cordons: Option<UnboundedReceiver<Option<Cordon>>>,
    // Each time the command says that it is about to end.
    stopping: Option<UnboundedReceiver<()>>,
    // One that came before the driver was there to hear it.
    kept: Option<SignalEvent>,
}

impl Signals {
    /// Takes over the signals of the process. SIGHUP stays ignored where it was inherited so
    /// (`nohup`), as do SIGINT and SIGQUIT (a shell without job control starts so what is to live on beside it),
    /// and SIGTSTP.
    ///
    /// # Errors
    /// What the kernel or the runtime says when a handler cannot be installed.
    pub(crate) fn listen() -> io::Result<Signals> {
        // Asked before the first handler is installed, which would make the answer our own.
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

    /// What the platform says of this machine comes with them.
    pub(crate) fn add_cordons(&mut self, cordons: UnboundedReceiver<Option<Cordon>>) {
        self.cordons = Some(cordons);
    }

    /// What the command says of its end comes with them.
    pub(crate) fn add_stopping(&mut self, stopping: UnboundedReceiver<()>) {
        self.stopping = Some(stopping);
    }

    /// Keeps what was read for whoever reads next.
    pub(crate) fn keep(&mut self, asked: SignalEvent) {
        self.kept = Some(asked);
    }

    /// A word through `gone`, or its end, asks for a stop as SIGPIPE would if it were ours to be
    /// killed by: nobody reads what we write.
    #[must_use]
    pub(crate) fn and_hang_up(mut self, gone: oneshot::Receiver<()>) -> Signals {
        self.other = Some((gone, Signal::SIGPIPE));
        self
    }

    /// None of the process: for a program that uses the library and keeps its signals to itself.
    /// A word through `stop`, or its end, asks for a stop as SIGTERM does.
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

    /// None of the process: what somebody else of it passes on.
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

    /// The next signal; stops come before everything else. Cancel-safe.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        // In the order in which they were installed: STOP comes before PASS.
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

/// The set of signals that are ignored right now, as the kernel tells it; none where /proc is missing.
fn inherited_ignored() -> u64 {
    let status = procfs::text("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}
