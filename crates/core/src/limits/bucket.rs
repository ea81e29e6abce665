//! A bucket's row and its arithmetic.

/// To be filled in by this module's author.
pub struct Bucket;
pub struct Fill;
pub struct Grant;
