//! The story: limits, payments and their webhooks; then a leader dies and all of it is done again.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, ensure};

use crate::{
    cluster::Cluster,
    heading, limits,
    payments::{self, Remembered},
    shop::Shop,
    webhooks::{self, Watch},
};

pub async fn tell(urls: &[String], script: Option<PathBuf>, payments_binary: PathBuf) -> Result<()> {
    let began = Instant::now();
    let mut cluster = Arc::new(Cluster::reach(urls, script).await?);
    println!("Onceward, {}", cluster.describe());
    limits::write_policies(&cluster).await?;
    let shop = Shop::open(payments_binary, cluster.urls(), payments::POLICY)?;

    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let caller = format!("alice-{run:x}");
    let shard = cluster.shard_of(limits::API, &caller);
    let account = account_on(&cluster, shard, &format!("shop-{run:x}"));
    limits::everything(&cluster, &caller).await?;
    let remembered = payments::everything(&shop, &account).await?;
    let mut watch = webhooks::subscribe(&cluster, &shop, &account).await?;
    watch.fail(&shop).await?;

    let inner = Arc::get_mut(&mut cluster).expect("the burst is over");
    if !inner.can_kill() {
        println!("\n(No leader is killed: there is no script that could start it again.)");
        return watch.mend(&shop).await;
    }
    let leader = inner.leader(shard).await?;
    heading(&format!(
        "The leader dies: node {leader} leads shard {shard}, where {caller}'s bucket, {account}'s keys and its webhooks are; \
         kill -9"
    ));
    inner.kill(leader)?;
    let before = Before { caller, account, remembered, watch };
    let outcome = after_the_kill(&mut cluster, &shop, before, shard, run).await;
    let inner = Arc::get_mut(&mut cluster).expect("nobody else holds it");
    inner.start_again()?;
    outcome?;
    println!("\nNode {leader} is back. All as promised, in {:.0} s.", began.elapsed().as_secs_f64());
    Ok(())
}

/// What was done before the leader died.
struct Before {
    caller: String,
    account: String,
    remembered: Remembered,
    watch: Watch,
}

async fn after_the_kill(cluster: &mut Arc<Cluster>, shop: &Shop, before: Before, shard: u16, run: u128) -> Result<()> {
    let Before { caller, account, remembered, mut watch } = before;
    let (caller, account) = (caller.as_str(), account.as_str());
    let (waited, refused) = cluster.wait_served(limits::API, caller).await?;
    println!("  asked at once and again when told 503: served after {:.1} s and {refused} × 503", waited.as_secs_f64());
    let (address, endpoint) = (limits::address_of(caller), limits::endpoint_of(caller));
    cluster.wait_served(limits::BY_ENDPOINT, &endpoint).await?;
    cluster.wait_served(limits::BY_ADDRESS, &address).await?;
    let spent = cluster.peek(0, limits::BY_ENDPOINT, &endpoint).await?;
    ensure!(spent.result("remaining") == 0, "the endpoint's limit was spent before: {}", spent.body);
    println!("  the endpoint's limit from before is still spent: nothing was forgotten");
    cluster.wait_served(payments::POLICY, account).await?;
    payments::still_remembered(shop, account, &remembered).await?;
    watch.mend(shop).await?;

    let another = (0..)
        .map(|n| format!("bob-{run:x}-{n}"))
        .find(|key| cluster.shard_of(limits::API, key) == shard)
        .expect("some key lives there");
    let account = account_on(cluster, shard, &format!("store-{run:x}"));
    println!("\nNow everything again, for {another} and {account} on the same shard.");
    for (policy, key) in [(limits::BY_KEY, another.as_str()), (payments::POLICY, account.as_str())] {
        cluster.wait_served(policy, key).await?;
    }
    limits::everything(cluster, &another).await?;
    payments::everything(shop, &account).await?;
    webhooks::subscribe(cluster, shop, &account).await?;
    Ok(())
}

/// The first account called like this whose keys live on that shard.
fn account_on(cluster: &Cluster, shard: u16, prefix: &str) -> String {
    (0..)
        .map(|n| format!("{prefix}-{n}"))
        .find(|account| cluster.shard_of_account(account) == shard)
        .expect("some account lives there")
}
