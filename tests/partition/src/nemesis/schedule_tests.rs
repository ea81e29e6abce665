use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A seed that somebody noted down has to mean the same tomorrow.
#[test]
fn a_seed_means_the_same_plan_for_ever() {
    let in_turn = plan(&[Kind::KillLeader, Kind::SlowLinks], Order::InTurn, seconds(60), 7).to_string();
    assert_eq!(in_turn, include_str!("golden/in-turn.txt"));
    let combined = plan(&Kind::ALL, Order::Combined, seconds(60), 7).to_string();
    assert_eq!(combined, include_str!("golden/combined.txt"));
    assert_ne!(plan(&Kind::ALL, Order::Combined, seconds(60), 8).to_string(), combined);
}

#[test]
fn in_turn_every_kind_acts_in_the_order_given_and_nothing_beside_it() {
    for seed in 0..200 {
        let bouts = plan(&Kind::ALL, Order::InTurn, seconds(600), seed).bouts;
        assert!(bouts.iter().all(|bout| bout.steps.len() == 1 && bout.steps[0].after.is_zero()));
        let first_round: Vec<Kind> = bouts.iter().take(Kind::ALL.len()).map(|bout| bout.steps[0].kind).collect();
        assert_eq!(first_round, Kind::ALL);
        let takes: Duration = bouts.iter().map(Bout::length).sum();
        assert!((seconds(570)..=seconds(600)).contains(&takes), "{takes:?}");
    }
}

#[test]
fn in_turn_a_short_run_shortens_what_acts_but_leaves_nothing_out() {
    let bouts = plan(&Kind::ALL, Order::InTurn, seconds(10), 1).bouts;
    assert_eq!(bouts.len(), Kind::ALL.len());
    for bout in bouts {
        let step = bout.steps[0];
        let least = step.kind.lasts().start().mul_f64(SHORTENED_MIN);
        assert!(step.lasts >= least && step.lasts <= *step.kind.lasts().end(), "{step}");
    }
}

#[test]
fn combined_nothing_overlaps_that_must_not_and_everything_acts() {
    for seed in 0..200 {
        let mut acted = std::collections::BTreeSet::new();
        for bout in plan(&Kind::ALL, Order::Combined, seconds(600), seed).bouts {
            assert!(bout.steps.is_sorted_by_key(|step| step.after));
            for (index, one) in bout.steps.iter().enumerate() {
                acted.insert(one.kind);
                let overlapping: Vec<&Step> =
                    bout.steps[index + 1..].iter().filter(|two| two.after < one.after + one.lasts + SLACK).collect();
                for two in &overlapping {
                    assert!(one.kind.goes_with(two.kind), "seed {seed}: {one} and {two}");
                }
                let destroys = |kind: Kind| matches!(kind, Kind::ReplaceNode);
                assert!(!(destroys(one.kind) && overlapping.iter().any(|two| destroys(two.kind))));
            }
        }
        assert_eq!(acted.len(), Kind::ALL.len(), "seed {seed}");
    }
}

#[test]
fn combined_several_act_at_once() {
    let bouts = plan(&Kind::ALL, Order::Combined, seconds(600), 3).bouts;
    let together = bouts.iter().flat_map(|bout| bout.steps.windows(2));
    let overlapping = together.filter(|pair| pair[1].after < pair[0].after + pair[0].lasts).count();
    assert!(overlapping > bouts.len() * 3, "{overlapping} overlaps in {} bouts", bouts.len());
}
