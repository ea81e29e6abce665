//! Receiving a snapshot: pieces of a file from the leader, one transfer at a time.
//!
//! A task writes the file, piece by piece aside; it ends when the file is complete, when another transfer takes its
//! place, or when the leader has been silent for too long. Nothing of an unfinished file stays.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use onceward_core::cluster::MemberId;
use onceward_storage::{SnapshotDir, SnapshotFile, SnapshotReceiver, StorageError};
use tokio::{
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot,
    },
    time::timeout,
};

use crate::{
    aside::aside,
    frames::{SnapshotPiece, Transfer},
};

/// A leader that sends nothing for so long has given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Pieces on their way to the file; a leader sends one at a time.
const PIECES_MAX: usize = 1;
/// Longest file that is received. A state of this size wouldn't fit a node anyway.
const FILE_BYTES_MAX: u64 = 1 << 40;

pub(crate) struct Incoming {
    dir: Arc<SnapshotDir>,
    transfer: Mutex<Option<Receiving>>,
}

struct Receiving {
    from: MemberId,
    transfer: Transfer,
    /// Where the next piece begins.
    offset: u64,
    writer: Sender<Step>,
}

type Outcome<T> = oneshot::Sender<Result<T, StorageError>>;

enum Step {
    Piece(Bytes, Outcome<()>),
    Finish(Outcome<SnapshotFile>),
}

impl Incoming {
    pub(crate) fn new(dir: Arc<SnapshotDir>) -> Incoming {
        Incoming { dir, transfer: Mutex::new(None) }
    }

    /// Takes a piece. An error means that the transfer has to begin anew.
    pub(crate) async fn piece(&self, from: MemberId, piece: SnapshotPiece) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut transfer = self.transfer.lock().expect("no code panics while it holds the transfer");
            if piece.offset == 0 {
                *transfer = Some(self.begin(from, &piece)?);
            }
            let receiving = expected(&mut transfer, from, &piece.transfer)?;
            if receiving.offset != piece.offset {
                return Err(format!("a piece at {} of a snapshot, expected {}", piece.offset, receiving.offset));
            }
            receiving.offset += piece.bytes.len() as u64;
            let sent = receiving.writer.try_send(Step::Piece(piece.bytes, sender));
            sent.map_err(|_| "the last piece of the snapshot is still being written".to_owned())?;
        }
        done(receiver).await
    }

    /// All pieces were sent: verifies the file.
    pub(crate) async fn finish(&self, from: MemberId, sent: &Transfer) -> Result<SnapshotFile, String> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut transfer = self.transfer.lock().expect("no code panics while it holds the transfer");
            let receiving = expected(&mut transfer, from, sent)?;
            if receiving.offset != sent.bytes {
                return Err(format!("{} of {} bytes of a snapshot have come", receiving.offset, sent.bytes));
            }
            let finish = receiving.writer.try_send(Step::Finish(sender));
            *transfer = None;
            finish.map_err(|_| "the last piece of the snapshot is still being written".to_owned())?;
        }
        done(receiver).await
    }

    fn begin(&self, from: MemberId, piece: &SnapshotPiece) -> Result<Receiving, String> {
        let transfer = piece.transfer;
        if transfer.bytes > FILE_BYTES_MAX {
            return Err(format!("a snapshot of {} bytes is too large", transfer.bytes));
        }
        let (writer, steps) = channel(PIECES_MAX);
        tokio::spawn(write(Arc::clone(&self.dir), transfer.bytes, steps));
        Ok(Receiving { from, transfer, offset: 0, writer })
    }
}

fn expected<'t>(
    transfer: &'t mut Option<Receiving>,
    from: MemberId,
    sent: &Transfer,
) -> Result<&'t mut Receiving, String> {
    let receiving = transfer.as_mut().filter(|receiving| receiving.from == from && receiving.transfer == *sent);
    receiving.ok_or_else(|| "this transfer of a snapshot isn't under way".to_owned())
}

async fn done<T>(outcome: oneshot::Receiver<Result<T, StorageError>>) -> Result<T, String> {
    match outcome.await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err("receiving the snapshot was given up".to_owned()),
    }
}

/// A file that is being received; an error stays one.
type Received = Result<SnapshotReceiver, StorageError>;

/// Writes pieces as they come, until the file is finished or nobody sends any more.
async fn write(dir: Arc<SnapshotDir>, bytes: u64, mut steps: Receiver<Step>) {
    let Ok(mut file) = aside(move || dir.receive(bytes)).await else { return };
    // Whoever sent a step may have stopped waiting for its outcome.
    while let Ok(Some(step)) = timeout(SILENCE_MAX, steps.recv()).await {
        match step {
            Step::Piece(piece, outcome) => {
                let Ok((kept, written)) = aside(move || append(file, &piece)).await else { return };
                file = kept;
                drop(outcome.send(written));
            }
            Step::Finish(outcome) => {
                if let Ok(finished) = aside(move || file.and_then(SnapshotReceiver::finish)).await {
                    drop(outcome.send(finished));
                }
                return;
            }
        }
    }
}

fn append(file: Received, piece: &[u8]) -> (Received, Result<(), StorageError>) {
    match file {
        Ok(mut file) => {
            let written = file.append(piece);
            (Ok(file), written)
        }
        Err(error) => (Err(error.clone()), Err(error)),
    }
}
