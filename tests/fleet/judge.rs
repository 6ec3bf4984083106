//! Rules that hold in every schedule, whatever the adversary does.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Cause, Ending};

use super::adversary::{Act, Deed, Place, Weather, Who};
use super::clock::{MILLI, SECOND, Time, nanos};
use super::drive::{Making, OPERATOR, last_of};
use super::operator::era_and_token;
use super::pair::{Life, Pair, Tree};
use super::store::Id;
use super::world::{Broken, Happening, Others, World};

/// Shortest grace that a command gets on a cordoned machine; a guardian whose supervisor has died
/// gives less.
const LEAST_GRACE: Duration = Duration::from_secs(10);

impl World {
    /// Judges after a change of the store's lease: is every tree still protected?
    pub(crate) fn lease_changed(&mut self) {
        let now = self.store_clock.at(self.now);
        let protected = self.store.protects(now);
        if let Some(ends) = self.store.ends() {
            let at = self.store_clock.when(ends);
            self.plan(at, Happening::LeaseEnds);
            if let Some(id) = protected {
                let granted = self.granted.entry(id).or_default();
                *granted = at.max(*granted);
                self.lasts.insert(id, at);
            }
        }
        for p in 0..self.pairs.len() {
            self.judge_protection(p, protected);
        }
    }

    fn judge_protection(&mut self, p: usize, protected: Option<u64>) {
        let Some(tree) = self.pairs[p].tree.as_ref().filter(|tree| tree.lives()) else {
            return;
        };
        if protected == Some(tree.lease) || tree.excused {
            return;
        }
        if !self.excuses(p, tree) {
            self.violate(format!(
                "#{p} runs, and nothing at the store keeps others out"
            ));
            return;
        }
        if let Some(tree) = &mut self.pairs[p].tree {
            tree.excused = true;
        }
    }

    /// Whether no local process could have prevented this: an operator gave control away, the
    /// machine was suspended, or neither supervisor nor guardian could act.
    fn excuses(&self, p: usize, tree: &Tree) -> bool {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        let lately = |since: Time, span: Time| self.now < since.saturating_add(span);
        if machine.suspended.is_some()
            || machine.resumed > 0 && lately(machine.resumed, 300 * MILLI)
        {
            return true;
        }
        let supervisor = pair.supervisor == Life::Runs
            && (pair.continued == 0 || !lately(pair.continued, 2 * SECOND));
        let guardian = pair.guardian == Life::Runs
            && (pair.guardian_continued == 0 || !lately(pair.guardian_continued, 300 * MILLI));
        if !supervisor && !guardian {
            return true;
        }
        self.was_broken(p, tree)
    }

    /// Whether an operator gave this tree's lease away, and the instance did not hear of it in
    /// time. On a drive an instance makes no version after the operator's, so its control ends with
    /// its lease.
    fn was_broken(&self, p: usize, tree: &Tree) -> bool {
        let lately = |since: Time, span: Time| self.now < since.saturating_add(span);
        self.broken.iter().any(|broken| {
            let warned = self.pairs[p]
                .told_lost
                .iter()
                .any(|told| told.at > broken.at && !lately(told.at.max(told.until), 500 * MILLI));
            let at_once = broken.others == Others::AtOnce;
            let is_over = broken.of.is_some() && self.now >= self.granted(p, tree.lease);
            broken.is(p, tree.lease) && broken.gives_away() && (at_once || !warned) && !is_over
        })
    }

    /// Returns until when the store granted a lease. On a drive, an instance that saw the last
    /// version when it was made waits for that lease, by a fast clock.
    fn granted(&self, p: usize, lease: Id) -> Time {
        let (era, token) = era_and_token(lease);
        let Some(made) = self.makings(|makings| last_of(makings, p, era, token)) else {
            return self.granted.get(&lease).copied().unwrap_or_default();
        };
        let span = nanos(self.schedule.budgets[self.pairs[p].machine].lease);
        made.map_or(0, |made| made + span / 101 * 100)
    }

    /// Judges a version made after an existing one. A holder continues only from its own version,
    /// whatever it read. An instance follows another's only if that says that the lock is free, or
    /// after a wait since it saw it, by a fast clock: for its maker's lease, or an operator's
    /// period.
    pub(crate) fn judge_what_was_made(&mut self, made: Making, before: Making) {
        let tree = self.pairs[made.by].tree.as_ref();
        if before.by != made.by && tree.is_some_and(|tree| tree.main && !tree.killed) {
            let whose = match before.by {
                OPERATOR.. => "an operator".to_owned(),
                by => format!("#{by}"),
            };
            return self.violate(format!(
                "#{} runs, and makes version {} after that of {whose}",
                made.by, made.version
            ));
        }
        if before.by == made.by || made.after_release {
            return;
        }
        let lease = |p: usize| nanos(self.schedule.budgets[self.pairs[p].machine].lease);
        let held_for = match before.by {
            // A record said that the lock is free, and was removed later.
            OPERATOR.. => {
                let period = self.operators[before.by - OPERATOR].period;
                period.map_or(0, nanos)
            }
            by => lease(by),
        };
        if made.at < before.at + held_for / 101 * 100 {
            self.violate(format!(
                "#{} makes version {} after {:.3} s of the lease of #{}",
                made.by,
                made.version,
                (made.at - before.at) as f64 / 1e9,
                before.by
            ));
        }
    }

    pub(crate) fn judge_deadline(&mut self, p: usize, lease: Id, kill_at: Instant) {
        let until = self.machines[self.pairs[p].machine].clock.when(kill_at);
        let granted = self.granted(p, lease);
        // The instance hears of the break later. On a drive the break does not end the lease, which
        // is followed too soon.
        let is = |broken: &Broken| broken.is(p, lease) && broken.of.is_none();
        let broken = self.broken.iter().any(is);
        if until > granted && !broken {
            let seconds = |at: Time| at as f64 / 1e9;
            self.violate(format!(
                "#{p} believes in its control until {:.3} s, and was granted it until {:.3} s",
                seconds(until),
                seconds(granted)
            ));
        }
    }

    pub(crate) fn judge_rest(&mut self, p: usize, until: Time) {
        let Some(lease) = self.lease_of(p) else {
            return;
        };
        // A second break may end the lease before the reported time.
        let touched = self.touched.iter().filter(|id| **id == lease).count();
        let lasts = self.lasts.get(&lease).copied().unwrap_or_default();
        if until > lasts && touched == 1 {
            let seconds = |at: Time| at as f64 / 1e9;
            self.violate(format!(
                "#{p} believes that others are kept out until {:.3} s, and they are until {:.3} s",
                seconds(until),
                seconds(lasts)
            ));
        }
    }

    pub(crate) fn judge_what_is_shown(&mut self, p: usize, until: Instant) {
        let lives = self.pairs[p].tree_lives();
        if lives
            && until > Instant::ZERO
            && let Some(lease) = self.lease_of(p)
        {
            self.judge_deadline(p, lease, until);
        }
    }

    /// Judges a turn of a guardian; `shown` was the end of control before it.
    pub(crate) fn judge_turn(&mut self, p: usize, now: Instant, shown: Instant) {
        let tree = self.pairs[p].tree.as_ref();
        let over = shown > Instant::ZERO && now >= shown;
        if over && tree.is_some_and(|tree| tree.main && !tree.killed) {
            self.violate(format!("#{p} goes on after the end of its control"));
        }
    }

    pub(crate) fn note_the_end(&mut self, p: usize) {
        let now = self.now;
        self.last_end = now;
        let Some(tree) = self.pairs[p].tree.as_mut().filter(|tree| !tree.lives()) else {
            return;
        };
        let generation = tree.generation;
        tree.lock = None;
        self.lock_may_be_free();
        self.plan(now + SECOND, Happening::EndDue(p, generation));
    }

    /// Judges whether the guardian has noticed the end of the tree: until then no other instance
    /// gets control.
    pub(crate) fn judge_end(&mut self, p: usize, generation: u64) {
        let pair = &self.pairs[p];
        let tree = pair.tree.as_ref();
        let Some(tree) = tree.filter(|tree| tree.generation == generation) else {
            return;
        };
        if pair.guardian == Life::Dead || tree.is_reaped() {
            return;
        }
        let machine = &self.machines[pair.machine];
        let lately = |since: Time| since > 0 && self.now < since + SECOND;
        let hindered = pair.guardian != Life::Runs
            || machine.suspended.is_some()
            || lately(machine.resumed)
            || lately(pair.guardian_continued);
        if hindered {
            return self.plan(self.now + SECOND, Happening::EndDue(p, generation));
        }
        self.violate(format!(
            "the guardian of #{p} does not see that its tree has ended"
        ));
    }

    pub(crate) fn judge_birth(&mut self, p: usize) {
        self.tally.tenures += 1;
        let pair = &self.pairs[p];
        if self.machines[pair.machine].clock.at(self.now) >= pair.told_term_at {
            return self.violate(format!("#{p} starts when it should end already"));
        }
        if self
            .last_holder
            .replace(p)
            .is_some_and(|before| before != p)
        {
            self.tally.handovers += 1;
        }
        // An operator broke this instance's lease: the other tree is protected, and this instance
        // has to report the overlap.
        let protected = self.store.protects(self.store_clock.at(self.now));
        match self.schedule.place {
            Place::Blob => self.judge_protection(p, protected),
            Place::File => {}
            Place::Shared | Place::Store => {
                let tree = self.pairs[p].tree.as_ref();
                let broken = tree.is_some_and(|tree| self.was_broken(p, tree));
                if let Some(tree) = &mut self.pairs[p].tree {
                    tree.excused |= broken;
                }
            }
        }
        if let Some(tree) = self.pairs[p].tree.as_ref().filter(|tree| tree.excused) {
            let lease = tree.lease;
            let beside = |q: &usize| *q != p && self.pairs[*q].tree_lives();
            if (0..self.pairs.len()).any(|q| beside(&q)) {
                let pair = &mut self.pairs[p];
                pair.owes_a_word = true;
                pair.overlapped_at = self.now;
                pair.overlapped_lease = Some(lease);
                self.tally.overlaps += 1;
                self.say(|| format!("#{p} overlaps from its birth"));
            }
            return;
        }
        for q in (0..self.pairs.len()).filter(|q| *q != p) {
            // On a drive, a lease ends when its waiters have seen it for long enough; only they
            // know when.
            let excused = self.schedule.place.is_chain()
                && self.pairs[q]
                    .tree
                    .as_ref()
                    .is_some_and(|tree| self.excuses(q, tree));
            let pair = &mut self.pairs[q];
            let Some(tree) = pair.tree.as_mut().filter(|tree| tree.lives()) else {
                continue;
            };
            tree.excused |= excused;
            if !tree.excused {
                self.violate(format!("#{p} starts while #{q} runs"));
                return;
            }
            if !std::mem::replace(&mut tree.overlapped, true) {
                pair.owes_a_word = true;
                pair.overlapped_at = self.now;
                pair.overlapped_lease = Some(tree.lease);
                self.tally.overlaps += 1;
                self.say(|| format!("#{q} overlaps with #{p}"));
            }
        }
        let token = self.pairs[p].tree.as_ref().map_or(0, |tree| tree.token);
        let chain = self.schedule.place.is_chain();
        let deletions = match self.lease_of(p).filter(|_| chain) {
            Some(lease) => u32::try_from(era_and_token(lease).0).expect("a few"),
            None => self.store.deletions,
        };
        // This lease was granted before an operator removed the lock.
        if deletions < self.last_deletions {
            return;
        }
        if token <= self.last_token && deletions == self.last_deletions {
            let last = self.last_token;
            self.violate(format!("#{p} has token {token} after {last}"));
        }
        (self.last_token, self.last_deletions) = (token, deletions);
    }

    pub(crate) fn ended(&mut self, p: usize, ending: Ending) {
        self.pairs[p].said_overlap |= ending.overlap;
        self.judge_words(p, Some(&ending.cause));
        let pair = &mut self.pairs[p];
        pair.ending = Some(ending);
        if pair.tree_lives() {
            self.violate(format!("#{p} ends while its tree lives"));
        }
        self.plan(self.now, Happening::Guardian(p));
        self.restart_later(self.pairs[p].machine);
    }

    pub(crate) fn competes_again(&mut self, p: usize) {
        if std::mem::take(&mut self.pairs[p].had_control) {
            self.judge_words(p, None);
        }
    }

    /// Requires a report from an instance that overlapped with another and could know that.
    fn judge_words(&mut self, p: usize, cause: Option<&Cause>) {
        let pair = &mut self.pairs[p];
        if !std::mem::take(&mut pair.owes_a_word) {
            pair.said_overlap = false;
            return;
        }
        if std::mem::take(&mut pair.said_overlap) {
            self.tally.words += 1;
            return;
        }
        // An instance knows of a break if a later renewal's or release's answer said so, unless
        // that left it more time than a second break did.
        let of_it = |broken: &&Broken| {
            let id = pair.overlapped_lease;
            broken.gives_away() && id.is_some_and(|id| broken.is(p, id))
        };
        let last = self.broken.iter().filter(of_it).map(|it| it.at).max();
        let told = |last: Time| {
            let mut told = pair.told_lost.iter();
            told.any(|told| told.at > last && told.until <= pair.overlapped_at)
        };
        let knows = last.is_none_or(told);
        if knows {
            self.violate(format!(
                "#{p} ran beside another and did not report it ({cause:?})"
            ));
        } else {
            self.tally.unknowable += 1;
        }
    }

    /// Checks that a command runs, and not on a machine that is cordoned for ever.
    pub(crate) fn judge_liveness(&mut self) {
        let now = self.store_clock.at(self.now);
        let protected = self.store.protects(now);
        let on_blob = self.schedule.place == Place::Blob;
        let runs = self.pairs.iter().any(|pair| {
            let tree = pair.tree.as_ref();
            let kept = |tree: &Tree| !on_blob || Some(tree.lease) == protected;
            tree.is_some_and(|tree| tree.main && !tree.killed && kept(tree))
        });
        let everywhere = self.machines.iter().all(|machine| machine.cordon.is_some());
        // Control changes hands by itself: it may be between two holders.
        // A condition may not answer in time, twice in a row, before it says yes.
        let questions = self.schedule.asks_every().map_or(0, |_| 10 * SECOND);
        let pause =
            nanos(self.schedule.cooldown.max(self.schedule.poll)) * 3 + 6 * SECOND + questions;
        let lately = self.now < self.last_end + pause || self.pairs.iter().any(Pair::tree_lives);
        let handed_over = self.schedule.max_hold.is_some() && lately;
        // A daemon that outlives both has the lock, as it should.
        let on_file = self.schedule.place == Place::File;
        let left = |pair: &Pair| on_file && pair.tree_lives() && !pair.is_guarded();
        let left_behind = self.pairs.iter().any(left);
        // The rest of a lock that was removed in use is refused until all of it is removed.
        let on_drive = self.drive.is_some() && self.store.deletions > 0;
        if !runs && !everywhere && !handed_over && !left_behind && !on_drive {
            self.violate("no command runs although the adversary has rested".to_owned());
        }
        let mut cordoned = (0..self.pairs.len())
            .filter(|p| self.machines[self.pairs[*p].machine].cordon.is_some());
        if let Some(p) = cordoned.find(|p| self.pairs[*p].is_guarded()) {
            self.violate(format!("#{p} runs on a machine that is cordoned for ever"));
        }
    }

    pub(crate) fn hears_of_a_cordon(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        pair.cordoned = Some(self.now);
        pair.cordon_heard = true;
        pair.cordon_heard_at = Some(self.now);
        self.tally.cordons += 1;
        if pair.tree_lives() {
            self.tally.cordoned_holders += 1;
            let due = self.now + self.drain_for_a_cordon();
            self.plan(due, Happening::CordonDue(p, self.now));
        }
    }

    /// Returns how long a tree may live once its supervisor has heard of a cordon.
    pub(crate) fn drain_for_a_cordon(&self) -> Time {
        let limit = self.schedule.grace.max(LEAST_GRACE);
        nanos(limit) * 102 / 100 + SECOND
    }

    /// Checks, some time after the grace, that the tree has ended.
    pub(crate) fn judge_cordon(&mut self, p: usize, told: Time) {
        let pair = &self.pairs[p];
        // A supervisor that cannot run cannot stop its command; that loss is judged like any other.
        let hindered = self.schedule.acts.iter().any(|act| match act.deed {
            Deed::Stop(machine, _, span) | Deed::Suspend(machine, span) => {
                machine == pair.machine
                    && act.at < self.now
                    && told < act.at.saturating_add(span + 3 * SECOND)
            }
            _ => false,
        });
        let hindered = hindered
            || self.stops.iter().any(|(machine, _, until)| {
                *machine == pair.machine && told < until.saturating_add(3 * SECOND)
            });
        if pair.cordoned == Some(told) && pair.is_guarded() && !hindered {
            self.violate(format!("#{p} still runs on a cordoned machine"));
        }
    }

    /// Judges a supervisor that kills its guardian: was that silent?
    pub(crate) fn judge_giving_up(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        let lately = |since: Time, span: Time| since > 0 && self.now < since + span;
        let answers = pair.guardian == Life::Runs
            && !lately(pair.guardian_continued, 300 * MILLI)
            && !lately(machine.resumed, 300 * MILLI);
        if answers {
            return self.violate(format!("#{p} kills a guardian that answers"));
        }
        // With no deadline to meet, a guardian may be silent for a second.
        let kill_at = machine
            .clock
            .when(pair.told_term_at + self.schedule.budgets[pair.machine].grace_on_loss);
        let early = matches!(pair.guardian, Life::Stopped(_))
            && pair.tree_lives()
            && self.now < kill_at
            && lately(pair.guardian_stopped, 900 * MILLI)
            && !lately(pair.guardian_continued, 3 * SECOND)
            && !lately(machine.resumed, 3 * SECOND);
        if early {
            self.violate(format!(
                "#{p} does not wait a second for a guardian whose deadline is to come"
            ));
        }
    }

    /// Judges a guardian that stops the command: was that necessary?
    pub(crate) fn judge_need(&mut self, p: usize) {
        self.tally.drains += 1;
        if let Some(why) = self.needless(p) {
            self.violate(format!("#{p} is stopped without need: {why}"));
        }
    }

    fn needless(&mut self, p: usize) -> Option<String> {
        let store_now = self.store_clock.at(self.now);
        let protected = self.store.protects(store_now);
        let pair = &self.pairs[p];
        let tree = pair.tree.as_ref()?;
        if pair.stop_asked || pair.cordon_heard || pair.guardian_hurt || !tree.main {
            return None;
        }
        let kept = self.schedule.place != Place::Blob || protected == Some(tree.lease);
        if pair.supervisor == Life::Dead || !kept {
            return None;
        }
        let held = nanos(self.schedule.budgets[pair.machine].lease / 2) + self.now - tree.born;
        let max_hold = self.schedule.max_hold.map(nanos);
        if max_hold.is_some_and(|max_hold| held + max_hold / 50 >= max_hold) {
            return None;
        }
        match self.schedule.place {
            Place::Blob => {}
            // The limit counts from the acquire, however late its answer.
            Place::File if max_hold.is_some() => return None,
            Place::File => return Some("a file lock cannot be taken away".to_owned()),
            // `judge_loss` has judged the loss already.
            Place::Shared | Place::Store if !pair.told_lost.is_empty() => return None,
            // After a break, or an announced one, the instance may doubt that only, and need not
            // continue.
            Place::Shared | Place::Store if self.broken.iter().any(|it| it.is(p, tree.lease)) => {
                return None;
            }
            Place::Shared if self.was_said_to_be_broken(tree.lease) => return None,
            Place::Shared | Place::Store => {}
        }
        if !pair.told_lost.is_empty() {
            // Either the lease is being broken, or the instance takes the answer about another
            // lease for a loss.
            let touched = self.touched.contains(&tree.lease);
            return (!touched).then(|| "it was told of a loss that there was not".to_owned());
        }
        self.doubt_was_idle(p, tree)
    }

    /// Whether an operator on a drive has announced to break this lease, whatever came of that.
    fn was_said_to_be_broken(&self, lease: Id) -> bool {
        let (era, token) = era_and_token(lease);
        self.drive.as_ref().is_some_and(|drive| {
            let drive = drive.lock().expect("whole");
            let mut said = drive.said_broken.iter();
            said.any(|(of, version)| *of == era && *version >= token)
        })
    }

    /// Judges a supervisor that hears of the loss of its lock on a shared drive: does another
    /// instance have it?
    pub(crate) fn judge_loss(&mut self, p: usize) {
        let Some(maker) = self.last_maker() else {
            return;
        };
        let ours = maker == Some(p);
        let by_hand =
            |act: &Act| act.at <= self.now && matches!(act.deed, Deed::Break(_) | Deed::Delete);
        if ours && self.pairs[p].tree_lives() && !self.schedule.acts.iter().any(by_hand) {
            self.violate(format!("#{p} is told that it lost what is its own"));
        }
    }

    /// Returns how long a fault's effect outlasts it: on a drive a call waits for its answer, and
    /// the next call for that one.
    fn aftermath(&self, deed: Deed) -> Time {
        if self.schedule.place != Place::Shared {
            return 200 * MILLI;
        }
        let late = |act: &Act| match act.deed {
            Deed::Net(_, Weather::Slow(longest) | Weather::Straggles(longest), _) => 2 * longest,
            _ => 0,
        };
        match deed {
            Deed::Net(..) => 5 * SECOND + self.schedule.acts.iter().map(late).sum::<Time>(),
            _ => 5 * SECOND,
        }
    }

    /// Whether a renewal could have succeeded in time: it is due at a known moment, a hanging
    /// request ends after 5 s, and the next follows within 2.4 s.
    fn doubt_was_idle(&self, p: usize, tree: &Tree) -> Option<String> {
        let pair = &self.pairs[p];
        let budget = &self.schedule.budgets[pair.machine];
        let on_chain = self.schedule.place.is_chain();
        let in_store = self.schedule.place == Place::Store;
        let clock = self.machines[pair.machine].clock;
        let term_after = budget.lease - budget.margin - budget.grace_on_loss;
        let t0 = pair.told_term_at - term_after;
        let due = clock
            .when(t0 + budget.renew_every)
            .max(tree.born)
            .max(pair.told_at);
        let mut wished = false;
        let mut faults: Vec<(Time, Time)> = Vec::new();
        for act in &self.schedule.acts {
            let (from, until) = match act.deed {
                Deed::Net(whom, weather, span) if whom.is_none_or(|whom| whom == pair.machine) => {
                    wished |= matches!(weather, Weather::Answers(_, Some(_)));
                    (
                        act.at.saturating_sub(200 * MILLI),
                        act.at + span + self.aftermath(act.deed),
                    )
                }
                Deed::Torn(span) if in_store => (
                    act.at.saturating_sub(200 * MILLI),
                    act.at + span + 200 * MILLI,
                ),
                Deed::Stale(machine, _, span) if in_store && machine == pair.machine => (
                    act.at.saturating_sub(200 * MILLI),
                    act.at + span + 200 * MILLI,
                ),
                Deed::RestartServer(_) => (
                    act.at.saturating_sub(200 * MILLI),
                    act.at + self.aftermath(act.deed),
                ),
                Deed::Stop(machine, Who::Supervisor | Who::Both, span)
                | Deed::Suspend(machine, span)
                    if machine == pair.machine =>
                {
                    (act.at, act.at + span + 300 * MILLI)
                }
                _ => continue,
            };
            if until > due && from < self.now {
                faults.push((from, until));
            }
        }
        for (_, from, until) in self.stops.iter().filter(|(m, ..)| *m == pair.machine) {
            if *until + 300 * MILLI > due && *from < self.now {
                faults.push((*from, *until + 300 * MILLI));
            }
        }
        faults.sort_unstable();
        let mut free_since = due;
        let mut gaps = Vec::new();
        for (from, until) in faults {
            if from > free_since {
                gaps.push((free_since, from));
            }
            free_since = free_since.max(until);
        }
        if self.now > free_since {
            gaps.push((free_since, self.now));
        }
        for (from, until) in gaps {
            let long = until - from;
            // A call to a drive takes many requests, one to a store two.
            let soon = if on_chain { 800 } else { 400 } * MILLI;
            let first = from == due && long > soon;
            let middle = !wished && long > 5 * SECOND + nanos(budget.lease) / 50 + 2800 * MILLI;
            let last = until == self.now && long > 8 * SECOND;
            if first || middle || last {
                let seconds = |at: Time| at as f64 / 1e9;
                return Some(format!(
                    "nothing kept it from renewing from {:.3} to {:.3} s",
                    seconds(from),
                    seconds(until)
                ));
            }
        }
        None
    }
}
