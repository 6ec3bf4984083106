//! Health in virtual time.

mod record;

use super::*;
use crate::retry::Jitter;

const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);
const ALIVE: WatchdogWord = WatchdogWord::Alive;
const HUNG: Look = Look::Hung(Hung::Silent(secs(30)));

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(seconds: u64) -> Instant {
    BEGIN + secs(seconds)
}

fn probe() -> ProbeRules {
    ProbeRules {
        every: secs(10),
        timeout: secs(5),
        failures: 3,
        delay: secs(20),
    }
}

fn watched(period: Duration) -> Health {
    started(HealthRules {
        watchdog: Some(period),
        start: secs(90),
        probe: None,
    })
}

fn speaking(period: Duration) -> Health {
    let mut health = watched(period);
    health.hears(BEGIN, ALIVE);
    health
}

fn probed() -> Health {
    started(HealthRules {
        probe: Some(probe()),
        ..HealthRules::default()
    })
}

fn started(rules: HealthRules) -> Health {
    let mut health = Health::new(rules);
    assert_eq!(health.wake_at(), Instant::FOREVER);
    health.started(BEGIN);
    health
}

/// Looks whenever a look is due; returns the first result that is not quiet, and its moment.
fn looks(health: &mut Health, until: Instant) -> Option<(Instant, Look)> {
    while health.wake_at() <= until {
        let now = health.wake_at();
        let look = health.look(now);
        if look != Look::Quiet {
            return Some((now, look));
        }
    }
    None
}

#[test]
fn silence_of_exactly_its_period_is_too_long() {
    let mut health = speaking(secs(30));
    assert_eq!(looks(&mut health, at(29)), None);
    health.hears(at(29), ALIVE);
    assert_eq!(looks(&mut health, at(100)), Some((at(59), HUNG)));
    assert_eq!(health.wake_at(), Instant::FOREVER, "reported once");
    assert_eq!(health.hears(at(60), ALIVE), None);
    assert_eq!(
        looks(&mut speaking(secs(30)), at(100)),
        Some((at(30), HUNG))
    );
}

#[test]
fn watchdog_clock_starts_with_the_first_word() {
    let mut health = watched(secs(1));
    assert_eq!(looks(&mut health, at(89)), None);
    health.hears(at(89), ALIVE);
    let hung = Look::Hung(Hung::Silent(secs(1)));
    assert_eq!(looks(&mut health, at(200)), Some((at(90), hung)));
    let mut health = speaking(secs(1));
    health.started(at(0) + ms(500));
    assert_eq!(looks(&mut health, at(200)), Some((at(1) + ms(500), hung)));
    health.started(at(300));
    assert_eq!(looks(&mut health, at(389)), None);
}

#[test]
fn start_without_a_word_is_limited_and_can_be_extended() {
    let hung = Look::Hung(Hung::NotReady(secs(90)));
    let until = at(1000);
    assert_eq!(looks(&mut watched(secs(1)), until), Some((at(90), hung)));
    let mut health = watched(secs(1));
    health.hears(at(10), WatchdogWord::Extend(secs(5)));
    health.hears(at(10), WatchdogWord::Period(secs(2)));
    assert_eq!(looks(&mut health, at(80)), None, "none is shortened");
    health.hears(at(80), WatchdogWord::Extend(secs(60)));
    assert_eq!(looks(&mut health, until), Some((at(140), hung)));
    let mut health = speaking(secs(30));
    health.hears(at(1), WatchdogWord::Extend(secs(600)));
    assert_eq!(
        looks(&mut health, until),
        Some((at(30), HUNG)),
        "the start is over"
    );
    let mut health = watched(secs(30));
    assert_eq!(health.look(at(60)), Look::Quiet);
    assert_eq!(looks(&mut health, until), Some((at(150), hung)));
}

#[test]
fn probe_that_cannot_begin_for_want_of_room_does_not_count() {
    let mut health = probed();
    let (how, none) = (ProbeFailure::Answered(503), ProbeFailure::NoRoom(11));
    for number in 1..=20 {
        let not_asked = Some(HealthEvent::NotAsked { errno: 11, number });
        assert_eq!(next_probe(&mut health, Err(none)).1, not_asked);
    }
    for number in 1..=2 {
        let failed = Some(HealthEvent::Failed { how, number, of: 3 });
        assert_eq!(next_probe(&mut health, Err(how)).1, failed);
        let not_asked = Some(HealthEvent::NotAsked {
            errno: 11,
            number: 1,
        });
        assert_eq!(next_probe(&mut health, Err(none)).1, not_asked);
    }
    let hung = Some(HealthEvent::Hung(Hung::Unhealthy(3, how)));
    assert_eq!(next_probe(&mut health, Err(how)).1, hung);
}

#[test]
fn words_sent_before_the_look_count_however_late_they_arrive() {
    let mut health = speaking(secs(30));
    assert_eq!(looks(&mut health, at(29) + ms(500)), None);
    let answered = HealthEvent::Answered { again: false };
    assert_eq!(health.hears(at(30), ALIVE), Some(answered));
    assert_eq!(health.look(at(30)), Look::Quiet);
}

#[test]
fn command_can_report_a_hang_and_change_its_period() {
    let mut health = speaking(secs(30));
    let triggered = HealthEvent::Hung(Hung::Triggered);
    assert_eq!(health.hears(at(1), WatchdogWord::Trigger), Some(triggered));
    assert!(!health.is_running());

    let period = WatchdogWord::Period;
    let mut health = speaking(secs(30));
    assert_eq!(health.hears(at(10), period(secs(2))), None);
    let hung = Look::Hung(Hung::Silent(secs(2)));
    assert_eq!(looks(&mut health, at(100)), Some((at(12), hung)));

    let mut health = speaking(secs(30));
    health.hears(at(10), period(ms(1)));
    assert_eq!(looks(&mut health, at(100)).unwrap().0, at(11), "the least");

    for none in [Duration::ZERO, Duration::MAX] {
        let mut health = speaking(secs(30));
        health.hears(at(10), period(none));
        assert_eq!(looks(&mut health, at(100_000)), None);
        health.hears(at(100_000), period(secs(3)));
        assert_eq!(looks(&mut health, at(200_000)).unwrap().0, at(100_003));
    }
}

#[test]
fn words_are_ignored_without_a_watchdog() {
    let mut health = probed();
    assert_eq!(health.hears(BEGIN, WatchdogWord::Trigger), None);
    let mut health = started(HealthRules::default());
    assert_eq!(health.hears(BEGIN, WatchdogWord::Trigger), None);
    assert_eq!(health.wake_at(), Instant::FOREVER);
}

/// Ends the next probe with `result` after a second; returns its beginning and the report.
fn next_probe(
    health: &mut Health,
    result: Result<(), ProbeFailure>,
) -> (Instant, Option<HealthEvent>) {
    let Some((began, Look::Probe { kill_at })) = looks(health, at(1_000_000)) else {
        panic!("no probe: {health:?}");
    };
    assert_eq!(kill_at, began + secs(5));
    let ends = began + secs(1);
    assert_eq!(looks(health, ends), None, "one at a time");
    health.look(ends);
    (began, health.probed(ends, result))
}

#[test]
fn probes_begin_after_the_delay_and_then_at_their_interval() {
    let mut health = probed();
    let again = false;
    let answered = Some(HealthEvent::Answered { again });
    for begins in [20, 30, 40] {
        assert_eq!(next_probe(&mut health, Ok(())), (at(begins), answered));
    }
}

#[test]
fn failures_in_a_row_up_to_the_limit_mean_hung_and_a_success_resets_the_count() {
    let mut health = probed();
    let how = ProbeFailure::Answered(503);
    let failed = |number| Some(HealthEvent::Failed { how, number, of: 3 });
    let again = Some(HealthEvent::Answered { again: true });
    for expected in [failed(1), failed(2)] {
        assert_eq!(next_probe(&mut health, Err(how)).1, expected);
    }
    assert_eq!(next_probe(&mut health, Ok(())).1, again);
    for expected in [failed(1), failed(2)] {
        assert_eq!(next_probe(&mut health, Err(how)).1, expected);
    }
    let hung = Some(HealthEvent::Hung(Hung::Unhealthy(3, how)));
    assert_eq!(next_probe(&mut health, Err(how)), (at(70), hung));
    assert_eq!(health.wake_at(), Instant::FOREVER);
}

#[test]
fn command_has_a_full_period_after_a_pause() {
    let mut health = speaking(secs(30));
    assert_eq!(looks(&mut health, at(10)), None);
    assert_eq!(health.look(at(500)), Look::Quiet);
    assert_eq!(looks(&mut health, at(529)), None);
    assert_eq!(looks(&mut health, at(1000)), Some((at(530), HUNG)));
}

#[test]
fn pause_in_the_middle_of_a_period_counts_too() {
    let mut health = speaking(secs(30));
    assert_eq!(looks(&mut health, at(10)), None);
    assert_eq!(health.look(at(25)), Look::Quiet);
    assert_eq!(looks(&mut health, at(54)), None);
}

/// A command counts as started some time after the order, without a report.
#[test]
fn pause_takes_nothing_from_the_time_for_a_start() {
    let mut health = speaking(secs(1));
    health.started(at(10));
    assert_eq!(health.look(BEGIN + ms(100)), Look::Quiet);
    assert_eq!(health.look(BEGIN + ms(1500)), Look::Quiet);
    assert_eq!(looks(&mut health, BEGIN + ms(10_900)), None);
}

#[test]
fn words_sent_before_the_start_is_known_stand() {
    let mut health = speaking(secs(1));
    health.started(at(10));
    health.hears(BEGIN + ms(1), WatchdogWord::Period(secs(60)));
    health.started(BEGIN + ms(2));
    assert_eq!(looks(&mut health, at(60)), None);
    assert!(looks(&mut health, at(61)).is_some());
}

/// The probe asked a command that was not there yet.
#[test]
fn probe_that_began_before_the_start_goes_on_and_does_not_count() {
    let mut health = probed();
    let (begun, _) = looks(&mut health, at(1000)).expect("a probe");
    health.started(begun + secs(1));
    assert_eq!(looks(&mut health, begun + secs(4)), None);
    let how = ProbeFailure::TimedOut;
    assert_eq!(health.probed(begun + secs(5), Err(how)), None);
    assert_eq!(looks(&mut health, begun + secs(20)), None);
    assert!(looks(&mut health, begun + secs(21)).is_some());
}

#[test]
fn a_look_that_is_a_little_late_is_no_pause() {
    let mut health = speaking(secs(30));
    for second in 1..30 {
        assert_eq!(health.look(at(second) + ms(200)), Look::Quiet);
    }
    assert_eq!(health.look(at(30) + ms(200)), HUNG);
}

#[test]
fn probe_that_failed_during_a_pause_does_not_count() {
    let mut health = probed();
    let how = ProbeFailure::TimedOut;
    for _ in 0..2 {
        next_probe(&mut health, Err(how));
    }
    let (began, _) = looks(&mut health, at(1000)).unwrap();
    let resumed = began + secs(60);
    assert_eq!(health.look(resumed), Look::Quiet);
    assert_eq!(health.probed(resumed, Err(how)), None);
    let (next, event) = next_probe(&mut health, Err(how));
    assert_eq!(next, resumed + secs(10));
    let failed = HealthEvent::Failed {
        how,
        number: 1,
        of: 3,
    };
    assert_eq!(event, Some(failed));
}

#[test]
fn probe_of_a_command_that_has_ended_counts_for_nothing() {
    let mut health = probed();
    looks(&mut health, at(1000)).unwrap();
    health.ended();
    assert_eq!(health.probed(at(1000), Err(ProbeFailure::TimedOut)), None);
    health.started(at(2000));
    assert_eq!(looks(&mut health, at(5000)).unwrap().0, at(2020));
}

/// Command that works, on a machine that is busy, stopped and suspended.
struct World {
    chance: Jitter,
    health: Health,
    now: Instant,
    /// Moment of the command's next word, and its period.
    speaks: Instant,
    period: Duration,
    /// End of the probe without a kill, and moment of the kill.
    probe: Option<(Instant, Instant)>,
    probes: u32,
    pauses: u32,
}

impl World {
    fn some(&mut self, most: Duration) -> Duration {
        self.chance.rest_of(most * 5 / 6).min(most)
    }

    fn look(&mut self) -> Option<Hung> {
        let now = self.now;
        while self.speaks <= now {
            self.speaks = self.speaks + self.some(self.period);
            self.health.hears(now, ALIVE);
        }
        match self.health.look(now) {
            Look::Quiet => {}
            Look::Hung(hung) => return Some(hung),
            Look::Probe { kill_at } => {
                self.probes += 1;
                let takes = self.some(probe().timeout - ms(1));
                self.probe = Some((now + takes, kill_at));
            }
        }
        let (ends, kill_at) = self.probe?;
        if now < ends.min(kill_at) {
            return None;
        }
        self.probe = None;
        let result = if ends <= kill_at {
            Ok(())
        } else {
            Err(ProbeFailure::TimedOut)
        };
        match self.health.probed(now, result) {
            Some(HealthEvent::Hung(hung)) => Some(hung),
            _ => None,
        }
    }

    /// Plays until then, with a pause every half an hour or so.
    fn play(&mut self, until: Instant) -> Option<Hung> {
        let mut pause = self.now + self.some(secs(3600));
        while self.now < until {
            let ends = self.probe.map_or(Instant::FOREVER, |(ends, _)| ends);
            let next = self.health.wake_at().min(self.speaks).min(ends);
            if pause > next {
                self.now = next.max(self.now) + self.some(ms(200));
            } else {
                let longest = [ms(900), secs(4), secs(40), secs(400), secs(30_000)];
                let length = self.some(longest[self.pauses as usize % longest.len()]);
                if self.pauses.is_multiple_of(2) {
                    self.speaks = self.speaks + length;
                    self.probe = self.probe.map(|(ends, kill)| (ends + length, kill));
                }
                self.pauses += 1;
                self.now = (pause + length).max(self.now);
                pause = self.now + self.some(secs(3600));
            }
            if let Some(hung) = self.look() {
                return Some(hung);
            }
        }
        None
    }
}

fn world(seed: u64, watchdog: Duration) -> World {
    let rules = HealthRules {
        watchdog: Some(watchdog),
        start: secs(90),
        probe: Some(probe()),
    };
    World {
        chance: Jitter::new(seed),
        health: started(rules),
        now: BEGIN,
        speaks: BEGIN,
        // As sd_watchdog_enabled(3) advises.
        period: watchdog / 2,
        probe: None,
        probes: 0,
        pauses: 0,
    }
}

#[test]
fn no_needless_stop_in_a_thousand_hours_with_answers_late_up_to_the_timeout() {
    let (mut probes, mut pauses) = (0, 0);
    for (seed, watchdog) in (0..10).zip([2, 4, 8, 30, 120].into_iter().cycle()) {
        let mut world = world(seed, secs(watchdog));
        let hung = world.play(BEGIN + secs(100 * 3600));
        assert_eq!(hung, None, "seed {seed}, at {:?}", world.now);
        probes += world.probes;
        pauses += world.pauses;
    }
    println!("health: 1000 hours, {probes} probes, {pauses} pauses");
    assert!(probes > 100_000 && pauses > 500);
}

#[test]
fn command_that_stops_speaking_is_found_in_its_period_despite_pauses() {
    for seed in 0..50 {
        let mut world = world(seed, secs(30));
        assert_eq!(world.play(BEGIN + secs(7200)), None);
        let heard = world.now;
        world.speaks = Instant::FOREVER;
        while world.now < heard + secs(60) {
            world.now = world.health.wake_at().max(world.now) + ms(50);
            world.probe = world.probe.map(|_| (world.now, world.now));
            if let Some(hung) = world.look() {
                assert_eq!(hung, Hung::Silent(secs(30)));
                break;
            }
        }
        let took = world.now.since(heard);
        assert!(took <= secs(30) + ms(100), "seed {seed}: {took:?}");
    }
}
