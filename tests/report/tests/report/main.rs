//! What a run leaves for people and for other checkers can be read by both, whatever was in the history.

mod edn;
mod edn_reader;
mod page;
mod sample;
