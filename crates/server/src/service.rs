//! What the API calls: the node, as a trait, so that the API is tested in-process over a service that answers by
//! script. The methods are the node's, one to one; nothing is decided here.

use futures::future::BoxFuture;
use onceward_core::{
    cluster::{NodeId, ShardId},
    idempotency::{
        AbandonCommand, AbandonReply, Account, CompleteCommand, CompleteReply, DeleteRecordCommand, DeleteRecordReply,
        ExtendCommand, ExtendReply, Key, RecordPage, RecordState, RecordView,
    },
    limits::{Policy, PolicyName, PolicySpec, RefundCommand, RefundReply, ResetCommand, ResetReply},
    system::NodeReply,
    webhooks::{AppView, Page, PageIn, WebhookAnswer, WebhookQuery, WebhookReply},
};
use tokio::time::Instant;

use onceward_shard::{
    BeginAnswer, BeginRequest, CheckAnswer, CheckError, CheckRequest, ClusterStatus, NodeStats, PolicyWrite, Readiness,
    ServiceError, WebhookCall,
};

/// The result of a call that may have been refused, or lost.
pub type Served<'a, T> = BoxFuture<'a, Result<T, ServiceError>>;

pub trait Service: Send + Sync + 'static {
    fn check(&self, request: CheckRequest) -> BoxFuture<'_, Result<CheckAnswer, CheckError>>;
    fn refund(&self, command: RefundCommand, deadline: Instant) -> Served<'_, RefundReply>;
    fn reset(&self, command: ResetCommand, deadline: Instant) -> Served<'_, ResetReply>;
    fn begin(&self, request: BeginRequest) -> Served<'_, BeginAnswer>;
    fn complete(&self, command: CompleteCommand, deadline: Instant) -> Served<'_, CompleteReply>;
    fn abandon(&self, command: AbandonCommand, deadline: Instant) -> Served<'_, AbandonReply>;
    fn extend(&self, command: ExtendCommand, deadline: Instant) -> Served<'_, ExtendReply>;
    fn record(&self, account: Account, key: Key, deadline: Instant) -> Served<'_, Option<RecordView>>;
    /// A page of records behind the key `after`.
    fn records(
        &self,
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
        deadline: Instant,
    ) -> Served<'_, RecordPage>;
    fn delete_record(&self, command: DeleteRecordCommand, deadline: Instant) -> Served<'_, DeleteRecordReply>;
    fn put_policy(&self, name: PolicyName, spec: PolicySpec, deadline: Instant) -> Served<'_, PolicyWrite>;
    /// `None`: there is no such policy; otherwise the shards that don't know of the deletion yet.
    fn delete_policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Vec<ShardId>>>;
    fn policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Policy>>;
    fn policies(&self, deadline: Instant) -> Served<'_, Vec<Policy>>;
    fn webhook(&self, call: WebhookCall, deadline: Instant) -> Served<'_, WebhookReply>;
    fn webhook_query(&self, query: WebhookQuery, deadline: Instant) -> Served<'_, WebhookAnswer>;
    /// A page of all applications, whatever shard they are on.
    fn apps(&self, page: PageIn, deadline: Instant) -> Served<'_, Page<AppView>>;
    fn cluster(&self, state_hash: bool) -> BoxFuture<'_, ClusterStatus>;
    fn replace(&self, node: NodeId, deadline: Instant) -> Served<'_, NodeReply>;
    fn readiness(&self) -> Readiness;
    fn stats(&self) -> NodeStats;
}
