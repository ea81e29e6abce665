//! Counts what the process has allocated, so that a target can hold its readers to a bound.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// # Panics
/// If what `read` allocates comes to more than `bytes_max` at any time.
pub fn assert_bounded(bytes_max: usize, read: impl FnOnce()) {
    let before = ALLOCATED.load(Relaxed);
    PEAK.store(before, Relaxed);
    read();
    let peak = PEAK.load(Relaxed).saturating_sub(before);
    assert!(peak <= bytes_max, "{peak} bytes of memory where {bytes_max} are allowed");
}

fn grow(bytes: usize) {
    PEAK.fetch_max(ALLOCATED.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

fn shrink(bytes: usize) {
    ALLOCATED.fetch_sub(bytes, Relaxed);
}

// SAFETY: everything is the system allocator's doing; counting touches no memory of its callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        shrink(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        grow(bytes);
        shrink(layout.size());
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
