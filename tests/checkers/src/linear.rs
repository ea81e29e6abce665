//! Linearizability of one object, by just-in-time linearization (after Lowe, "Testing for linearizability", 2017).
//!
//! Walks invocations and returns in order of time and keeps every configuration (state of the object, calls under way that
//! took effect already) that explains what was answered so far. A call takes effect at the latest when it returns. Work
//! grows with what is under way at once and not with the length of the history, so nobody has to cut histories into
//! pieces; models may be nondeterministic and see time, as leases need; and the first answer that nothing explains is known.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Steps of the model that one object may cost: some seconds at most. What is not decided by then is undecided.
const STEPS_MAX: usize = 1_000_000;
/// Calls that may be under way at once, those of unknown outcome included, which stay so to the end.
const SLOTS: usize = u128::BITS as usize;

/// A sequential object.
pub(crate) trait Model {
    type Call;
    type State: Clone + Eq + Hash;

    fn initial(&self) -> Self::State;

    /// The states in which `call`, with the outcome that it had, may leave the object when it takes effect not later than
    /// `until_us`. None: it cannot have had this outcome.
    fn step(&self, state: &Self::State, call: &Self::Call, until_us: u64) -> Vec<Self::State>;
}

/// A call and the time in which it took effect. Without a return it may take effect at any later time, or never.
#[derive(Debug)]
pub(crate) struct Span<C> {
    pub invoked_us: u64,
    pub returned_us: Option<u64>,
    pub call: C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    Linearizable,
    /// No order explains all answers up to that of the call at this place.
    Violated(usize),
    /// Too much was under way at once.
    Undecided,
}

struct Configuration<S> {
    state: S,
    /// Slots of calls under way that have taken effect.
    done: u128,
}

pub(crate) fn judge<M: Model>(model: &M, spans: &[Span<M::Call>]) -> Judgement {
    let mut search = Search {
        model,
        spans,
        slots: vec![None; SLOTS],
        open: 0,
        steps_left: STEPS_MAX,
        configurations: vec![Configuration { state: model.initial(), done: 0 }],
    };
    for event in events(spans) {
        match event {
            Event::Invoked(at) => {
                let Some(slot) = search.slots.iter().position(Option::is_none) else { return Judgement::Undecided };
                search.slots[slot] = Some(at);
                search.open |= u128::from(spans[at].returned_us.is_none()) << slot;
            }
            Event::Returned { at, at_us } => match search.finish(at, at_us) {
                None => return Judgement::Undecided,
                Some(0) => return Judgement::Violated(at),
                Some(_) => {}
            },
        }
    }
    Judgement::Linearizable
}

enum Event {
    Invoked(usize),
    Returned { at: usize, at_us: u64 },
}

/// In order of time; at the same microsecond calls begin before others end, as nobody knows better.
fn events<C>(spans: &[Span<C>]) -> impl Iterator<Item = Event> {
    let mut events = Vec::with_capacity(spans.len() * 2);
    for (at, span) in spans.iter().enumerate() {
        events.push((span.invoked_us, 0, at));
        events.extend(span.returned_us.map(|returned_us| (returned_us, 1, at)));
    }
    events.sort_unstable();
    events.into_iter().map(|(at_us, kind, at)| match kind {
        0 => Event::Invoked(at),
        _ => Event::Returned { at, at_us },
    })
}

struct Search<'a, M: Model> {
    model: &'a M,
    spans: &'a [Span<M::Call>],
    /// Calls under way.
    slots: Vec<Option<usize>>,
    /// Slots of calls that never return.
    open: u128,
    steps_left: usize,
    configurations: Vec<Configuration<M::State>>,
}

impl<M: Model> Search<'_, M> {
    /// Keeps what explains that the call has taken effect by now, and how much that is; `None` when it takes too long.
    fn finish(&mut self, call: usize, now_us: u64) -> Option<usize> {
        let slot = self.slots.iter().position(|taken| *taken == Some(call)).expect("it was invoked before");
        let bit = 1_u128 << slot;
        let (mut seen, mut finished) = (Frontier::new(self.open), Frontier::new(self.open));
        let mut waiting: VecDeque<_> = std::mem::take(&mut self.configurations).into();
        while let Some(configuration) = waiting.pop_front() {
            if configuration.done & bit != 0 {
                let done = configuration.done & !bit;
                if finished.gains(&configuration.state, done) {
                    self.configurations.push(Configuration { done, ..configuration });
                }
                continue;
            }
            for (other, at) in self.slots.iter().enumerate() {
                let Some(at) = at.filter(|_| configuration.done & (1 << other) == 0) else { continue };
                self.steps_left = self.steps_left.checked_sub(1)?;
                let done = configuration.done | 1 << other;
                for state in self.model.step(&configuration.state, &self.spans[at].call, now_us) {
                    if seen.gains(&state, done) {
                        waiting.push_back(Configuration { state, done });
                    }
                }
            }
        }
        self.slots[slot] = None;
        Some(self.configurations.len())
    }
}

/// Configurations that were found. One is needless where another one, alike, gets by with fewer of the calls that may also
/// never take effect.
struct Frontier<S> {
    open: u128,
    least: HashMap<(S, u128), Vec<u128>>,
}

impl<S: Clone + Eq + Hash> Frontier<S> {
    fn new(open: u128) -> Frontier<S> {
        Frontier { open, least: HashMap::new() }
    }

    /// Takes the configuration in, unless it is needless.
    fn gains(&mut self, state: &S, done: u128) -> bool {
        let needs = done & self.open;
        let others = self.least.entry((state.clone(), done & !self.open)).or_default();
        let gains = others.iter().all(|other| other & needs != *other);
        if gains {
            others.retain(|other| other & needs != needs);
            others.push(needs);
        }
        gains
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A register of a number: writes, and reads of what they say.
    struct Register;

    #[derive(Debug)]
    enum Access {
        Write(u8),
        Read(u8),
    }

    impl Model for Register {
        type Call = Access;
        type State = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn step(&self, state: &u8, call: &Access, _until_us: u64) -> Vec<u8> {
            match call {
                Access::Write(value) => vec![*value],
                Access::Read(value) if value == state => vec![*value],
                Access::Read(_) => Vec::new(),
            }
        }
    }

    fn span(invoked_us: u64, returned_us: impl Into<Option<u64>>, call: Access) -> Span<Access> {
        Span { invoked_us, returned_us: returned_us.into(), call }
    }

    use Access::{Read, Write};

    #[test]
    fn calls_under_way_at_once_take_effect_in_any_order() {
        let history = [span(0, 9, Write(1)), span(1, 8, Write(2)), span(10, 11, Read(1)), span(12, 13, Read(1))];
        assert_eq!(judge(&Register, &history), Judgement::Linearizable);
    }

    #[test]
    fn a_read_that_goes_back_is_told() {
        let history = [span(0, 9, Write(1)), span(1, 2, Read(1)), span(3, 4, Read(0))];
        assert_eq!(judge(&Register, &history), Judgement::Violated(2));
    }

    #[test]
    fn a_call_of_unknown_outcome_takes_effect_late_or_never_but_once() {
        let history =
            |last| [span(0, None, Write(1)), span(1, 2, Read(0)), span(3, 4, Write(2)), span(5, 6, Read(last))];
        assert_eq!(judge(&Register, &history(1)), Judgement::Linearizable);
        assert_eq!(judge(&Register, &history(2)), Judgement::Linearizable);
        assert_eq!(judge(&Register, &history(0)), Judgement::Violated(3));
        let twice = [
            span(0, None, Write(1)),
            span(1, 2, Read(1)),
            span(3, 4, Write(2)),
            span(5, 6, Read(2)),
            span(7, 8, Read(1)),
        ];
        assert_eq!(judge(&Register, &twice), Judgement::Violated(4));
    }

    #[test]
    fn too_many_calls_under_way_are_undecided() {
        let history: Vec<_> = (0..200).map(|_| span(0, None, Write(1))).collect();
        assert_eq!(judge(&Register, &history), Judgement::Undecided);
    }

    /// By trying all orders.
    fn is_linearizable(state: u8, left: &[&Span<Access>]) -> bool {
        // A call may be next if no other one returned before it began.
        let may_be_next = |next: &Span<Access>| {
            !left.iter().any(|other| other.returned_us.is_some_and(|returned_us| returned_us < next.invoked_us))
        };
        left.iter().all(|span| span.returned_us.is_none())
            || left.iter().enumerate().filter(|(_, next)| may_be_next(next)).any(|(place, next)| {
                let others: Vec<_> = left.iter().enumerate().filter(|(at, _)| *at != place).map(|(_, s)| *s).collect();
                Register.step(&state, &next.call, 0).into_iter().any(|state| is_linearizable(state, &others))
            })
    }

    fn any_span() -> impl Strategy<Value = Span<Access>> {
        let call = (any::<bool>(), 0..3_u8).prop_map(|(write, value)| if write { Write(value) } else { Read(value) });
        (0..8_u64, 0..6_u64, prop::bool::weighted(0.25), call).prop_map(|(invoked_us, took_us, unknown, call)| {
            let open = unknown && matches!(call, Write(_));
            Span { invoked_us, returned_us: (!open).then_some(invoked_us + took_us), call }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_judgement_is_that_of_trying_all_orders(spans in prop::collection::vec(any_span(), 0..7)) {
            let expected = is_linearizable(0, &spans.iter().collect::<Vec<_>>());
            prop_assert_eq!(judge(&Register, &spans) == Judgement::Linearizable, expected);
        }
    }
}
