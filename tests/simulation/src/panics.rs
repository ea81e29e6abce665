//! Panics, wherever they are swallowed: a task's, an actor's, openraft's own.

use std::{
    panic,
    sync::{Mutex, PoisonError},
};

static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Remembers the first panic of the process from now on.
pub fn watch() {
    panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| what.to_string());
    }));
}

pub fn first() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
