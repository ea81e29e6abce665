//! Which nemesis acts when: a pure function of kinds, order, duration and seed, so that a run can be repeated.
//!
//! A plan is bouts with calm between them. In turn, a bout is one nemesis; combined, it is many that overlap.

use std::{fmt, time::Duration};

use onceward_tests::draw::Draw;

use super::Kind;

/// For state hashes, and for limits and leases to run on undisturbed.
const CALM_MS: (u64, u64) = (2_500, 4_500);
/// What undoing, healing and hashing take beside, on average.
const BETWEEN: Duration = Duration::from_millis(2_500);
/// A round that does not fit is shortened, but not below this part of it: nemeses need time to bite.
const SHORTENED_MIN: f64 = 0.5;
/// How long nemeses overlap until all is healed for once.
const BOUT_MS: (u64, u64) = (35_000, 55_000);
/// Between the beginnings of two nemeses of a bout.
const APART_MS: (u64, u64) = (500, 4_000);
/// How much longer than planned a nemesis may keep its group, to undo itself.
const SLACK: Duration = Duration::from_secs(3);
/// More at once leave nothing to observe.
const AT_ONCE_MAX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// One at a time, with calm between them.
    #[default]
    InTurn,
    /// Several at a time, of those that go together.
    Combined,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub bouts: Vec<Bout>,
}

/// What happens between two times of calm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bout {
    /// In order of their beginnings.
    pub steps: Vec<Step>,
    pub calm: Duration,
}

/// A nemesis that acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// From the beginning of the bout.
    pub after: Duration,
    pub lasts: Duration,
    pub kind: Kind,
    /// Decides what it acts on, among what there is then.
    pub seed: u64,
}

/// In turn, every kind acts at least once, even if the duration is too short for it; in the order given at first, and in
/// another one in each further round. Combined, kinds act equally often as far as they go together.
pub fn plan(kinds: &[Kind], order: Order, duration: Duration, seed: u64) -> Plan {
    let mut draw = Draw::new(seed, "nemeses");
    let bouts = match order {
        Order::InTurn => in_turn(kinds, duration, &mut draw),
        Order::Combined => combined(kinds, duration, &mut draw),
    };
    Plan { seed, bouts }
}

fn in_turn(kinds: &[Kind], duration: Duration, draw: &mut Draw) -> Vec<Bout> {
    let mut round = kinds.to_vec();
    let (mut bouts, mut elapsed) = (Vec::new(), Duration::ZERO);
    let mut first = true;
    loop {
        let mut steps: Vec<Step> = round.iter().map(|kind| step(*kind, Duration::ZERO, draw)).collect();
        if first {
            shorten(&mut steps, duration);
        }
        for step in steps {
            let bout = Bout { steps: vec![step], calm: between(CALM_MS, draw) };
            elapsed += bout.length();
            if !first && elapsed > duration {
                return bouts;
            }
            bouts.push(bout);
        }
        first = false;
        draw.shuffle(&mut round);
    }
}

/// So that one after the other they fit, if that is possible.
fn shorten(steps: &mut [Step], duration: Duration) {
    let beside = (BETWEEN + Duration::from_millis(CALM_MS.1)) * steps.len() as u32;
    let acting: Duration = steps.iter().map(|step| step.lasts).sum();
    let part = duration.saturating_sub(beside).as_secs_f64() / acting.as_secs_f64();
    for step in steps {
        step.lasts = to_millis(step.lasts.mul_f64(part.clamp(SHORTENED_MIN, 1.0)));
    }
}

fn combined(kinds: &[Kind], duration: Duration, draw: &mut Draw) -> Vec<Bout> {
    let mut waiting = Vec::new();
    let (mut bouts, mut elapsed): (Vec<Bout>, _) = (Vec::new(), Duration::ZERO);
    while elapsed < duration || bouts.is_empty() {
        let left = duration.saturating_sub(elapsed);
        let length = between(BOUT_MS, draw);
        // Rather one long bout at last than a short one in which little overlaps.
        let length = if left < length + Duration::from_millis(BOUT_MS.0) { left } else { length };
        let bout = Bout { steps: overlapping(kinds, length, &mut waiting, draw), calm: between(CALM_MS, draw) };
        elapsed += bout.length();
        bouts.push(bout);
    }
    bouts
}

/// `waiting` are kinds that did not act since the others did.
fn overlapping(kinds: &[Kind], length: Duration, waiting: &mut Vec<Kind>, draw: &mut Draw) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut after = Duration::ZERO;
    loop {
        if waiting.is_empty() {
            waiting.extend(kinds);
            draw.shuffle(waiting);
        }
        let active: Vec<&Step> = steps.iter().filter(|step| after < step.after + step.lasts + SLACK).collect();
        let fits = |kind: &Kind| active.len() < AT_ONCE_MAX && active.iter().all(|step| kind.goes_with(step.kind));
        if let Some(next) = waiting.iter().position(fits) {
            let step = step(waiting.remove(next), after, draw);
            if !steps.is_empty() && step.after + step.lasts > length {
                return steps;
            }
            steps.push(step);
        }
        after += between(APART_MS, draw);
        if after >= length {
            return steps;
        }
    }
}

fn step(kind: Kind, after: Duration, draw: &mut Draw) -> Step {
    let lasts = kind.lasts();
    let lasts = between((lasts.start().as_millis() as u64, lasts.end().as_millis() as u64), draw);
    Step { after, lasts, kind, seed: draw.draw() }
}

fn between((least_ms, most_ms): (u64, u64), draw: &mut Draw) -> Duration {
    Duration::from_millis(draw.between(least_ms, most_ms))
}

fn to_millis(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis() as u64)
}

impl Bout {
    /// About how long it takes.
    pub fn length(&self) -> Duration {
        let acting = self.steps.iter().map(|step| step.after + step.lasts).max().unwrap_or_default();
        acting + BETWEEN + self.calm
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:.1} s", self.kind.name(), self.lasts.as_secs_f64())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut begins = Duration::ZERO;
        for bout in &self.bouts {
            for step in &bout.steps {
                writeln!(f, "{:>7.1} s  {step}", (begins + step.after).as_secs_f64())?;
            }
            begins += bout.length();
            writeln!(f, "{:>7.1} s  calm", begins.saturating_sub(bout.calm).as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
