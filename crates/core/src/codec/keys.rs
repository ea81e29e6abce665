//! Row keys, one encoder per kind of row; nobody else puts key bytes together.
//!
//! A key opens with the kind's tag. Variable parts that something follows stand behind their length, so that policy
//! `a_b` with key `c` never meets policy `a` with key `b_c`. Integers are big-endian: key order is number order.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    cluster::NodeId,
    limits::HoldId,
    time::ShardTime,
    webhooks::{AppId, DeliveryAttemptId, DueItem, EndpointId, EndpointKey, Id, MessageId},
};

/// The kinds of rows of [`crate::rows::Table::State`]. Tags are never used again for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The shard clock.
    Clock = 1,
    /// Data shards: the revision up to which policies were copied.
    SyncedRevision = 2,
    /// Data shards: a policy with its latest changes.
    PolicyChain = 3,
    Bucket = 4,
    /// A request_id admitted on a bucket.
    AdmittedId = 5,
    Hold = 6,
    /// System shard: counts and the newest revision.
    PolicyTotals = 7,
    /// System shard: a policy by name, or its tombstone.
    Policy = 8,
    /// System shard: the name of the policy that a revision changed.
    Revision = 9,
    Manifest = 10,
    Node = 11,
    /// An idempotency record.
    Record = 12,
    /// Data shards: the newest fencing token.
    Tokens = 13,
    /// An idempotency record that is indeterminate: its row's key, behind this tag.
    Indeterminate = 14,
    /// The response of a completed idempotency record: its row's key, behind this tag.
    Response = 15,
    /// Data shards: the newest id that was made.
    Ids = 16,
    /// An application, by age.
    App = 17,
    /// The application that has a uid.
    AppUid = 18,
    /// An endpoint, under its application, like all rows of an application below.
    Endpoint = 19,
    EndpointUid = 20,
    /// What changes of an endpoint with each message.
    EndpointState = 21,
    Message = 22,
    Payload = 23,
    /// The message that has an event id.
    EventId = 24,
    /// A message for an endpoint.
    Delivery = 25,
    /// A pending delivery, by endpoint and time.
    Due = 26,
    /// An attempt, by message.
    Attempt = 27,
    /// An attempt, by endpoint.
    AttemptOfEndpoint = 28,
    /// The answer of a call with an `idempotency-key`.
    Request = 29,
    /// An application or endpoint that was deleted, and whose rows are being removed.
    Clearing = 30,
    /// System shard: an event type.
    EventType = 31,
    /// System shard: how many event types there are.
    EventTypes = 32,
    /// The revision of the operational endpoints.
    OperationalRevision = 33,
}

impl Kind {
    /// The kind of a row by its key.
    pub fn of(key: &[u8]) -> Option<Kind> {
        const KINDS: [Kind; 33] = [
            Kind::Clock,
            Kind::SyncedRevision,
            Kind::PolicyChain,
            Kind::Bucket,
            Kind::AdmittedId,
            Kind::Hold,
            Kind::PolicyTotals,
            Kind::Policy,
            Kind::Revision,
            Kind::Manifest,
            Kind::Node,
            Kind::Record,
            Kind::Tokens,
            Kind::Indeterminate,
            Kind::Response,
            Kind::Ids,
            Kind::App,
            Kind::AppUid,
            Kind::Endpoint,
            Kind::EndpointUid,
            Kind::EndpointState,
            Kind::Message,
            Kind::Payload,
            Kind::EventId,
            Kind::Delivery,
            Kind::Due,
            Kind::Attempt,
            Kind::AttemptOfEndpoint,
            Kind::Request,
            Kind::Clearing,
            Kind::EventType,
            Kind::EventTypes,
            Kind::OperationalRevision,
        ];
        let tag = *key.first()?;
        KINDS.into_iter().find(|&kind| kind as u8 == tag)
    }

    /// What all keys of this kind begin with.
    pub const fn prefix(self) -> [u8; 1] {
        [self as u8]
    }
}

const REVISION_LEN: usize = 1 + size_of::<u64>();
const NODE_LEN: usize = 1 + size_of::<u16>();
const HOLD_LEN: usize = 1 + size_of::<u128>();
const DUE_LEN: usize = size_of::<u64>();
const DELIVERY_DUE_LEN: usize = 1 + 3 * Id::LEN + size_of::<u64>();

const _: () = assert!(REVISION_LEN == 9 && NODE_LEN == 3 && HOLD_LEN == 17 && DUE_LEN == 8);

/// The keys of rows of which a shard has one.
pub static CLOCK: Bytes = Bytes::from_static(&[Kind::Clock as u8]);
pub static SYNCED_REVISION: Bytes = Bytes::from_static(&[Kind::SyncedRevision as u8]);
pub static POLICY_TOTALS: Bytes = Bytes::from_static(&[Kind::PolicyTotals as u8]);
pub static MANIFEST: Bytes = Bytes::from_static(&[Kind::Manifest as u8]);
pub static TOKENS: Bytes = Bytes::from_static(&[Kind::Tokens as u8]);
pub static IDS: Bytes = Bytes::from_static(&[Kind::Ids as u8]);
pub static EVENT_TYPES: Bytes = Bytes::from_static(&[Kind::EventTypes as u8]);
pub static OPERATIONAL_REVISION: Bytes = Bytes::from_static(&[Kind::OperationalRevision as u8]);

pub fn policy_chain(name: &str) -> Bytes {
    named(Kind::PolicyChain, name)
}

pub fn policy(name: &str) -> Bytes {
    named(Kind::Policy, name)
}

pub fn bucket(policy: &str, key: &str) -> Bytes {
    let mut bytes = open(Kind::Bucket, 1 + policy.len() + key.len());
    put_policy(&mut bytes, policy);
    bytes.put_slice(key.as_bytes());
    bytes.freeze()
}

pub fn admitted_id(policy: &str, key: &str, request_id: &str) -> Bytes {
    let mut bytes = open(Kind::AdmittedId, 5 + policy.len() + key.len() + request_id.len());
    put_policy(&mut bytes, policy);
    bytes.put_u32(u32::try_from(key.len()).expect("a log entry is far smaller than 4 GiB"));
    bytes.put_slice(key.as_bytes());
    bytes.put_slice(request_id.as_bytes());
    bytes.freeze()
}

pub fn hold(id: HoldId) -> Bytes {
    let mut bytes = open(Kind::Hold, HOLD_LEN - 1);
    bytes.put_u128(id.0);
    debug_assert_eq!(bytes.len(), HOLD_LEN);
    bytes.freeze()
}

pub fn revision(revision: u64) -> Bytes {
    let mut bytes = open(Kind::Revision, REVISION_LEN - 1);
    bytes.put_u64(revision);
    debug_assert_eq!(bytes.len(), REVISION_LEN);
    bytes.freeze()
}

pub fn node(id: NodeId) -> Bytes {
    let mut bytes = open(Kind::Node, NODE_LEN - 1);
    bytes.put_u16(id.0);
    debug_assert_eq!(bytes.len(), NODE_LEN);
    bytes.freeze()
}

pub fn record(account: &str, key: &str) -> Bytes {
    let mut bytes = open_records(account, key.len());
    bytes.put_slice(key.as_bytes());
    bytes.freeze()
}

/// What the rows of all records of an account begin with.
pub fn records_of(account: &str) -> Bytes {
    open_records(account, 0).freeze()
}

/// The note that a record is indeterminate, by the record's row, or the beginning of it.
pub fn indeterminate(record: &[u8]) -> Bytes {
    of_record(Kind::Indeterminate, record)
}

/// The response of a record, by the record's row.
pub fn response(record: &[u8]) -> Bytes {
    of_record(Kind::Response, record)
}

pub fn app(app: AppId) -> Bytes {
    of_ids(Kind::App, &[app.0], b"")
}

pub fn app_uid(uid: &str) -> Bytes {
    named(Kind::AppUid, uid)
}

/// What the rows of this kind of an application begin with.
pub fn rows_of_app(kind: Kind, app: AppId) -> Bytes {
    of_ids(kind, &[app.0], b"")
}

pub fn endpoint(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::Endpoint, &[endpoint.app.0, endpoint.endpoint.0], b"")
}

pub fn endpoint_uid(app: AppId, uid: &str) -> Bytes {
    of_ids(Kind::EndpointUid, &[app.0], uid.as_bytes())
}

pub fn endpoint_state(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::EndpointState, &[endpoint.app.0, endpoint.endpoint.0], b"")
}

pub fn message(app: AppId, message: MessageId) -> Bytes {
    of_ids(Kind::Message, &[app.0, message.0], b"")
}

pub fn payload(app: AppId, message: MessageId) -> Bytes {
    of_ids(Kind::Payload, &[app.0, message.0], b"")
}

pub fn event_id(app: AppId, event_id: &str) -> Bytes {
    of_ids(Kind::EventId, &[app.0], event_id.as_bytes())
}

pub fn delivery(endpoint: EndpointKey, message: MessageId) -> Bytes {
    of_ids(Kind::Delivery, &[endpoint.app.0, message.0, endpoint.endpoint.0], b"")
}

/// What the rows of a message's deliveries begin with.
pub fn deliveries_of(app: AppId, message: MessageId) -> Bytes {
    of_ids(Kind::Delivery, &[app.0, message.0], b"")
}

pub fn delivery_due(endpoint: EndpointKey, item: DueItem) -> Bytes {
    let mut bytes = open(Kind::Due, DELIVERY_DUE_LEN - 1);
    bytes.put_slice(endpoint.app.0.bytes());
    bytes.put_slice(endpoint.endpoint.0.bytes());
    bytes.put_u64(item.at.0);
    bytes.put_slice(item.message.0.bytes());
    debug_assert_eq!(bytes.len(), DELIVERY_DUE_LEN);
    bytes.freeze()
}

/// What the rows of an endpoint's pending deliveries begin with.
pub fn due_of(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::Due, &[endpoint.app.0, endpoint.endpoint.0], b"")
}

/// Behind all pending deliveries of an endpoint, and before those of any other.
pub fn due_end(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::Due, &[endpoint.app.0, endpoint.endpoint.0], &[0xff; DELIVERY_DUE_LEN])
}

pub fn attempt(app: AppId, message: MessageId, attempt: DeliveryAttemptId) -> Bytes {
    of_ids(Kind::Attempt, &[app.0, message.0, attempt.0], b"")
}

/// What the rows of a message's attempts begin with.
pub fn attempts_of(app: AppId, message: MessageId) -> Bytes {
    of_ids(Kind::Attempt, &[app.0, message.0], b"")
}

pub fn attempt_of_endpoint(endpoint: EndpointKey, attempt: DeliveryAttemptId) -> Bytes {
    of_ids(Kind::AttemptOfEndpoint, &[endpoint.app.0, endpoint.endpoint.0, attempt.0], b"")
}

/// What the rows of an endpoint's attempts begin with.
pub fn attempts_of_endpoint(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::AttemptOfEndpoint, &[endpoint.app.0, endpoint.endpoint.0], b"")
}

pub fn request(scope: &str, key: &str) -> Bytes {
    let mut bytes = open(Kind::Request, 4 + scope.len() + key.len());
    bytes.put_u32(u32::try_from(scope.len()).expect("a log entry is far smaller than 4 GiB"));
    bytes.put_slice(scope.as_bytes());
    bytes.put_slice(key.as_bytes());
    bytes.freeze()
}

pub fn clearing_app(app: AppId) -> Bytes {
    of_ids(Kind::Clearing, &[app.0], b"")
}

pub fn clearing_endpoint(endpoint: EndpointKey) -> Bytes {
    of_ids(Kind::Clearing, &[endpoint.app.0, endpoint.endpoint.0], b"")
}

pub fn event_type(name: &str) -> Bytes {
    named(Kind::EventType, name)
}

/// The ids in a row's key, in order, as far as they go.
pub fn ids(key: &[u8]) -> impl Iterator<Item = Id> {
    key.get(1..).unwrap_or_default().chunks_exact(Id::LEN).filter_map(Id::from_slice)
}

/// Takes the key of a pending delivery apart.
pub fn parse_delivery_due(key: &[u8]) -> Option<(EndpointKey, DueItem)> {
    let (&tag, rest) = key.split_first()?;
    if tag != Kind::Due as u8 || key.len() != DELIVERY_DUE_LEN {
        return None;
    }
    let (app, rest) = rest.split_at(Id::LEN);
    let (endpoint, rest) = rest.split_at(Id::LEN);
    let (at, message) = rest.split_first_chunk::<8>()?;
    let key = EndpointKey { app: AppId(Id::from_slice(app)?), endpoint: EndpointId(Id::from_slice(endpoint)?) };
    let at = ShardTime(u64::from_be_bytes(*at));
    Some((key, DueItem { at, message: MessageId(Id::from_slice(message)?) }))
}

/// A key of [`crate::rows::Table::Expiry`]: when the row is due, then the row's own key.
pub fn due(at: ShardTime, row: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(DUE_LEN + row.len());
    bytes.put_u64(at.0);
    bytes.put_slice(row);
    bytes.freeze()
}

/// Takes a key of the expiry table apart.
pub fn parse_due(key: &Bytes) -> Option<(ShardTime, Bytes)> {
    let at = u64::from_be_bytes(key.get(..DUE_LEN)?.try_into().ok()?);
    Some((ShardTime(at), key.slice(DUE_LEN..)))
}

/// The policy and the key of a bucket's row.
pub fn parse_bucket(key: &[u8]) -> Option<(&str, &str)> {
    let (&tag, rest) = key.split_first()?;
    if tag != Kind::Bucket as u8 {
        return None;
    }
    let (&len, rest) = rest.split_first()?;
    let (policy, key) = rest.split_at_checked(usize::from(len))?;
    Some((str::from_utf8(policy).ok()?, str::from_utf8(key).ok()?))
}

/// The revision of a [`Kind::Revision`] row.
pub fn parse_revision(key: &[u8]) -> Option<u64> {
    let (&tag, rest) = key.split_first()?;
    (tag == Kind::Revision as u8).then_some(u64::from_be_bytes(rest.try_into().ok()?))
}

fn open(kind: Kind, capacity: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(1 + capacity);
    bytes.put_u8(kind as u8);
    bytes
}

fn named(kind: Kind, name: &str) -> Bytes {
    let mut bytes = open(kind, name.len());
    bytes.put_slice(name.as_bytes());
    bytes.freeze()
}

fn of_ids(kind: Kind, ids: &[Id], rest: &[u8]) -> Bytes {
    let mut bytes = open(kind, ids.len() * Id::LEN + rest.len());
    ids.iter().for_each(|id| bytes.put_slice(id.bytes()));
    bytes.put_slice(rest);
    bytes.freeze()
}

fn of_record(kind: Kind, record: &[u8]) -> Bytes {
    let mut bytes = open(kind, record.len());
    bytes.put_slice(record);
    bytes.freeze()
}

fn open_records(account: &str, capacity: usize) -> BytesMut {
    let mut bytes = open(Kind::Record, 1 + account.len() + capacity);
    bytes.put_u8(u8::try_from(account.len()).expect("an account's name has 255 bytes at most"));
    bytes.put_slice(account.as_bytes());
    bytes
}

fn put_policy(bytes: &mut BytesMut, policy: &str) {
    bytes.put_u8(
        u8::try_from(policy.len()).expect("only policies that exist have rows: their names have 63 bytes at most"),
    );
    bytes.put_slice(policy.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_run_into_each_other() {
        assert_ne!(bucket("a_b", "c"), bucket("a", "b_c"));
        assert_ne!(bucket("a", "bc"), bucket("ab", "c"));
        assert_ne!(admitted_id("a", "b", "cd"), admitted_id("a", "bc", "d"));
        assert_ne!(policy("a"), policy_chain("a"));
        assert_ne!(record("a_b", "c"), record("a", "b_c"));
        assert!(!record("ab", "c").starts_with(&records_of("a")));
        assert!(indeterminate(&record("a", "b")).starts_with(&indeterminate(&records_of("a"))));
    }

    #[test]
    fn due_rows_sort_by_time_and_come_apart_again() {
        let row = bucket("api", "k");
        let early = due(ShardTime(255), &row);
        assert!(early < due(ShardTime(256), b""));
        assert_eq!(parse_due(&early), Some((ShardTime(255), row.clone())));
        assert_eq!(parse_bucket(&row), Some(("api", "k")));
        assert_eq!(parse_bucket(b"\x04"), None);
        assert_eq!(parse_bucket(b"\x04\xffab"), None);
        assert_eq!(parse_due(&Bytes::from_static(b"short")), None);
    }
}
