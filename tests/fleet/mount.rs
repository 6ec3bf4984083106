//! A machine's way to a shared drive, through the weather of the schedule. A client repeats a call
//! until it is answered. A server that was restarted, or that keeps no answers, then does it once
//! more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use trafficcop_core::clock::pause;
use trafficcop_lease::shared_file::{Answer, Call, Drive};

use super::adversary::{Deed, Weather};
use super::clock::{MILLI, SECOND, Time};
use super::drive::{Server, changes, waits_for_grace};

struct Way {
    there: Time,
    back: Time,
    fate: Fate,
}

#[derive(Clone, Copy)]
enum Fate {
    Answered,
    /// The answer is lost; the client repeats the request at this time.
    Lost(Time),
    /// The mount gives up, whatever becomes of the request.
    Fails(i32, Arrival),
    /// Once more, this much later.
    Twice(Time),
}

#[derive(Clone, Copy)]
enum Arrival {
    Never,
    AtOnce,
    Later(Time),
}

/// The drive as one process sees it.
pub(crate) struct Mount {
    pub(crate) server: Arc<Mutex<Server>>,
    pub(crate) machine: usize,
    pub(crate) process: usize,
}

/// A request on its way; its sender may die meanwhile.
struct Sent<'a> {
    mount: &'a Mount,
    call: Option<Call>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let Mount {
            machine, process, ..
        } = *self.mount;
        let mut server = self.mount.server();
        if server.rng.bool() {
            let later = server.rng.u64(0..20 * SECOND);
            server.haunt(later, machine, process, call);
        }
    }
}

impl Mount {
    pub(crate) fn carried(
        server: &Arc<Mutex<Server>>,
        machine: usize,
        process: usize,
    ) -> Arc<Box<dyn Drive>> {
        Arc::new(Box::new(Mount {
            server: Arc::clone(server),
            machine,
            process,
        }))
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().expect("whole")
    }

    fn way(&self) -> Way {
        let mut server = self.server();
        let server = &mut *server;
        let now = server.now;
        let (rng, acts) = (&mut server.rng, &server.acts);
        let mut way = Way {
            there: rng.u64(1..25) * MILLI,
            back: rng.u64(1..25) * MILLI,
            fate: Fate::Answered,
        };
        for act in acts {
            let Deed::Net(whom, weather, span) = act.deed else {
                continue;
            };
            let until = act.at + span;
            let here = whom.is_none_or(|whom| whom == self.machine);
            if !here || !(act.at..until).contains(&now) {
                continue;
            }
            let again = until - now + rng.u64(0..3000) * MILLI;
            let spared = rng.u8(0..5) == 0;
            match weather {
                Weather::Slow(longest) => {
                    way.there += rng.u64(0..=longest);
                    way.back += rng.u64(0..=longest);
                }
                Weather::Straggles(longest) => {
                    if rng.u8(0..4) == 0 {
                        way.there += rng.u64(0..=longest);
                        way.back += rng.u64(0..=longest);
                    }
                }
                Weather::Frozen | Weather::Cut => way.there = way.there.max(again),
                _ if spared => {}
                Weather::LosesRequests => way.there = way.there.max(again),
                Weather::LosesReplies => way.fate = Fate::Lost(now + again),
                Weather::Twice(longest) => way.fate = Fate::Twice(rng.u64(0..=longest)),
                Weather::DoesAndDenies => way.fate = Fate::Fails(libc::EIO, Arrival::AtOnce),
                Weather::Answers(status, _) => {
                    let errno = match status {
                        403 => libc::EACCES,
                        500 => libc::EIO,
                        _ => libc::ETIMEDOUT,
                    };
                    let arrival = match rng.u8(0..3) {
                        _ if errno == libc::EACCES => Arrival::Never,
                        0 => Arrival::Never,
                        1 => Arrival::AtOnce,
                        _ => Arrival::Later(rng.u64(0..20 * SECOND)),
                    };
                    way.back += rng.u64(0..5000) * MILLI;
                    way.fate = Fate::Fails(errno, arrival);
                }
            }
        }
        way
    }

    /// Waits for the way to the server, and there for the end of its grace.
    fn travels(&self, there: Time, call: &Call) {
        let mut sent = Sent {
            mount: self,
            call: Some(call.clone()),
        };
        pause(Duration::from_nanos(there));
        loop {
            let mut server = self.server();
            if server.now >= server.grace_until || !waits_for_grace(call) {
                break;
            }
            server.count("held up by a grace period");
            let rest = server.grace_until - server.now + server.rng.u64(0..2000) * MILLI;
            drop(server);
            pause(Duration::from_nanos(rest));
        }
        sent.call = None;
    }

    fn carries_out(&self, call: &Call) -> (io::Result<Answer>, u64) {
        let mut server = self.server();
        let answer = server.carry_out(self.machine, self.process, call);
        (answer, server.starts)
    }
}

impl Drive for Mount {
    fn ask(&self, call: Call) -> io::Result<Answer> {
        let mut way = self.way();
        if let Fate::Fails(errno, Arrival::Never | Arrival::Later(_)) = way.fate {
            if let Fate::Fails(_, Arrival::Later(later)) = way.fate {
                self.server()
                    .haunt(way.there + later, self.machine, self.process, call);
            }
            pause(Duration::from_nanos(way.there + way.back));
            return Err(io::Error::from_raw_os_error(errno));
        }
        loop {
            self.travels(way.there, &call);
            // Create first, then write: a reader, or a crash, may meet an empty file.
            if let Call::Write {
                path, new: true, ..
            } = &call
            {
                let empty = Call::Write {
                    path: path.clone(),
                    new: true,
                    sync: false,
                    bytes: Vec::new(),
                };
                self.carries_out(&empty).0?;
                pause(Duration::from_nanos(way.back));
            }
            let put = match call.clone() {
                Call::Write {
                    path, sync, bytes, ..
                } => Call::Write {
                    path,
                    new: false,
                    sync,
                    bytes,
                },
                call => call,
            };
            let (answer, starts) = self.carries_out(&put);
            match way.fate {
                Fate::Lost(at) => {
                    let (span, remembered) = {
                        let mut server = self.server();
                        server.count("answers lost, and asked again");
                        (at.saturating_sub(server.now), server.rng.bool())
                    };
                    pause(Duration::from_nanos(span));
                    if remembered && self.server().starts == starts {
                        return answer;
                    }
                    way = self.way();
                    way.fate = Fate::Answered;
                    continue;
                }
                Fate::Twice(later) => {
                    self.server()
                        .haunt(later, self.machine, self.process, put.clone());
                }
                Fate::Fails(errno, _) => {
                    self.server().count("done, and answered with an error");
                    pause(Duration::from_nanos(way.back));
                    return Err(io::Error::from_raw_os_error(errno));
                }
                Fate::Answered => {}
            }
            pause(Duration::from_nanos(way.back));
            let mut server = self.server();
            if server.starts == starts || !changes(&call) {
                return answer;
            }
            // The answer died with the server: the client repeats the request.
            server.count("answers lost, and asked again");
            let again = server.rng.u64(500..4000) * MILLI;
            drop(server);
            pause(Duration::from_nanos(again));
            way = self.way();
            way.fate = Fate::Answered;
        }
    }
}
