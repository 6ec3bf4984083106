//! The network between machines and store: travel times, and the weather's effect.

use std::time::Duration;

use super::adversary::{Deed, Weather};
use super::clock::{MILLI, Time};
use super::store::Reply;
use super::world::{From, Happening, World};

impl World {
    fn weather(&self, machine: usize) -> impl Iterator<Item = (Weather, Time)> + '_ {
        let now = self.now;
        self.schedule
            .acts
            .iter()
            .filter_map(move |act| match act.deed {
                Deed::Net(whom, weather, span)
                    if whom.is_none_or(|whom| whom == machine)
                        && (act.at..act.at + span).contains(&now) =>
                {
                    Some((weather, act.at + span))
                }
                _ => None,
            })
    }

    pub(crate) fn travel(&mut self, machine: usize) -> Time {
        let mut span = self.rng.u64(1..25) * MILLI;
        let slow = self
            .weather(machine)
            .filter_map(|(weather, _)| match weather {
                Weather::Slow(longest) => Some(longest),
                _ => None,
            });
        if let Some(longest) = slow.max() {
            span += self.rng.u64(0..=longest);
        }
        let straggles = self
            .weather(machine)
            .filter_map(|(weather, _)| match weather {
                Weather::Straggles(longest) => Some(longest),
                _ => None,
            });
        let straggles = straggles.max();
        if let Some(longest) = straggles
            && self.rng.u8(0..4) == 0
        {
            span += self.rng.u64(0..=longest);
        }
        span
    }

    /// Returns the least and greatest time of a request to a file, and whether only one in four
    /// takes longer than the least.
    pub(crate) fn way_to_the_drive(&self, machine: usize) -> (Duration, Duration, bool) {
        // Shared drive and store have a way of their own; a thread starts soon.
        if self.schedule.place.is_chain() {
            return (Duration::ZERO, Duration::from_millis(3), false);
        }
        let (mut least, mut most, mut rarely) = (MILLI, 25 * MILLI, false);
        for (weather, until) in self.weather(machine) {
            match weather {
                Weather::Slow(longest) => most = most.max(longest),
                Weather::LosesReplies => most = most.max(5_000 * MILLI),
                Weather::Straggles(longest) => (most, rarely) = (most.max(longest), true),
                Weather::Frozen | Weather::Cut | Weather::LosesRequests => {
                    least = least.max(until - self.now);
                }
                Weather::Twice(_) | Weather::Answers(..) | Weather::DoesAndDenies => {}
            }
        }
        let of = Duration::from_nanos;
        (of(least), of(most.max(least + 25 * MILLI)), rarely)
    }

    pub(crate) fn send(&mut self, pair: usize, from: From) {
        let requests = match from {
            From::Supervisor => self.pairs[pair].network.sent(),
            From::Guardian => self.pairs[pair].guardian_network.sent(),
        };
        let machine = self.pairs[pair].machine;
        for (slot, request) in requests {
            let mut arrives = self.now + self.travel(machine);
            let (mut lost, mut denied, mut dropped) = (false, false, false);
            let mut again = None;
            let weathers: Vec<_> = self.weather(machine).collect();
            for (weather, until) in weathers {
                if weather != Weather::Cut && self.rng.u8(0..5) == 0 {
                    continue;
                }
                match weather {
                    Weather::Slow(_) | Weather::Straggles(_) => {}
                    Weather::Cut => dropped = true,
                    Weather::LosesRequests => dropped = true,
                    Weather::LosesReplies => lost = true,
                    Weather::Twice(longest) => again = Some(self.rng.u64(0..=longest)),
                    Weather::DoesAndDenies => denied = true,
                    Weather::Frozen => arrives = arrives.max(until + self.rng.u64(0..20) * MILLI),
                    Weather::Answers(status, wish) => {
                        dropped = true;
                        let retry_after = wish.map(std::time::Duration::from_secs);
                        let reply = Reply::Error {
                            status,
                            retry_after,
                        };
                        self.plan(
                            arrives,
                            Happening::Answered {
                                pair,
                                from,
                                slot,
                                reply,
                            },
                        );
                    }
                }
            }
            if dropped {
                continue;
            }
            let arrival = |lost| Happening::Arrives {
                pair,
                from,
                slot,
                request,
                lost,
                denied,
            };
            self.plan(arrives, arrival(lost));
            if let Some(later) = again {
                self.plan(arrives + later, arrival(true));
            }
        }
    }
}
