//! Seeded decisions: the same seed and name draw the same numbers on any machine, so that a run can be repeated as far as
//! its decisions go. Not for secrets.

/// SplitMix64: every state is followed by another one, and none is bad to begin with.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Who draws under different names draws differently, whatever others draw.
    pub fn new(seed: u64, name: &str) -> Draw {
        let mut draw = Draw(seed);
        for byte in name.bytes() {
            draw.0 = draw.draw() ^ u64::from(byte);
        }
        draw
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 … `bound` − 1, even enough for bounds as small as ours; `bound` is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Both ends included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them; there is at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).expect("an index fits")]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = usize::try_from(self.below(end as u64 + 1)).expect("an index fits");
            items.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn a_seed_draws_the_same_for_ever_and_names_draw_apart() {
        let of = |seed, name| {
            let mut draw = Draw::new(seed, name);
            [draw.draw(), draw.draw()]
        };
        assert_eq!(of(7, "limits"), of(7, "limits"));
        assert_ne!(of(7, "limits"), of(7, "limit"));
        assert_ne!(of(7, "limits"), of(8, "limits"));
        assert_eq!(Draw(0).draw(), 0xe220_a839_7b1d_cdaf, "the published first number of SplitMix64");
    }
}
