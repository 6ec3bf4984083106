//! Rare meetings, made on purpose, because random histories hardly ever get there: something
//! happens to an instance just as it sends a request, gets an answer, or releases.

use std::time::Duration;

use fastrand::Rng;
use trafficcop_core::{After, Budget, HealthRules, HoldPolicy, Ring, Rules};

use super::plan::{Act, Deed, Plan, Weather, maybe, ms, one, rest, secs};

pub(super) fn meetings(
    rng: &mut Rng,
    budget: &Budget,
    way: Duration,
    lives: &mut Option<Duration>,
) -> Vec<Act> {
    let offsets = [
        Duration::ZERO,
        way / 2,
        way,
        way * 3 / 2,
        way * 2,
        ms(1),
        ms(3),
        ms(101),
        secs(1),
    ];
    let renewal = budget.renew_every * rng.u32(1..6);
    if rng.u8(0..3) == 0 {
        *lives = Some(renewal.saturating_sub(way * 2) + one(rng, &offsets));
    }
    let end = lives.map_or(renewal, |lives| way * 2 + lives);
    let around = one(rng, &[renewal, renewal, end, end, way * 2, Duration::ZERO]);
    let lease = budget.lease;
    (0..rng.usize(1..5))
        .map(|_| {
            let long = [lease * 8 / 15, lease * 2 / 3, lease - budget.margin, lease];
            let deed = match rng.u8(0..10) {
                0..3 => Deed::Pause(one(rng, &long)),
                3 => Deed::Break(None),
                4 => Deed::Break(Some(ms(rng.u64(0..20_000)))),
                5 => Deed::GuardianDies,
                6 => Deed::Weather(Weather::AnswersLost, lease / 2),
                7 => Deed::Weather(Weather::Slow(ms(rng.u64(500..5000))), lease),
                8 => Deed::Weather(Weather::RequestsLost, lease * 2 / 3),
                _ => Deed::Stop(15),
            };
            let at = around + one(rng, &offsets);
            Act { at, deed }
        })
        .collect()
}

pub(super) fn ends(
    rng: &mut Rng,
    which: u8,
    rules: &mut Rules,
    budget: &Budget,
    way: Duration,
    lives: &mut Duration,
) -> Vec<Act> {
    let act = |at, deed| Act { at, deed };
    let renewal = budget.renew_every * rng.u32(1..4);
    let some = ms(rng.u64(1..1500));
    let span = maybe(rng, 30, |rng| ms(rng.u64(0..3000)));
    match which {
        // Confirmed, then lost; then the command ends, and only then the confirmation arrives.
        0 => {
            *lives = renewal.saturating_sub(way) + some + ms(rng.u64(1..900));
            let slow = Deed::Weather(Weather::Slow(secs(4)), secs(1));
            let lost = act(renewal + way + some, Deed::Break(span));
            vec![act(renewal.saturating_sub(ms(1)), slow), lost]
        }
        // Lost after the command's end, and after the last confirmation.
        1 => {
            *lives = ms(rng.u64(1..3000));
            let keeps = renewal + secs(1) + some;
            if rules.once.is_none() {
                rules.hold_policy.min_hold = Some(keeps);
                rules.hold_policy.restart = None;
            }
            vec![act(keeps - ms(rng.u64(1..900)), Deed::Break(span))]
        }
        // Its guardian dies while it is stopped, until the lease is nearly over.
        _ => {
            *lives = ms(rng.u64(1..3000));
            let at = way * 2 + *lives + ms(200) + some / 4;
            let long = budget.lease - ms(rng.u64(0..2000)).min(budget.lease / 4);
            if let Some(restart) = &mut rules.hold_policy.restart {
                restart.after = After::Any;
            }
            let dies = act(at + ms(1), Deed::GuardianDies);
            vec![act(at, Deed::Pause(long)), dies]
        }
    }
}

/// Makes one of the meetings below in one history of seven. It draws from the seed itself, so the
/// other histories stay the same.
pub(super) fn meet(plan: &mut Plan) {
    let mut rng = Rng::with_seed(plan.seed ^ 0x5E1D_0000);
    let drawn = rng.u8(0..49);
    match (drawn, plan.rules.budget) {
        (0, _) => rings_too_often(&mut rng, plan),
        (1, Some(budget)) => guardian_dies_while_unconfirmed(&mut rng, plan, &budget),
        (2, Some(budget)) => answer_of_before_while_unconfirmed(&mut rng, plan, &budget),
        (3, _) => stop_before_it_is_not_started(&mut rng, plan),
        (4, Some(budget)) => taken_before_its_end_is_heard(&mut rng, plan, &budget),
        (5, Some(budget)) => unread_at_the_end(&mut rng, plan, &budget),
        (6, _) => rings_after_another(&mut rng, plan),
        _ => {}
    }
}

fn only(plan: &mut Plan, way: Duration, acts: Vec<Act>) {
    (plan.way, plan.begins_late) = (way, Duration::ZERO);
    (plan.rival, plan.cordoned_before) = (0, false);
    (plan.condition, plan.done_by_another) = (None, None);
    plan.health = HealthRules::default();
    plan.rules.wait = None;
    plan.rest = rest(&acts, plan.rest.saturating_sub(secs(6)));
    plan.acts = acts;
}

/// A holder's bell rings again and again until it is not listened to; the holder is still there
/// when it is listened to again.
fn rings_too_often(rng: &mut Rng, plan: &mut Plan) {
    if plan.rules.poll.is_none() || plan.rules.once.is_some() || plan.drive.is_some() {
        return;
    }
    only(plan, ms(one(rng, &[0, 1, 10])), Vec::new());
    plan.rival = 100;
    plan.rival_holds = secs(rng.u64(130..250));
    plan.rest = plan.rest.max(plan.rival_holds + secs(30));
    plan.bell = Some([10, 0, 0, 1].into());
    plan.polls_as_ever = false;
    let rank = one(rng, &[0, 0, 1, 4]);
    let greets = 1 + rng.usize(0..3);
    // Later the holder is away for longer than that pause.
    plan.rings = (0..24)
        .map(|at| match at {
            _ if at < greets => (Ring::Greeted { rank }, ms(10)),
            ..15 => (Ring::Draining, ms(10)),
            _ => (Ring::Silent, secs(30)),
        })
        .collect();
}

/// Holders come and go, each with a bell that rings as soon as it is heard.
fn rings_after_another(rng: &mut Rng, plan: &mut Plan) {
    if plan.rules.poll.is_none() || plan.rules.once.is_some() || plan.drive.is_some() {
        return;
    }
    only(plan, ms(one(rng, &[0, 1, 10])), Vec::new());
    plan.rules.poll = Some(secs(one(rng, &[2, 5, 16])));
    plan.rival = 100;
    plan.rival_holds = ms(rng.u64(100..700));
    plan.rival_drains = Duration::ZERO;
    plan.tells_expiry = false;
    plan.bell = Some([10, 0, 0, 1].into());
    plan.polls_as_ever = false;
    let ring = |at: u32| match at % 4 {
        3 => (Ring::Draining, ms(20)),
        _ => (Ring::Greeted { rank: 0 }, ms(20)),
    };
    plan.rings = (0..24).map(ring).collect();
}

/// Returns a delay after which the grant must be confirmed first, and the time after it, if there
/// is room.
fn late(rng: &mut Rng, budget: &Budget) -> Option<(Duration, Duration)> {
    let term = budget.lease - budget.margin - budget.grace_on_loss;
    let room = term.checked_sub(budget.lease / 2)?;
    let long = budget.lease / 2 + ms(rng.u64(1..1000));
    (room > secs(5)).then_some((long, term))
}

/// A guardian dies while its supervisor is stopped, before that has confirmed a late grant, until
/// the lease is over.
fn guardian_dies_while_unconfirmed(rng: &mut Rng, plan: &mut Plan, budget: &Budget) {
    let Some((long, term)) = late(rng, budget).filter(|_| plan.drive.is_none()) else {
        return;
    };
    let way = ms(one(rng, &[2, 10, 100]));
    let goes_on = way / 2 + long;
    let act = |at, deed| Act { at, deed };
    let slow = Weather::Slow(ms(rng.u64(500..4000)));
    let acts = vec![
        act(way / 2, Deed::Pause(long)),
        act(goes_on - ms(1), Deed::Weather(slow, secs(1))),
        act(
            goes_on + ms(1),
            Deed::Pause(term + ms(rng.u64(0..3000)) - goes_on),
        ),
        act(goes_on + ms(2), Deed::GuardianDies),
    ];
    only(plan, way, acts);
    plan.ticks_first = false;
}

fn answer_of_before_while_unconfirmed(rng: &mut Rng, plan: &mut Plan, budget: &Budget) {
    let Some((long, _)) = late(rng, budget).filter(|_| plan.drive.is_none()) else {
        return;
    };
    let way = ms(one(rng, &[2, 10, 100]));
    let goes_on = way / 2 + long;
    let act = |at, deed| Act { at, deed };
    let acts = vec![
        act(way / 2, Deed::Pause(long)),
        act(
            goes_on - ms(1),
            Deed::Weather(Weather::Refused(None), secs(3)),
        ),
        act(goes_on + way * 2 + ms(rng.u64(1..700)), Deed::Echo(3)),
    ];
    only(plan, way, acts);
}

/// A stop comes after the order of a command that cannot be started.
fn stop_before_it_is_not_started(rng: &mut Rng, plan: &mut Plan) {
    let way = ms(one(rng, &[1, 10, 100]));
    let stop = Act {
        at: way * 2 + ms(rng.u64(1..3)),
        deed: Deed::Stop(15),
    };
    only(plan, way, vec![stop]);
    (plan.habit.not_started, plan.habit.hook_failed) = (100, 0);
}

/// The guardian's report of the command's end is late: meanwhile the lease is confirmed, taken by
/// another, and then released.
fn taken_before_its_end_is_heard(rng: &mut Rng, plan: &mut Plan, budget: &Budget) {
    let renewal = budget.renew_every;
    if plan.rules.once.is_some() || plan.drive.is_some() || renewal < secs(1) {
        return;
    }
    let way = ms(one(rng, &[1, 10]));
    let act = |at, deed| Act { at, deed };
    let confirmed = renewal + way * 2;
    let acts = vec![
        act(renewal - ms(200), Deed::Hush(way * 2 + ms(300))),
        act(confirmed + ms(rng.u64(1..90)), Deed::Taken),
    ];
    only(plan, way, acts);
    plan.rules.hold_policy = HoldPolicy::default();
    let habit = &mut plan.habit;
    habit.lives = Some(renewal - way * 2 - ms(rng.u64(10..150)));
    (habit.not_started, habit.hook_failed) = (0, 0);
    (habit.daemon, habit.silent) = (0, 0);
}

/// On a shared drive: an own version without a readable record is met just about the end of its
/// lease.
fn unread_at_the_end(rng: &mut Rng, plan: &mut Plan, budget: &Budget) {
    let Some(drive) = plan.drive.as_mut().filter(|drive| drive.cron.is_none()) else {
        return;
    };
    (drive.unread, drive.stale) = (0, 0);
    let (first, kill) = (budget.renew_every, budget.lease - budget.margin);
    if kill < first + secs(1) {
        return;
    }
    let lost = Deed::Weather(Weather::AnswersLost, kill - first);
    let part = budget.lease / 50;
    let within = part * rng.u32(0..200) / 100;
    let dies = (budget.margin + within).saturating_sub(part);
    let acts = vec![
        Act {
            at: ms(500),
            deed: Deed::Stuck(Some(dies)),
        },
        Act {
            at: first - ms(1),
            deed: lost,
        },
    ];
    only(plan, ms(one(rng, &[1, 10])), acts);
    plan.rules.hold_policy = HoldPolicy::default();
    let habit = &mut plan.habit;
    (habit.lives, habit.deaf, habit.daemon) = (None, 100, 0);
    (habit.not_started, habit.hook_failed, habit.silent) = (0, 0, 0);
}
