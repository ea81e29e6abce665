//! The node registry: which data directory is which node.

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Generation, Manifest, NodeEntry, NodeId},
    codec::{self, keys, keys::Kind},
    rows::{ReadRows, Rows, RowsError, Table, read},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub entry: NodeEntry,
    pub replace: ReplaceState,
}

/// Where a node stands between losing its disk and voting again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplaceState {
    /// In service.
    No,
    /// Waits for an empty directory to say hello.
    Awaited,
    /// The new directory is in; its shards are being filled.
    Filling,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeReply {
    /// The record as it stands now.
    Recorded(NodeRecord),
    NotFound,
    /// No replacement of this node was asked for, or it came with another incarnation than the one let in.
    NotAwaited(NodeRecord),
}

pub(super) fn record_manifest(rows: &mut dyn Rows, manifest: &Manifest) -> Result<(), RowsError> {
    if rows.get(Table::State, &keys::MANIFEST)?.is_some() {
        return Ok(());
    }
    rows.put(Table::State, keys::MANIFEST.clone(), codec::encode(manifest));
    for entry in &manifest.nodes {
        record(rows, NodeRecord { entry: entry.clone(), replace: ReplaceState::No });
    }
    Ok(())
}

/// Also while a replacement is being filled: its disk may be lost too.
pub(super) fn begin_replace(rows: &mut dyn Rows, node: NodeId) -> Result<NodeReply, RowsError> {
    let Some(found) = read::<NodeRecord>(rows, &keys::node(node))? else { return Ok(NodeReply::NotFound) };
    Ok(record(rows, NodeRecord { replace: ReplaceState::Awaited, ..found }))
}

/// The generation is assigned here, whatever `entry` says.
pub(super) fn admit_replacement(rows: &mut dyn Rows, entry: &NodeEntry) -> Result<NodeReply, RowsError> {
    let Some(found) = read::<NodeRecord>(rows, &keys::node(entry.id))? else { return Ok(NodeReply::NotFound) };
    let known = found.entry.incarnation == entry.incarnation;
    Ok(match (found.replace, known) {
        (ReplaceState::No | ReplaceState::Filling, true) => NodeReply::Recorded(found),
        (ReplaceState::No | ReplaceState::Filling, false) => NodeReply::NotAwaited(found),
        // Asked to be replaced once more, but it is there and stays what it was.
        (ReplaceState::Awaited, true) => record(rows, NodeRecord { replace: ReplaceState::Filling, ..found }),
        (ReplaceState::Awaited, false) => {
            let generation = Generation(found.entry.generation.0.saturating_add(1));
            let entry = NodeEntry { generation, ..entry.clone() };
            record(rows, NodeRecord { entry, replace: ReplaceState::Filling })
        }
    })
}

pub(super) fn finish_replace(
    rows: &mut dyn Rows,
    node: NodeId,
    generation: Generation,
) -> Result<NodeReply, RowsError> {
    let Some(found) = read::<NodeRecord>(rows, &keys::node(node))? else { return Ok(NodeReply::NotFound) };
    if found.entry.generation != generation || found.replace == ReplaceState::Awaited {
        return Ok(NodeReply::NotAwaited(found));
    }
    Ok(record(rows, NodeRecord { replace: ReplaceState::No, ..found }))
}

fn record(rows: &mut dyn Rows, record: NodeRecord) -> NodeReply {
    rows.put(Table::State, keys::node(record.entry.id), codec::encode(&record));
    NodeReply::Recorded(record)
}

/// All nodes by ascending id.
pub(crate) fn nodes(rows: &dyn ReadRows) -> Result<Vec<NodeRecord>, RowsError> {
    let found = rows.scan(Table::State, &Kind::Node.prefix(), None, usize::from(u16::MAX))?;
    let decoded = found.into_iter().map(|(key, value)| {
        let corrupt = |error: codec::DecodeError| RowsError::Corrupt {
            table: Table::State,
            key: key.to_vec(),
            detail: error.to_string(),
        };
        codec::decode(&value).map_err(corrupt)
    });
    decoded.collect()
}
