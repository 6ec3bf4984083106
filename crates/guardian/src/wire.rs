//! Frames between supervisor and guardian: 32 bytes each, little-endian, with a version byte.
//!
//! This module is pure, and never panics on its input: the other side may send nonsense.
//!
//! ```text
//! 0        1     2..4   4..8    8..16  16..24  24..32
//! version  kind  flags  number  a      b       c
//! ```
//! The payload that [`Request::Start`] or [`Request::SetReleaseInfo`] announces follows. The descriptor of the lock
//! or of the program's stdin travels with the first byte of its frame.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::state::StopTo;
use trafficcop_core::clock::Instant;
use trafficcop_core::{Deadlines, Exit, WorkloadEvent};

/// Length of a frame, in bytes.
pub const FRAME: usize = 32;
const VERSION: u8 = 1;
// More than any environment that the kernel accepts: no memory is allocated for more.
pub const PAYLOAD_MAX: usize = 4 << 20;

/// Encoded frame.
pub type Frame = [u8; FRAME];

/// Frame that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Order of the supervisor to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Start a program. The payload is the environment's changes, then the release info.
    Start {
        program: u8,
        in_control: bool,
        deadlines: Deadlines,
        stop_signal: i32,
        stop_to: StopTo,
        /// Bytes of `KEY=VALUE\0` (to set) and `KEY\0` (to unset).
        env: u32,
        release_info: u32,
        lock: bool,
        input: bool,
    },
    /// New deadlines.
    Extend(Deadlines),
    /// Kill at the earlier of this moment and `kill_at`.
    Drain { signal: i32, end_of_grace: Instant },
    /// Kill the tree.
    Kill,
    /// Pass a signal on to the main process.
    Signal(i32),
    /// Continue the command, in the foreground if it was there.
    Resume,
    /// Replace the release info, of so many bytes.
    SetReleaseInfo { release_info: u32 },
    /// Answer with the same number.
    Ping(u64),
    /// Leave, if there is nothing to guard.
    Dismiss,
}

/// Report of the guardian to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guardian is set up.
    Ready,
    /// The setup failed.
    Unready { errno: i32 },
    /// Report about the tree.
    Workload(WorkloadEvent),
    /// Answer to [`Request::Ping`].
    Pong(u64),
}

#[derive(Default)]
struct Fields {
    kind: u8,
    flags: u16,
    number: i32,
    a: u64,
    b: u64,
    c: u64,
}

impl Fields {
    fn pack(&self) -> Frame {
        let mut frame = [0; FRAME];
        frame[0] = VERSION;
        frame[1] = self.kind;
        frame[2..4].copy_from_slice(&self.flags.to_le_bytes());
        frame[4..8].copy_from_slice(&self.number.to_le_bytes());
        frame[8..16].copy_from_slice(&self.a.to_le_bytes());
        frame[16..24].copy_from_slice(&self.b.to_le_bytes());
        frame[24..32].copy_from_slice(&self.c.to_le_bytes());
        frame
    }

    fn unpack(frame: &Frame) -> Result<Fields, Malformed> {
        // Both sides are one program.
        if frame[0] != VERSION {
            return Err(Malformed);
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&frame[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Ok(Fields {
            kind: frame[1],
            flags: u16::from_le_bytes([frame[2], frame[3]]),
            number: i32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]),
            a: word(8),
            b: word(16),
            c: word(24),
        })
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
fn split(both: u64) -> (u32, u32) {
    (both as u32, (both >> 32) as u32)
}

impl Request {
    pub fn payload(self) -> usize {
        match self {
            Request::Start {
                env, release_info, ..
            } => env as usize + release_info as usize,
            Request::SetReleaseInfo { release_info } => release_info as usize,
            Request::Extend(_)
            | Request::Drain { .. }
            | Request::Kill
            | Request::Signal(_)
            | Request::Resume
            | Request::Ping(_)
            | Request::Dismiss => 0,
        }
    }

    pub fn encode(self) -> Frame {
        let none = Fields::default();
        match self {
            Request::Start {
                program,
                in_control,
                deadlines,
                stop_signal,
                stop_to,
                env,
                release_info,
                lock,
                input,
            } => Fields {
                kind: 1,
                flags: u16::from(lock)
                    | u16::from(in_control) << 1
                    | u16::from(input) << 2
                    | u16::from(stop_to == StopTo::Main) << 3
                    | u16::from(program) << 8,
                number: stop_signal,
                a: deadlines.term_at.as_nanos(),
                b: deadlines.kill_at.as_nanos(),
                c: join(env, release_info),
            },
            Request::Extend(deadlines) => Fields {
                kind: 2,
                a: deadlines.term_at.as_nanos(),
                b: deadlines.kill_at.as_nanos(),
                ..none
            },
            Request::Drain {
                signal,
                end_of_grace,
            } => Fields {
                kind: 3,
                number: signal,
                a: end_of_grace.as_nanos(),
                ..none
            },
            Request::Kill => Fields { kind: 4, ..none },
            Request::Signal(number) => Fields {
                kind: 5,
                number,
                ..none
            },
            Request::Resume => Fields { kind: 6, ..none },
            Request::SetReleaseInfo { release_info } => Fields {
                kind: 7,
                c: join(0, release_info),
                ..none
            },
            Request::Ping(seq) => Fields {
                kind: 8,
                a: seq,
                ..none
            },
            Request::Dismiss => Fields { kind: 9, ..none },
        }
        .pack()
    }

    pub fn decode(frame: &Frame) -> Result<Request, Malformed> {
        let fields = Fields::unpack(frame)?;
        let (env, release_info) = split(fields.c);
        let a = Instant::from_nanos(fields.a);
        let deadlines = Deadlines {
            term_at: a,
            kill_at: Instant::from_nanos(fields.b),
        };
        let request = match fields.kind {
            1 => Request::Start {
                program: fields.flags.to_le_bytes()[1],
                in_control: fields.flags & 2 == 2,
                deadlines,
                stop_signal: fields.number,
                stop_to: match fields.flags & 8 {
                    8 => StopTo::Main,
                    _ => StopTo::Group,
                },
                env,
                release_info,
                lock: fields.flags & 1 == 1,
                input: fields.flags & 4 == 4,
            },
            2 => Request::Extend(deadlines),
            3 => Request::Drain {
                signal: fields.number,
                end_of_grace: a,
            },
            4 => Request::Kill,
            5 => Request::Signal(fields.number),
            6 => Request::Resume,
            7 => Request::SetReleaseInfo { release_info },
            8 => Request::Ping(fields.a),
            9 => Request::Dismiss,
            _ => return Err(Malformed),
        };
        // Now: the guardian would read payload for ever, and no order.
        if request.payload() > PAYLOAD_MAX {
            return Err(Malformed);
        }
        Ok(request)
    }
}

impl Event {
    pub fn encode(self) -> Frame {
        let plain = |kind| Fields {
            kind,
            ..Fields::default()
        };
        let numbered = |kind, number| Fields {
            kind,
            number,
            ..Fields::default()
        };
        let worded = |kind, a| Fields {
            kind,
            a,
            ..Fields::default()
        };
        match self {
            Event::Ready => plain(64),
            Event::Unready { errno } => numbered(65, errno),
            Event::Pong(seq) => worded(76, seq),
            Event::Workload(event) => match event {
                WorkloadEvent::Started { pid } => numbered(66, pid),
                WorkloadEvent::NotStarted { errno } => numbered(67, errno),
                WorkloadEvent::Stopped => plain(68),
                // A number cannot tell a status from a signal.
                WorkloadEvent::Exited(Exit::Code(code)) => numbered(69, i32::from(code)),
                WorkloadEvent::Exited(Exit::Signal(signal)) => numbered(70, signal),
                WorkloadEvent::LeftBehind => plain(71),
                WorkloadEvent::TreeEmpty { at } => worded(72, at.as_nanos()),
                WorkloadEvent::TreeStuck => plain(73),
                WorkloadEvent::Acting => plain(74),
                WorkloadEvent::ClockJumped => plain(75),
                // Never sent: the supervisor refuses this.
                WorkloadEvent::Lost
                | WorkloadEvent::HookFailed { .. }
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(_) => plain(0),
            },
        }
        .pack()
    }

    pub fn decode(frame: &Frame) -> Result<Event, Malformed> {
        let Fields {
            kind, number, a, ..
        } = Fields::unpack(frame)?;
        Ok(Event::Workload(match kind {
            64 => return Ok(Event::Ready),
            65 => return Ok(Event::Unready { errno: number }),
            76 => return Ok(Event::Pong(a)),
            66 => WorkloadEvent::Started { pid: number },
            67 => WorkloadEvent::NotStarted { errno: number },
            68 => WorkloadEvent::Stopped,
            69 => WorkloadEvent::Exited(Exit::Code(u8::try_from(number).map_err(|_| Malformed)?)),
            70 => WorkloadEvent::Exited(Exit::Signal(number)),
            71 => WorkloadEvent::LeftBehind,
            72 => WorkloadEvent::TreeEmpty {
                at: Instant::from_nanos(a),
            },
            73 => WorkloadEvent::TreeStuck,
            74 => WorkloadEvent::Acting,
            75 => WorkloadEvent::ClockJumped,
            _ => return Err(Malformed),
        }))
    }
}

/// Variable of the environment and its value; `None`: unset.
pub type Change = (OsString, Option<OsString>);

/// Splits `KEY=VALUE\0KEY\0KEY=VALUE\0`.
pub fn variables(bytes: &[u8]) -> Vec<Change> {
    bytes
        .split(|byte| *byte == 0)
        // A NUL ends each entry.
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            let middle = entry.iter().position(|byte| *byte == b'=');
            let (name, value) = entry.split_at(middle.unwrap_or(entry.len()));
            let value = value
                .get(1..)
                .map(|value| OsString::from_vec(value.to_vec()));
            (OsString::from_vec(name.to_vec()), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instant() -> impl Strategy<Value = Instant> {
        any::<u64>().prop_map(Instant::from_nanos)
    }

    fn deadlines() -> impl Strategy<Value = Deadlines> {
        (instant(), instant()).prop_map(|(term_at, kill_at)| Deadlines { term_at, kill_at })
    }

    fn request() -> impl Strategy<Value = Request> {
        let length = 0..=u32::try_from(PAYLOAD_MAX / 2).unwrap();
        prop_oneof![
            (
                deadlines(),
                any::<i32>(),
                length.clone(),
                length.clone(),
                any::<(bool, bool, bool, bool, u8)>()
            )
                .prop_map(|(deadlines, stop_signal, env, release_info, more)| {
                    let (lock, input, in_control, to_main, program) = more;
                    Request::Start {
                        program,
                        in_control,
                        deadlines,
                        stop_signal,
                        stop_to: if to_main { StopTo::Main } else { StopTo::Group },
                        env,
                        release_info,
                        lock,
                        input,
                    }
                }),
            deadlines().prop_map(Request::Extend),
            (any::<i32>(), instant()).prop_map(|(signal, end_of_grace)| Request::Drain {
                signal,
                end_of_grace
            }),
            Just(Request::Kill),
            any::<i32>().prop_map(Request::Signal),
            Just(Request::Resume),
            length.prop_map(|release_info| Request::SetReleaseInfo { release_info }),
            any::<u64>().prop_map(Request::Ping),
            Just(Request::Dismiss),
        ]
    }

    fn told() -> impl Strategy<Value = WorkloadEvent> {
        prop_oneof![
            any::<i32>().prop_map(|pid| WorkloadEvent::Started { pid }),
            any::<i32>().prop_map(|errno| WorkloadEvent::NotStarted { errno }),
            Just(WorkloadEvent::Stopped),
            any::<u8>().prop_map(|code| WorkloadEvent::Exited(Exit::Code(code))),
            any::<i32>().prop_map(|signal| WorkloadEvent::Exited(Exit::Signal(signal))),
            Just(WorkloadEvent::LeftBehind),
            instant().prop_map(|at| WorkloadEvent::TreeEmpty { at }),
            Just(WorkloadEvent::TreeStuck),
            Just(WorkloadEvent::Acting),
            Just(WorkloadEvent::ClockJumped),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Ready),
            any::<i32>().prop_map(|errno| Event::Unready { errno }),
            told().prop_map(Event::Workload),
            any::<u64>().prop_map(Event::Pong),
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_encoding(request in request()) {
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn events_survive_encoding(event in event()) {
            prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
        }

        #[test]
        fn nonsense_is_refused_or_harmless(frame in any::<[u8; FRAME]>()) {
            if let Ok(request) = Request::decode(&frame) {
                prop_assert!(request.payload() <= PAYLOAD_MAX);
            }
            let _ = Event::decode(&frame);
        }
    }

    #[test]
    fn variables_are_split_at_their_first_equals_sign() {
        let pair = |name: &str, value: Option<&str>| (name.into(), value.map(Into::into));
        let split = variables(b"A=x=y\0B=\0C\0");
        let wanted = [("A", Some("x=y")), ("B", Some("")), ("C", None)];
        assert_eq!(split, wanted.map(|(name, value)| pair(name, value)));
    }

    #[test]
    fn another_version_is_refused() {
        let mut frame = Request::Kill.encode();
        frame[0] = 2;
        assert_eq!(Request::decode(&frame), Err(Malformed));
    }

    #[test]
    fn event_that_no_guardian_sends_is_refused() {
        for event in [WorkloadEvent::Lost, WorkloadEvent::Standby(None)] {
            assert_eq!(
                Event::decode(&Event::Workload(event).encode()),
                Err(Malformed)
            );
        }
    }

    #[test]
    fn each_side_refuses_its_own_frames() {
        assert_eq!(Event::decode(&Request::Kill.encode()), Err(Malformed));
        assert_eq!(Request::decode(&Event::Ready.encode()), Err(Malformed));
    }
}
