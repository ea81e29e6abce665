//! What goes through the log, and what `apply` answers. A command is complete: it says everything that `apply` may
//! depend on besides the rows and the entry's stamp.

use serde::{Deserialize, Serialize};

use crate::{
    codec,
    idempotency::{
        AbandonCommand, AbandonReply, AttemptId, BeginCommand, BeginReply, CompleteCommand, CompleteReply,
        DeleteRecordCommand, DeleteRecordReply, ExtendCommand, ExtendReply,
    },
    limits::{
        CheckCommand, CheckItem, CheckReply, CopyPolicies, HoldCommand, HoldReply, Mode, RefundCommand, RefundReply,
        ResetCommand, ResetReply, SettleCommand, SettleReply,
    },
    system::{SystemCommand, SystemReply},
    time::ShardTime,
    webhooks::{Action, CopyOperational, NewMessage, RecordOutcomes, WebhookCommand, WebhookReply},
};

/// Commands of one log entry at the most.
pub const BATCH_COMMANDS_MAX: usize = 512;
/// Encoded bytes of one log entry at the most; a single command is always smaller.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// What one Raft entry carries: the leader's stamp and a batch of commands, applied in order at that stamp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryBatch {
    pub stamp: ShardTime,
    pub commands: Vec<Command>,
}

/// A change of one shard. Positional MessagePack: fields and variants are only ever added at the end, and the golden
/// files say when that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    Check(CheckCommand),
    Hold(HoldCommand),
    Settle(SettleCommand),
    Refund(RefundCommand),
    Reset(ResetCommand),
    CopyPolicies(CopyPolicies),
    /// Removes what is due at `up_to`, at most `limit` rows of the expiry table.
    Expire {
        up_to: ShardTime,
        limit: u32,
    },
    System(SystemCommand),
    Begin(BeginCommand),
    Complete(CompleteCommand),
    Abandon(AbandonCommand),
    Extend(ExtendCommand),
    DeleteRecord(DeleteRecordCommand),
    Webhook(Box<WebhookCommand>),
    RecordOutcomes(RecordOutcomes),
    CopyOperational(CopyOperational),
}

/// What `apply` answers, variant by variant of [`Command`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Check(CheckReply),
    Hold(HoldReply),
    Settle(SettleReply),
    Refund(RefundReply),
    Reset(ResetReply),
    /// The revision of the system shard up to which this shard has every policy now.
    CopyPolicies {
        synced_revision: u64,
    },
    /// How many rows of the expiry table were worked off.
    Expire {
        removed: u32,
    },
    System(SystemReply),
    /// The command belongs on the other kind of shard: a bug of the sender; nothing was changed.
    Misrouted,
    Begin(BeginReply),
    Complete(CompleteReply),
    Abandon(AbandonReply),
    Extend(ExtendReply),
    DeleteRecord(DeleteRecordReply),
    Webhook(Box<WebhookReply>),
    /// How many of them changed something.
    RecordOutcomes {
        recorded: u32,
    },
    /// The revision that the shard's copy stands at then.
    CopyOperational {
        revision: u64,
    },
}

/// Upper bound of what an encoded command or item takes besides its strings: tags, lengths, integers.
const FIXED_BYTES: usize = 96;
/// What each part of a stored response takes besides its text: a tag, a length.
const PART_BYTES: usize = 12;

/// What a publish takes besides its message and its request's names: an application's name is the largest part.
const PUBLISH_BYTES: usize = 512;
/// What an outcome takes besides its texts: four ids, integers, names of variants.
const OUTCOME_BYTES: usize = 256;

fn size_of_message(message: &NewMessage) -> usize {
    FIXED_BYTES + message.bytes()
}

impl Command {
    /// Whether it makes a shard's state larger at a caller's will: what a node whose disk is nearly full refuses. What
    /// removes, gives back, or ends what was begun doesn't count, nor what nodes do by themselves.
    pub fn grows(&self) -> bool {
        match self {
            Command::Check(check) => check.mode != Mode::Peek,
            Command::Hold(_) | Command::Reset(_) | Command::Begin(_) => true,
            Command::System(command) => matches!(command, SystemCommand::PutPolicy { .. }),
            Command::Webhook(command) => !command.action.is_removal(),
            Command::Settle(_)
            | Command::Refund(_)
            | Command::Complete(_)
            | Command::Abandon(_)
            | Command::Extend(_)
            | Command::DeleteRecord(_)
            | Command::Expire { .. }
            | Command::RecordOutcomes(_)
            | Command::CopyPolicies(_)
            | Command::CopyOperational(_) => false,
        }
    }

    /// Encoded bytes at the most, without encoding the commands of the hot path.
    pub fn size_estimate(&self) -> usize {
        let items = |items: &[CheckItem]| {
            items.iter().map(|item| FIXED_BYTES + item.policy.len() + item.key.len()).sum::<usize>()
        };
        let id = |request_id: &Option<String>| request_id.as_ref().map_or(0, String::len);
        FIXED_BYTES
            + match self {
                Command::Check(check) => items(&check.items) + id(&check.request_id),
                Command::Hold(hold) => items(&hold.items) + id(&hold.request_id),
                Command::Refund(refund) => refund.policy.len() + refund.key.len() + refund.request_id.len(),
                Command::Reset(reset) => reset.policy.len() + reset.key.len(),
                Command::Settle(_) | Command::Expire { .. } => 0,
                Command::Begin(begin) => {
                    let id = match &begin.attempt {
                        AttemptId::Given(id) => id.len(),
                        AttemptId::Drawn(_) => 0,
                    };
                    begin.account.as_str().len() + begin.key.as_str().len() + begin.fingerprint.len() + id
                }
                Command::Complete(complete) => {
                    let names = complete.account.as_str().len() + complete.key.as_str().len();
                    let messages = complete.publishing.messages.iter().map(size_of_message).sum::<usize>();
                    names + complete.response.bytes() + complete.response.parts() * PART_BYTES + messages
                }
                Command::Abandon(abandon) => abandon.account.as_str().len() + abandon.key.as_str().len(),
                Command::Extend(extend) => extend.account.as_str().len() + extend.key.as_str().len(),
                Command::DeleteRecord(delete) => delete.account.as_str().len() + delete.key.as_str().len(),
                Command::Webhook(command) => match &command.action {
                    Action::Publish(publish) => {
                        let request = command.request.as_ref();
                        let request = request.map_or(0, |request| request.scope.len() + request.key.as_str().len());
                        PUBLISH_BYTES + size_of_message(&publish.message) + request
                    }
                    _ => codec::encode(self).len(),
                },
                Command::RecordOutcomes(record) => {
                    record.outcomes.iter().map(|outcome| OUTCOME_BYTES + outcome.bytes()).sum()
                }
                // Rare, and large: measured.
                Command::CopyPolicies(_) | Command::System(_) | Command::CopyOperational(_) => {
                    codec::encode(self).len()
                }
            }
    }
}
