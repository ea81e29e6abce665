//! Bytes: versioned MessagePack for values, fixed layouts for keys.
