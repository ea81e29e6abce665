//! What networks, kernels and operators do to a cluster. A family of nemeses has a file; each nemesis is a function that
//! begins, lasts, undoes what it did and proves that it bit. When they act, and on what by chance, is the plan's, and
//! so the seed's; who leads is found out when they act.

mod clock;
mod disk;
mod kind;
mod membership;
mod network;
mod process;
mod schedule;
mod turn;

use onceward_checkers::history::{Nemesis, Record, Recovery, RecoveryFrom};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub use self::kind::{Kind, parse, settings};
pub use self::schedule::{Bout, Order, Plan, Step, plan};
use self::turn::{Bite, Turn};
use crate::{arena::Arena, recorder::Recorder};

/// Plays a plan, and leaves the cluster healed. `progress` is told what begins.
pub async fn play(arena: &mut Arena, plan: &Plan, recorder: &Recorder, progress: &dyn Fn(&str)) {
    for bout in &plan.bouts {
        let alone = bout.steps.len() == 1;
        let began = Instant::now();
        let mut turns = JoinSet::new();
        for (nth, step) in bout.steps.iter().enumerate() {
            sleep_until(began + step.after).await;
            progress(&step.to_string());
            let turn = Turn::new(arena.clone(), recorder.clone(), *step, nth as u64, alone);
            turns.spawn(act(turn));
        }
        turns.join_all().await;
        progress("healing");
        if !alone {
            measure_healing(arena, recorder).await;
        }
        arena.heal().await;
        progress("calm");
        arena.record_hashes().await;
        sleep(bout.calm).await;
    }
    arena.record_hashes().await;
}

async fn act(mut turn: Turn) {
    let (recorder, name) = (turn.recorder.clone(), turn.step.kind.name());
    let from_us = recorder.now_us();
    let Bite { target, effects } = match turn.step.kind {
        Kind::LeaderIsolated => network::leader_isolated(&mut turn).await,
        Kind::RandomHalves => network::random_halves(&mut turn).await,
        Kind::OneWay => network::one_way(&mut turn).await,
        Kind::Bridge => network::bridge(&mut turn).await,
        Kind::SlowLinks => network::slow_links(&mut turn).await,
        Kind::FlakyLinks => network::flaky_links(&mut turn).await,
        Kind::Corrupt => network::corrupt(&mut turn).await,
        Kind::ClientLinks => network::client_links(&mut turn).await,
        Kind::KillOne => process::kill_one(&mut turn).await,
        Kind::KillLeader => process::kill_leader(&mut turn).await,
        Kind::KillAll => process::kill_all(&mut turn).await,
        Kind::PauseLeader => process::pause_leader(&mut turn).await,
        Kind::RollingRestart => process::rolling_restart(&mut turn).await,
        Kind::WallClock => clock::wall_clock(&mut turn).await,
        Kind::WallClockStrobe => clock::wall_clock_strobe(&mut turn).await,
        Kind::ClockRate => clock::clock_rate(&mut turn).await,
        Kind::DiskFull => disk::disk_full(&mut turn).await,
        Kind::SlowFsync => disk::slow_fsync(&mut turn).await,
        Kind::FsyncError => disk::fsync_error(&mut turn).await,
        Kind::Snapshots => disk::snapshots(&mut turn).await,
        Kind::ReplaceNode => membership::replace_node(&mut turn).await,
    };
    let until_us = recorder.now_us();
    recorder.record(Record::Nemesis(Nemesis { from_us, until_us, name: name.to_owned(), target, effects }));
}

/// What many nemeses together left behind, each of which has undone itself.
async fn measure_healing(arena: &Arena, recorder: &Recorder) {
    let from_us = recorder.now_us();
    let took_us = arena.wait_healed().await.as_micros() as u64;
    let nemesis = "combined".to_owned();
    recorder.record(Record::Recovery(Recovery { from_us, took_us, after: RecoveryFrom::Healing, nemesis }));
}
