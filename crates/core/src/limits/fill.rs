//! Fill: how full a bucket is, and the exact arithmetic on it.
//!
//! A token bucket's level is in units of 1/window token, so that each µs brings a whole number of units: `amount`. A
//! sliding window counts in sixteenths of itself. `reserved` are tokens outstanding in grants, which the caller keeps:
//! a token bucket was debited for them already, a sliding window counts them on top.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::{Algorithm, Terms, bounds::WINDOW_US_MAX};
use crate::time::ShardTime;

/// Parts of a sliding window. At worst 1/16 of a window stricter than counting each token's own time.
const SUB_WINDOWS: u64 = 16;
/// Sub-windows that touch the last window: the one that is running, and those 16 before it.
const COUNTERS: usize = SUB_WINDOWS as usize + 1;

/// It says itself in what measure it counts, so that it can be carried over to other terms whatever it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fill {
    /// At capacity, whatever that is: a full bucket is full under any policy.
    #[serde(rename = "f")]
    Full,
    #[serde(rename = "t")]
    Tokens(Tokens),
    #[serde(rename = "w")]
    Window(Window),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// In 1/`window_us` tokens.
    level: u128,
    #[serde(deserialize_with = "window_us")]
    window_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    #[serde(deserialize_with = "window_us")]
    window_us: u64,
    limit: u64,
    /// Index, since the clock's zero, of the sub-window that `counts` begins with.
    newest: u64,
    /// What was taken in sub-windows `newest`, `newest` − 1, …
    counts: [u64; COUNTERS],
}

/// Held to the bounds of [`Terms`]: a level, and the index of a sub-window, are multiplied by it.
fn window_us<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        window_us @ 1..=WINDOW_US_MAX => Ok(window_us),
        window_us => Err(D::Error::custom(format_args!("a window of {window_us} µs"))),
    }
}

impl Tokens {
    fn brim(terms: &Terms, reserved: u64) -> u128 {
        u128::from(terms.burst().saturating_sub(reserved)) * u128::from(terms.window_us())
    }

    fn units(&self, tokens: u64) -> u128 {
        u128::from(tokens) * u128::from(self.window_us)
    }

    fn whole(&self) -> u64 {
        u64::try_from(self.level / u128::from(self.window_us)).unwrap_or(u64::MAX)
    }

    /// The same level in another measure, rounded down. Whole tokens and the rest apart, so that nothing overflows.
    fn rescale(&mut self, window_us: u64) {
        if window_us != self.window_us {
            let (from, to) = (u128::from(self.window_us), u128::from(window_us));
            self.level = (self.level / from).saturating_mul(to).saturating_add((self.level % from) * to / from);
            self.window_us = window_us;
        }
    }
}

impl Window {
    fn empty(terms: &Terms, at: ShardTime) -> Window {
        let newest = Window::index(terms.window_us(), at);
        Window { window_us: terms.window_us(), limit: terms.burst(), newest, counts: [0; COUNTERS] }
    }

    fn index(window_us: u64, at: ShardTime) -> u64 {
        u64::try_from(u128::from(at.0) * u128::from(SUB_WINDOWS) / u128::from(window_us)).unwrap_or(u64::MAX)
    }

    /// The first instant at which what was taken in sub-window `index` doesn't count any more.
    fn released_at(&self, index: u64) -> ShardTime {
        let end = u128::from(index) + COUNTERS as u128;
        let at = (end * u128::from(self.window_us)).div_ceil(u128::from(SUB_WINDOWS));
        ShardTime(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// Moves on to the sub-window that runs at `at`; what has left the window is dropped.
    fn turn_to(&mut self, at: ShardTime) {
        let index = Window::index(self.window_us, at);
        let steps = usize::try_from(index.saturating_sub(self.newest)).unwrap_or(COUNTERS).min(COUNTERS);
        self.counts.copy_within(..COUNTERS - steps, steps);
        self.counts[..steps].fill(0);
        self.newest = self.newest.max(index);
    }

    fn counted(&self, at: ShardTime) -> u64 {
        let index = Window::index(self.window_us, at);
        let steps = usize::try_from(index.saturating_sub(self.newest)).unwrap_or(COUNTERS).min(COUNTERS);
        self.counts[..COUNTERS - steps].iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    fn left(&self, at: ShardTime, reserved: u64) -> u64 {
        self.limit.saturating_sub(self.counted(at)).saturating_sub(reserved)
    }

    fn count(&mut self, at: ShardTime, tokens: u64) {
        self.turn_to(at);
        self.counts[0] = self.counts[0].saturating_add(tokens);
    }

    /// Takes back up to `tokens` of what was counted at `taken_at` or later (a policy change may have moved it), the
    /// oldest first; what has left the window came back by itself.
    fn uncount(&mut self, at: ShardTime, taken_at: ShardTime, tokens: u64) -> u64 {
        self.turn_to(at);
        let age = self.newest.saturating_sub(Window::index(self.window_us, taken_at));
        let Some(oldest) = usize::try_from(age).ok().filter(|&age| age < COUNTERS) else { return 0 };
        let mut left = tokens;
        for count in self.counts[..=oldest].iter_mut().rev() {
            let back = left.min(*count);
            *count -= back;
            left -= back;
        }
        tokens - left
    }
}

impl Fill {
    /// At capacity but for what is reserved.
    pub(super) fn brimful(terms: &Terms, at: ShardTime, reserved: u64) -> Fill {
        match terms.algorithm() {
            _ if reserved == 0 => Fill::Full,
            Algorithm::TokenBucket => {
                Fill::Tokens(Tokens { level: Tokens::brim(terms, reserved), window_us: terms.window_us() })
            }
            Algorithm::SlidingWindow => Fill::Window(Window::empty(terms, at)),
        }
    }

    /// Used up at `at`.
    pub(super) fn used_up(terms: &Terms, at: ShardTime) -> Fill {
        match terms.algorithm() {
            Algorithm::TokenBucket => Fill::Tokens(Tokens { level: 0, window_us: terms.window_us() }),
            Algorithm::SlidingWindow => {
                let mut window = Window::empty(terms, at);
                window.count(at, terms.burst());
                Fill::Window(window)
            }
        }
    }

    /// Lets `us` pass. A sliding window needs no help for that: its counts age by their index.
    pub(super) fn refill(&mut self, terms: &Terms, us: u64, reserved: u64) {
        if let Fill::Tokens(tokens) = self {
            let gained = u128::from(terms.amount()) * u128::from(us);
            tokens.level = tokens.level.saturating_add(gained).min(Tokens::brim(terms, reserved));
        }
    }

    /// Whole tokens that can be taken.
    pub(super) fn left(&self, terms: &Terms, at: ShardTime, reserved: u64) -> u64 {
        match self {
            Fill::Full => terms.burst().saturating_sub(reserved),
            Fill::Tokens(tokens) => tokens.whole(),
            Fill::Window(window) => window.left(at, reserved),
        }
    }

    /// Takes tokens, of which there must be enough.
    pub(super) fn take(&mut self, terms: &Terms, at: ShardTime, cost: u64) {
        self.open(terms, at);
        match self {
            Fill::Full => {}
            Fill::Tokens(tokens) => tokens.level = tokens.level.saturating_sub(tokens.units(cost)),
            Fill::Window(window) => window.count(at, cost),
        }
    }

    /// Sets tokens aside for a grant, which the caller adds to `reserved`.
    pub(super) fn set_aside(&mut self, terms: &Terms, at: ShardTime, granted: u64) {
        self.open(terms, at);
        if let Fill::Tokens(tokens) = self {
            tokens.level = tokens.level.saturating_sub(tokens.units(granted));
        }
    }

    /// Tokens of a grant that ended are spent, as of `at`: `reserved` no longer has them.
    pub(super) fn spend_aside(&mut self, at: ShardTime, tokens: u64) {
        if let Fill::Window(window) = self {
            window.count(at, tokens);
        }
    }

    /// Tokens of a grant go back unspent. `terms`: `None` while the key is denied, when the capacity isn't known; it is
    /// cut to it later.
    pub(super) fn put_back(&mut self, terms: Option<&Terms>, tokens: u64, reserved: u64) {
        if let Fill::Tokens(own) = self {
            own.level = own.level.saturating_add(own.units(tokens));
            if let Some(terms) = terms {
                own.level = own.level.min(Tokens::brim(terms, reserved));
            }
        }
    }

    /// Gives back what was taken at `taken_at`, as far as there is room. Returns how many tokens arrived, a part of one
    /// counted as one: a bucket has refilled a little since, and what is told must not be less than what was given.
    pub(super) fn refund(
        &mut self,
        terms: &Terms,
        at: ShardTime,
        taken_at: ShardTime,
        cost: u64,
        reserved: u64,
    ) -> u64 {
        match self {
            Fill::Full => 0,
            Fill::Tokens(tokens) => {
                let room = Tokens::brim(terms, reserved).saturating_sub(tokens.level);
                let given = tokens.units(cost).min(room);
                tokens.level = tokens.level.saturating_add(given);
                u64::try_from(given.div_ceil(u128::from(tokens.window_us))).unwrap_or(cost)
            }
            Fill::Window(window) => window.uncount(at, taken_at, cost),
        }
    }

    /// A bucket at capacity with nothing reserved becomes [`Fill::Full`], so that other terms find it full.
    pub(super) fn note_if_full(&mut self, terms: &Terms, at: ShardTime) {
        let full = match self {
            Fill::Full => true,
            Fill::Tokens(tokens) => tokens.level >= Tokens::brim(terms, 0),
            Fill::Window(window) => window.counted(at) == 0,
        };
        if full {
            *self = Fill::Full;
        }
    }

    /// Other terms come into force. The whole tokens left stay (between token buckets their fraction too), cut to the
    /// new capacity and never topped up.
    pub(super) fn change(&mut self, to: &Terms, at: ShardTime, reserved: u64) {
        let (left, counted) = match self {
            Fill::Full => return,
            Fill::Tokens(tokens) => (tokens.whole(), 0),
            Fill::Window(window) => (window.left(at, reserved), window.counted(at)),
        };
        let owed = to.burst().saturating_sub(left).saturating_sub(reserved);
        match (&mut *self, to.algorithm()) {
            (Fill::Tokens(tokens), Algorithm::TokenBucket) => {
                tokens.rescale(to.window_us());
                tokens.level = tokens.level.min(Tokens::brim(to, reserved));
            }
            (_, Algorithm::TokenBucket) => {
                let mut tokens = Tokens { level: 0, window_us: to.window_us() };
                tokens.level = tokens.units(left).min(Tokens::brim(to, reserved));
                *self = Fill::Tokens(tokens);
            }
            (Fill::Window(window), Algorithm::SlidingWindow) if window.window_us == to.window_us() => {
                window.limit = to.burst();
                window.count(at, owed.saturating_sub(counted));
            }
            // Counts of another measure all move into the sub-window that runs now.
            (_, Algorithm::SlidingWindow) => {
                let mut window = Window::empty(to, at);
                window.count(at, owed.max(counted));
                *self = Fill::Window(window);
            }
        }
    }

    /// Cuts what is left to `burst`, and lets nothing come back from `at` to `until`.
    pub(super) fn freeze(&mut self, burst: u64, at: ShardTime, until: ShardTime, reserved: u64) {
        match self {
            Fill::Full => {}
            Fill::Tokens(tokens) => tokens.level = tokens.level.min(tokens.units(burst.saturating_sub(reserved))),
            Fill::Window(window) => {
                let (left, counted) = (window.left(at, reserved), window.counted(at));
                window.limit = window.limit.min(burst);
                let owed = window.limit.saturating_sub(left).saturating_sub(reserved);
                window.counts = [0; COUNTERS];
                window.count(until, owed.max(counted));
            }
        }
    }

    /// µs from `at` until `tokens` can be taken if nobody else takes any; `None` when that never comes. `lapses` are the
    /// outstanding grants by ascending end, each counting as spent when it ends.
    pub(super) fn wait_us(
        &self,
        terms: &Terms,
        at: ShardTime,
        tokens: u64,
        reserved: u64,
        lapses: impl Iterator<Item = (ShardTime, u64)>,
    ) -> Option<u64> {
        if tokens > terms.burst() {
            return None;
        }
        match self {
            Fill::Full => Some(0),
            Fill::Tokens(own) => own.wait_us(terms, at, tokens, reserved, lapses),
            Fill::Window(own) => own.wait_us(at, tokens, reserved, lapses),
        }
    }

    fn open(&mut self, terms: &Terms, at: ShardTime) {
        if *self == Fill::Full {
            *self = match terms.algorithm() {
                Algorithm::TokenBucket => {
                    Fill::Tokens(Tokens { level: Tokens::brim(terms, 0), window_us: terms.window_us() })
                }
                Algorithm::SlidingWindow => Fill::Window(Window::empty(terms, at)),
            };
        }
    }
}

impl Tokens {
    fn wait_us(
        &self,
        terms: &Terms,
        at: ShardTime,
        tokens: u64,
        mut reserved: u64,
        mut lapses: impl Iterator<Item = (ShardTime, u64)>,
    ) -> Option<u64> {
        let wanted = self.units(tokens);
        let amount = u128::from(terms.amount());
        let (mut level, mut now) = (self.level, at);
        loop {
            if level >= wanted {
                return Some(now.since_us(at));
            }
            let lapse = lapses.next();
            let brim = Tokens::brim(terms, reserved);
            if amount > 0 && wanted <= brim {
                let wait_us = u64::try_from((wanted - level).div_ceil(amount)).unwrap_or(u64::MAX);
                let reached = now.plus_us(wait_us);
                if lapse.is_none_or(|(ends_at, _)| reached <= ends_at) {
                    return Some(now.since_us(at).saturating_add(wait_us));
                }
            }
            let (ends_at, spent) = lapse?;
            level = level.saturating_add(amount * u128::from(ends_at.since_us(now))).min(brim);
            reserved = reserved.saturating_sub(spent);
            now = now.max(ends_at);
        }
    }
}

impl Window {
    fn wait_us(
        &self,
        at: ShardTime,
        tokens: u64,
        reserved: u64,
        lapses: impl Iterator<Item = (ShardTime, u64)>,
    ) -> Option<u64> {
        let used = self.counted(at).saturating_add(reserved);
        let mut excess = used.saturating_add(tokens).saturating_sub(self.limit);
        if excess == 0 {
            return Some(0);
        }
        // A grant ends after now, so what it spent leaves the window after all that is counted already.
        let counted = (0..COUNTERS).rev().filter_map(|age| {
            let index = self.newest.checked_sub(age as u64)?;
            let released_at = self.released_at(index);
            (released_at > at).then_some((released_at, self.counts[age]))
        });
        let spent = lapses.map(|(ends_at, tokens)| (self.released_at(Window::index(self.window_us, ends_at)), tokens));
        for (released_at, tokens) in counted.chain(spent) {
            excess = excess.saturating_sub(tokens);
            if excess == 0 {
                return Some(released_at.since_us(at));
            }
        }
        None
    }
}
