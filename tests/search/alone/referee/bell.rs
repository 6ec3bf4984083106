use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Bell, HolderInfo, Ring};

use super::window::Window;
use crate::alone::plan::{ms, secs};
use crate::alone::world::World;

#[derive(Clone, Debug, Default)]
pub(super) struct Listening {
    pub(super) bell: Option<Bell>,
    /// Listeners before this one, while the bell can be heard.
    pub(super) rank: Option<u32>,
    pub(super) polls_as_ever: bool,
    pub(super) rings: u32,
    pub(super) deaf_until: Option<Instant>,
    pub(super) looked: Option<Instant>,
    pub(super) look: Option<Window>,
    pub(super) hurry: Option<(Instant, Duration)>,
    /// Whether it ended without a release once: it does not space looks any more.
    pub(super) ended: bool,
    /// The bell to listen to, or none, as the core must order next.
    pub(super) attend: Option<Option<Bell>>,
}

fn is_near(bell: &Bell) -> bool {
    let near = [
        "10.0.0.1",
        "127.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.0.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.0.1",
    ];
    near.contains(&bell.address.ip().to_string().as_str())
}

impl Listening {
    fn look(&mut self, look: Window) {
        self.look = Some(self.look.map_or(look, |before| {
            Window(before.0.min(look.0), before.1.min(look.1))
        }));
    }

    /// Notes that a look found this holder; returns the next look if the bell changes it.
    pub(super) fn finds(
        &mut self,
        now: Instant,
        poll: Duration,
        holder: &HolderInfo,
    ) -> Option<Window> {
        let bell = holder.bell.as_deref().copied().filter(is_near);
        self.polls_as_ever = holder.polls_as_ever;
        self.attend = None;
        if bell != self.bell {
            let (polls_as_ever, looked) = (self.polls_as_ever, self.looked);
            *self = Listening {
                bell,
                polls_as_ever,
                looked,
                attend: Some(bell),
                ..Listening::default()
            };
        } else if self.deaf_until.is_none_or(|until| now >= until) {
            if self.deaf_until.take().is_some() {
                self.rings = 0;
            }
            self.attend = bell.filter(|_| self.rank.is_none()).map(Some);
        }
        if self.rank.is_some() && !self.polls_as_ever && !self.ended {
            return Some(Window::about(now, poll.max(secs(12))));
        }
        let (until, pace) = self.hurry?;
        (now < until).then(|| Window::at(now + pace.min(poll)))
    }

    /// Applies a ring that came before the wait.
    pub(super) fn waits(&mut self, now: Instant) {
        self.look = self.look.map(|look| Window(look.0, look.1.max(now)));
    }

    fn rang(&mut self, now: Instant, ring: Ring, grace: Duration, poll: Duration) {
        if let Ring::Greeted { rank } = ring {
            (self.rank, self.hurry) = (Some(rank), None);
            return;
        }
        let Some(rank) = self.rank else { return };
        // At any moment within a poll.
        let soon = Window(now + Duration::from_nanos(1), now + poll * 6 / 5);
        self.ended |= ring == Ring::Silent || ring == Ring::Closed;
        if ring == Ring::Silent {
            self.rank = None;
            return self.look(soon);
        }
        self.rings += 1;
        if self.rings > 10 {
            (self.rank, self.look) = (None, None);
            self.deaf_until = Some(now + secs(60));
            self.ended = true;
            self.attend = Some(None);
            return self.look(soon);
        }
        if ring != Ring::Draining {
            self.rank = None;
        }
        if ring == Ring::Closed {
            let pace = match rank {
                0 => Some(ms(100)),
                1..=3 => Some(ms(250)),
                _ => None,
            };
            self.hurry = pace.map(|pace| (now + grace, pace));
        }
        let gap = self
            .looked
            .filter(|_| ring != Ring::Released)
            .map(|looked| looked + ms(100));
        let at = gap.map_or(now, |gap| gap.max(now)) + ms(5) * rank;
        self.look(Window::at(at));
    }
}

impl World {
    pub(crate) fn hear_a_ring(&mut self, ring: Ring) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        if let Some(poll) = rules.poll {
            self.ledger.bell.attend = None;
            self.ledger.bell.rang(now, ring, rules.grace, poll);
        }
    }

    pub(super) fn judge_listening(&mut self, bell: Option<Bell>) -> Option<&'static str> {
        let wanted = self.ledger.bell.attend.take();
        (wanted != Some(bell)).then_some("it listens to another bell")
    }
}
