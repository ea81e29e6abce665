//! Idempotency keys: who may do the work of a key, and what its outcome was. One file per command.
//!
//! A record is an account's key. The newest token owns it: only its holder completes, abandons or extends. What has
//! passed is judged by the stamp of the entry, never by a reader's clock.

mod abandon;
mod begin;
pub mod bounds;
mod complete;
mod delete;
mod extend;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod keys;
mod ledger;
mod list;
mod read;
mod record;
mod response;

pub use abandon::{AbandonCommand, AbandonReply};
pub use begin::{AttemptId, BeginCommand, BeginReply, OnLeaseExpiry};
pub use complete::{CompleteCommand, CompleteReply, PublishedMessage, Publishing};
pub use delete::{DeleteRecordCommand, DeleteRecordReply};
pub use extend::{ExtendCommand, ExtendReply};
pub use keys::{Account, Key, NameError};
pub(crate) use ledger::Ledger;
pub(crate) use list::list;
pub use list::{RecordPage, RecordSummary};
pub use read::{completed_bytes, has_moved_on};
pub(crate) use read::{read_record, replay};
pub use record::{Lease, RecordState, RecordView, Replay};
pub use response::{Body, HeaderValues, Response, ResponseError};
