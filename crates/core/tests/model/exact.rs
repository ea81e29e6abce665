//! The model: a bucket as exact rationals and a list of admissions, and G1 over what was admitted. It shares no
//! arithmetic with the crate.

use num_bigint::BigInt;
use num_rational::BigRational;

type Rational = BigRational;

fn rational(n: impl Into<BigInt>) -> Rational {
    Rational::from_integer(n.into())
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    pub sliding: bool,
    pub amount: u64,
    pub window: u64,
    pub burst: u64,
}

#[derive(Debug, Clone)]
enum Measure {
    Level(Rational),
    /// Sub-window and what was taken in it.
    Taken(Vec<(u128, u64)>),
}

#[derive(Debug, Clone)]
pub struct ModelGrant {
    pub slot: usize,
    pub cost: u64,
    pub epoch: u64,
    /// Policies that had come before.
    pub era: u64,
    pub ends_at: u64,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub now: u64,
    /// In force, or before the denial in force.
    pub limit: Limit,
    pub denied: bool,
    /// At capacity when the denial came.
    pub full: bool,
    measure: Measure,
    pub grants: Vec<ModelGrant>,
    pub epoch: u64,
    pub era: u64,
    pub lapsed: Vec<ModelGrant>,
}

fn sub_window(window: u64, at: u64) -> u128 {
    u128::from(at) * 16 / u128::from(window)
}

impl Model {
    pub fn new(limit: Limit, now: u64) -> Model {
        let measure = Model::brim(limit, 0);
        Model { now, limit, denied: false, full: true, measure, grants: vec![], epoch: 0, era: 0, lapsed: vec![] }
    }

    fn brim(limit: Limit, outstanding: u64) -> Measure {
        match limit.sliding {
            true => Measure::Taken(vec![]),
            false => Measure::Level(rational(limit.burst.saturating_sub(outstanding))),
        }
    }

    fn outstanding(&self) -> u64 {
        self.grants.iter().map(|grant| grant.cost).sum()
    }

    fn taken(&self) -> u64 {
        let Measure::Taken(taken) = &self.measure else { return 0 };
        let now = sub_window(self.limit.window, self.now);
        taken.iter().filter(|(index, _)| index + 16 >= now).map(|(_, tokens)| tokens).sum()
    }

    fn count(&mut self, tokens: u64) {
        let index = sub_window(self.limit.window, self.now);
        if let Measure::Taken(taken) = &mut self.measure {
            taken.push((index, tokens));
        }
    }

    pub fn left(&self) -> u64 {
        match &self.measure {
            Measure::Level(level) => u64::try_from(level.floor().to_integer()).unwrap(),
            Measure::Taken(_) => self.limit.burst.saturating_sub(self.taken() + self.outstanding()),
        }
    }

    fn cut(&mut self) {
        let brim = rational(self.limit.burst.saturating_sub(self.outstanding()));
        if let Measure::Level(level) = &mut self.measure
            && *level > brim
        {
            *level = brim;
        }
    }

    pub fn advance(&mut self, to: u64) {
        loop {
            let next = self.grants.iter().map(|grant| grant.ends_at).min().map_or(to, |end| end.min(to));
            let rate = Rational::new(self.limit.amount.into(), self.limit.window.into());
            if let Measure::Level(level) = &mut self.measure
                && !self.denied
            {
                *level += rate * rational(next - self.now);
                self.cut();
            }
            self.now = next;
            let (ended, live) = self.grants.drain(..).partition(|grant: &ModelGrant| grant.ends_at <= next);
            self.grants = live;
            for grant in &ended {
                self.count(grant.cost);
            }
            self.lapsed.extend(ended);
            if next == to {
                return;
            }
        }
    }

    pub fn change(&mut self, to: Option<Limit>) {
        self.era += 1;
        if !self.denied {
            self.full = self.grants.is_empty()
                && match &self.measure {
                    Measure::Level(level) => *level == rational(self.limit.burst),
                    Measure::Taken(_) => self.taken() == 0,
                };
        }
        self.denied = to.is_none();
        let Some(to) = to else { return };
        if self.full {
            self.measure = Model::brim(to, 0);
            self.limit = to;
            return;
        }
        let (left, taken, outstanding) = (self.left(), self.taken(), self.outstanding());
        let owed = to.burst.saturating_sub(left).saturating_sub(outstanding);
        let old_window = self.limit.window;
        self.limit = to;
        match (&mut self.measure, to.sliding) {
            (Measure::Level(level), false) if old_window == to.window => *level = level.clone(),
            // A level is kept in whole steps of 1 µs: the one rounding there is.
            (Measure::Level(level), false) => {
                let window = rational(to.window);
                *level = (level.clone() * &window).floor() / window;
            }
            (measure @ Measure::Taken(_), false) => *measure = Measure::Level(rational(left)),
            (Measure::Taken(_), true) if old_window == to.window => self.count(owed.saturating_sub(taken)),
            (measure, true) => {
                *measure = Measure::Taken(vec![]);
                self.count(owed.max(taken));
            }
        }
        self.cut();
    }

    pub fn take(&mut self, cost: u64) {
        self.full = false;
        match &mut self.measure {
            Measure::Level(level) => *level -= rational(cost),
            Measure::Taken(_) => self.count(cost),
        }
    }

    pub fn hold(&mut self, slot: usize, cost: u64, ends_at: u64) {
        self.full = false;
        if let Measure::Level(level) = &mut self.measure {
            *level -= rational(cost);
        }
        self.grants.push(ModelGrant { slot, cost, epoch: self.epoch, era: self.era, ends_at });
    }

    pub fn settle(&mut self, slot: usize, spent: bool) -> Option<ModelGrant> {
        let at = self.grants.iter().position(|grant| grant.slot == slot)?;
        let grant = self.grants.remove(at);
        if spent {
            self.count(grant.cost);
        } else if grant.epoch == self.epoch {
            if let Measure::Level(level) = &mut self.measure {
                *level += rational(grant.cost);
            }
            if !self.denied {
                self.cut();
            }
        }
        Some(grant)
    }

    pub fn reset(&mut self, base: Limit) {
        self.epoch += 1;
        self.full = self.grants.is_empty();
        if self.denied && !self.full {
            self.limit = base;
        }
        self.measure = Model::brim(self.limit, self.outstanding());
    }

    pub fn refund(&mut self, epoch: u64, taken_at: u64, cost: u64) -> u64 {
        if epoch != self.epoch || self.denied {
            return 0;
        }
        let brim = rational(self.limit.burst.saturating_sub(self.outstanding()));
        let (now, oldest) = (sub_window(self.limit.window, self.now), sub_window(self.limit.window, taken_at));
        match &mut self.measure {
            Measure::Level(level) => {
                let given = rational(cost).min(&brim - &*level).max(rational(0));
                *level += &given;
                u64::try_from(given.ceil().to_integer()).unwrap()
            }
            Measure::Taken(_) if oldest + 16 < now => 0,
            Measure::Taken(taken) => {
                let mut left = cost;
                for (_, tokens) in taken.iter_mut().filter(|(index, _)| *index >= oldest) {
                    let back = left.min(*tokens);
                    *tokens -= back;
                    left -= back;
                }
                cost - left
            }
        }
    }
}

/// What was admitted (positive) and credited (negative) under one policy and epoch, by time.
#[derive(Debug, Default)]
pub struct Ledger(Vec<(u64, i128)>);

impl Ledger {
    pub fn add(&mut self, at: u64, tokens: i128) {
        self.0.push((at, tokens));
    }

    /// G1 over every interval that begins and ends with an admission; then the ledger begins anew.
    pub fn close(&mut self, limit: Limit) {
        let events = std::mem::take(&mut self.0);
        for first in 0..events.len() {
            let mut sum = 0;
            for &(at, tokens) in &events[first..] {
                let passed = at - events[first].0;
                sum += tokens;
                if limit.sliding && passed >= limit.window {
                    break;
                }
                let refilled = if limit.sliding { 0 } else { u128::from(limit.amount) * u128::from(passed) };
                let allowed = rational(limit.burst) + Rational::new(refilled.into(), limit.window.into());
                assert!(rational(sum) <= allowed, "{sum} admitted within {passed} µs of {limit:?}: {events:?}");
            }
        }
    }
}
