//! Expire: works off due rows of the expiry table that belong to limits.
