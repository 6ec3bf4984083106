//! Which of a lock's standbys looks at it often: the hot standby does, the warm ones do not.
//!
//! The hot standby is whoever has a short lease on a *sibling* of the lock, which means nothing but
//! that. The store asks [`Roster`] what to ask the sibling next, and tells the tenure by
//! [`Sight`](super::Sight) what came of it. It is about pace and nothing else: who has control is
//! decided by the lock's own lease alone, and a roster that is wrong costs requests or seconds.
//! What must never happen here: a loop of requests within one look, or a sibling that is in
//! trouble being asked at every look.

use std::time::Duration;

use super::budget::LATE;
use crate::clock::Instant;

/// From one look of a warm standby to the next. 500 of them on a blob are to stay below a tenth of
/// the 500 requests a second that one blob is meant to take: that is 10 s, and room for the spread.
pub const WARM_POLL: Duration = Duration::from_secs(12);

/// How long the lease on the sibling lasts without being renewed: the shortest there is.
pub const TERM: Duration = Duration::from_secs(15);

/// It is renewed with the first look after so long, which is every third at the default poll.
const RENEW_AFTER: Duration = Duration::from_secs(5);

/// A sibling that did not answer is left alone for so long, lest it slow the looks at the lock.
const QUIET: Duration = Duration::from_secs(12);

/// And one that has refused for so long: it can have been for a key that was being turned.
const REFUSED: Duration = Duration::from_secs(3600);

/// What a standby knows of who looks how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duty {
    /// Nobody looks for it: it looks for itself, at its poll.
    #[default]
    Unshared,
    /// It is the one that looks at its poll, and more often than others while the holder drains.
    Hot,
    /// Another is hot: it looks at [`WARM_POLL`].
    Warm,
}

/// What is to be asked of the sibling next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether somebody has its lease.
    Look,
    /// That it be made, unless it is there.
    Create,
    /// Its lease, for [`TERM`], under the id that was proposed before if there was one.
    Acquire,
}

/// What to do about the sibling now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Ask this, now, and tell what was heard.
    Ask(Question),
    /// Nothing more at this look at the lock.
    Settled(Duty),
}

/// What was heard of the sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It does not exist.
    Missing,
    /// Nobody has its lease.
    Free,
    /// Somebody else has its lease.
    Taken,
    /// It was made.
    Made,
    /// It was to be made, but is there already.
    There,
    /// Its lease is ours.
    Obtained,
    /// Not now: no answer in time, or an error that passes.
    Silence,
    /// Not as things are: what was asked for is not allowed, or the blob of this name is no sibling.
    Refused,
}

/// Who looks how often, as one standby knows it; see the file's text.
#[derive(Clone, Debug)]
pub struct Roster {
    duty: Duty,
    /// What was asked and not yet heard of.
    asked: Question,
    /// When an acquire was last sent that may have obtained the lease.
    perhaps: Option<Instant>,
    hot_until: Instant,
    quiet_until: Instant,
    creates: bool,
}

impl Roster {
    /// Nothing is known yet. `creates`: the sibling may be made.
    #[must_use]
    pub fn new(creates: bool) -> Roster {
        Roster {
            duty: Duty::Unshared,
            asked: Question::Look,
            perhaps: None,
            hot_until: Instant::ZERO,
            quiet_until: Instant::ZERO,
            creates,
        }
    }

    /// The lock was looked at, and another has it; `draining`: but not for long.
    pub fn begin(&mut self, now: Instant, draining: bool) -> Move {
        if self.duty == Duty::Hot && now >= self.hot_until {
            self.duty = Duty::Unshared;
        }
        let settled = Move::Settled(self.duty);
        if now < self.quiet_until {
            return settled;
        }
        match self.duty {
            // Sent less than this long ago; the look before was no earlier.
            Duty::Hot if now < self.hot_until - TERM + RENEW_AFTER => settled,
            Duty::Hot => self.acquire(now),
            // In the lane they look at the lock often, and at nothing else.
            Duty::Warm if draining => settled,
            // A look would take a lease that is ours for another's.
            _ if self.may_be_ours(now) => self.acquire(now),
            Duty::Warm | Duty::Unshared => self.ask(Question::Look),
        }
    }

    /// An answer to what was asked last, or the want of one.
    pub fn heard(&mut self, now: Instant, heard: Heard) -> Move {
        match (heard, self.asked) {
            (Heard::Missing, Question::Look) if self.creates => return self.ask(Question::Create),
            (Heard::Free, _) | (Heard::Made, Question::Create) => return self.acquire(now),
            (Heard::Obtained, _) => {
                self.duty = Duty::Hot;
                self.hot_until = self.perhaps.unwrap_or(now) + TERM;
            }
            (Heard::Taken, _) => {
                self.duty = Duty::Warm;
                self.perhaps = None;
            }
            (Heard::Missing, Question::Look) | (Heard::Refused, _) => {
                self.duty = Duty::Unshared;
                self.perhaps = None;
                self.quiet_until = now + REFUSED;
            }
            // Another was faster. It is looked at, with the next look, before it is leased.
            (Heard::There | Heard::Made, _) => {}
            // It was deleted meanwhile: made anew with a look to come.
            (Heard::Missing, Question::Create | Question::Acquire) => {
                self.duty = Duty::Unshared;
                self.perhaps = None;
            }
            (Heard::Silence, _) => {
                let quiet = match self.duty {
                    Duty::Hot => RENEW_AFTER,
                    Duty::Unshared | Duty::Warm => QUIET,
                };
                self.quiet_until = now + quiet;
            }
        }
        Move::Settled(self.duty)
    }

    /// We do not stand by any more. Whether the sibling's lease may be ours, so that it is to be
    /// given back; its id is not to be proposed again.
    pub fn retire(&mut self, now: Instant) -> bool {
        let ours = self.may_be_ours(now);
        self.duty = Duty::Unshared;
        self.perhaps = None;
        ours
    }

    fn may_be_ours(&self, now: Instant) -> bool {
        self.perhaps.is_some_and(|sent| now < sent + TERM + LATE)
    }

    fn acquire(&mut self, now: Instant) -> Move {
        self.perhaps = Some(now);
        self.ask(Question::Acquire)
    }

    fn ask(&mut self, question: Question) -> Move {
        self.asked = question;
        Move::Ask(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    fn at(seconds: u64) -> Instant {
        T + Duration::from_secs(seconds)
    }

    fn ask(question: Question) -> Move {
        Move::Ask(question)
    }

    fn settled(duty: Duty) -> Move {
        Move::Settled(duty)
    }

    /// Hot by an acquire that was sent at `T`.
    fn hot() -> Roster {
        let mut roster = Roster::new(true);
        assert_eq!(roster.begin(T, false), ask(Question::Look));
        assert_eq!(roster.heard(T, Heard::Free), ask(Question::Acquire));
        assert_eq!(roster.heard(at(1), Heard::Obtained), settled(Duty::Hot));
        roster
    }

    fn warm() -> Roster {
        let mut roster = Roster::new(true);
        assert_eq!(roster.begin(T, false), ask(Question::Look));
        assert_eq!(roster.heard(T, Heard::Taken), settled(Duty::Warm));
        roster
    }

    #[test]
    fn whoever_finds_it_free_is_hot_and_renews_after_five_seconds_not_sooner() {
        let mut roster = hot();
        for second in [1, 2, 4] {
            assert_eq!(roster.begin(at(second), false), settled(Duty::Hot));
        }
        assert_eq!(roster.begin(at(6), true), ask(Question::Acquire));
        assert_eq!(roster.heard(at(6), Heard::Obtained), settled(Duty::Hot));
        assert_eq!(roster.begin(at(10), false), settled(Duty::Hot));
        assert_eq!(roster.begin(at(11), false), ask(Question::Acquire));
        assert_eq!(roster.heard(at(11), Heard::Taken), settled(Duty::Warm));
    }

    #[test]
    fn a_hot_standby_is_hot_for_the_lease_counted_from_before_it_was_asked_for() {
        let mut roster = hot();
        assert_eq!(roster.begin(at(14), false), ask(Question::Acquire));
        assert_eq!(roster.heard(at(14), Heard::Silence), settled(Duty::Hot));
        assert_eq!(roster.begin(at(15), false), settled(Duty::Unshared));
        // It asks for it again rather than taking its own lease for another's.
        assert_eq!(roster.begin(at(19), false), ask(Question::Acquire));
        let mut late = hot();
        assert_eq!(late.begin(at(21), false), ask(Question::Look));
    }

    #[test]
    fn a_warm_standby_looks_each_time_but_not_while_the_holder_drains() {
        let mut roster = warm();
        assert_eq!(roster.begin(at(1), true), settled(Duty::Warm));
        assert_eq!(roster.begin(at(2), false), ask(Question::Look));
        assert_eq!(roster.heard(at(2), Heard::Free), ask(Question::Acquire));
        // Another was faster.
        assert_eq!(roster.heard(at(2), Heard::Taken), settled(Duty::Warm));
        assert_eq!(roster.begin(at(3), false), ask(Question::Look));
        // Whoever comes while the holder drains asks once.
        assert_eq!(Roster::new(true).begin(T, true), ask(Question::Look));
    }

    #[test]
    fn what_is_missing_is_made_where_it_may_be() {
        let mut roster = Roster::new(true);
        roster.begin(T, false);
        assert_eq!(roster.heard(T, Heard::Missing), ask(Question::Create));
        assert_eq!(roster.heard(T, Heard::Made), ask(Question::Acquire));
        assert_eq!(roster.heard(T, Heard::Obtained), settled(Duty::Hot));
        // Deleted under us: made anew with the next look.
        assert_eq!(roster.begin(at(6), false), ask(Question::Acquire));
        assert_eq!(roster.heard(at(6), Heard::Missing), settled(Duty::Unshared));
        assert_eq!(roster.begin(at(8), false), ask(Question::Look));
        let mut roster = Roster::new(false);
        roster.begin(T, false);
        assert_eq!(roster.heard(T, Heard::Missing), settled(Duty::Unshared));
        assert_eq!(roster.begin(at(60), false), settled(Duty::Unshared));
        // What another made meanwhile may be something else.
        let mut roster = Roster::new(true);
        roster.begin(T, false);
        roster.heard(T, Heard::Missing);
        assert_eq!(roster.heard(T, Heard::There), settled(Duty::Unshared));
        assert_eq!(roster.begin(at(2), false), ask(Question::Look));
    }

    #[test]
    fn what_was_refused_is_not_asked_for_again_within_the_hour() {
        for mut roster in [Roster::new(true), hot(), warm()] {
            assert_ne!(roster.begin(at(6), false), settled(Duty::Unshared));
            assert_eq!(roster.heard(at(6), Heard::Refused), settled(Duty::Unshared));
            assert!(!roster.retire(at(7)));
            for second in [7, 60, 3605] {
                assert_eq!(roster.begin(at(second), false), settled(Duty::Unshared));
            }
            assert_eq!(roster.begin(at(3606), false), ask(Question::Look));
        }
    }

    #[test]
    fn a_silent_sibling_changes_nothing_and_is_left_alone_for_a_while() {
        let mut roster = warm();
        roster.begin(at(12), false);
        assert_eq!(roster.heard(at(13), Heard::Silence), settled(Duty::Warm));
        assert_eq!(roster.begin(at(24), false), settled(Duty::Warm));
        assert_eq!(roster.begin(at(25), false), ask(Question::Look));
        // Who is hot asks again before the lease is over.
        let mut roster = hot();
        roster.begin(at(6), false);
        assert_eq!(roster.heard(at(7), Heard::Silence), settled(Duty::Hot));
        assert_eq!(roster.begin(at(11), false), settled(Duty::Hot));
        assert_eq!(roster.begin(at(12), false), ask(Question::Acquire));
    }

    #[test]
    fn what_may_be_ours_is_given_back_once() {
        let mut roster = hot();
        assert!(roster.retire(at(3)));
        assert!(!roster.retire(at(3)));
        assert_eq!(roster.begin(at(4), false), ask(Question::Look));
        assert!(!warm().retire(at(1)));
        let mut unanswered = Roster::new(true);
        unanswered.begin(T, false);
        unanswered.heard(T, Heard::Free);
        unanswered.heard(at(1), Heard::Silence);
        assert!(unanswered.retire(at(2)));
    }
}
