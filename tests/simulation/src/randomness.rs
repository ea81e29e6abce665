//! The operating system's randomness, replaced in this program: everything that asks for it (hash maps, the fair `select!` of
//! tokio, openraft's election timeouts) draws from the seed instead, so that a seed decides all of a run.
//!
//! The standard library and the crate `getrandom` call libc's function of this name; what is defined in the program itself
//! takes its place.

use std::{
    ffi::{c_uint, c_void},
    sync::atomic::{AtomicU64, Ordering},
};

static STATE: AtomicU64 = AtomicU64::new(0);

/// What is drawn from here on follows from the seed. Hash maps of a thread that had one before keep their keys: this is
/// called first, and a process runs one seed.
pub fn seed(seed: u64) {
    STATE.store(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1), Ordering::Relaxed);
}

/// SplitMix64.
fn draw() -> u64 {
    let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Fills `length` bytes, as the function of libc that has this name and these arguments does.
///
/// # Safety
/// `buffer` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "there is no other way to take the place of a function of libc")]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    for at in 0..length {
        // SAFETY: the caller promises that all `length` bytes may be written.
        unsafe { buffer.cast::<u8>().add(at).write(draw() as u8) };
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
