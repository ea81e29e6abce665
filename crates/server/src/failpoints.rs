//! Failpoints: a file that says what is wrong with this process's clock and disk, read again whenever it changes. Only
//! for tests; `onceward` doesn't have it.
//!
//! Whoever writes it replaces it whole, by a rename. Without a file nothing is wrong.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use onceward_core::seams::Clock;
use onceward_shard::{ClockFaults, FaultyClock, SystemClock};
use onceward_storage::{DiskFaults, FailingStore, Store};
use serde::Deserialize;

/// Tests count on a change being in force within 50 ms.
const READ_EVERY: Duration = Duration::from_millis(20);

/// The file, TOML.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wrong {
    wall_offset_ms: i64,
    /// From -10000 to 10000.
    monotonic_rate_ppm: i64,
    sync_delay_ms: u64,
    sync_fails: bool,
    free_bytes: Option<u64>,
}

struct Failpoints {
    clock: Arc<FaultyClock>,
    disk: Arc<Mutex<DiskFaults>>,
}

static FOLLOWED: OnceLock<Failpoints> = OnceLock::new();

/// Does as the file says, now and until the process ends. Once, before anything asks for a clock or a store.
pub fn follow(file: PathBuf) -> Result<(), String> {
    let wrong = read(&file)?;
    let failpoints =
        FOLLOWED.get_or_init(|| Failpoints { clock: Arc::new(FaultyClock::new(SystemClock)), disk: Arc::default() });
    failpoints.set(&wrong);
    let watch = move || watch(failpoints, &file, wrong);
    thread::Builder::new().name("failpoints".to_owned()).spawn(watch).map(drop).map_err(|error| error.to_string())
}

/// The clock to go by, where there is a file.
pub fn clock() -> Option<Arc<dyn Clock>> {
    FOLLOWED.get().map(|failpoints| failpoints.clock.clone() as Arc<dyn Clock>)
}

/// The store as its disk behaves.
pub fn store(store: Arc<dyn Store>) -> Arc<dyn Store> {
    match FOLLOWED.get() {
        Some(failpoints) => Arc::new(FailingStore::new(store, failpoints.disk.clone())),
        None => store,
    }
}

impl Failpoints {
    fn set(&self, wrong: &Wrong) {
        self.clock
            .set(ClockFaults { wall_offset_ms: wrong.wall_offset_ms, monotonic_rate_ppm: wrong.monotonic_rate_ppm });
        *self.disk.lock().unwrap_or_else(PoisonError::into_inner) = DiskFaults {
            sync_delay: Duration::from_millis(wrong.sync_delay_ms),
            sync_fails: wrong.sync_fails,
            free_bytes: wrong.free_bytes,
        };
    }
}

fn watch(failpoints: &Failpoints, file: &Path, mut last: Wrong) {
    let mut told = None;
    loop {
        thread::sleep(READ_EVERY);
        match read(file) {
            Ok(wrong) if wrong != last => {
                eprintln!("onceward-faults: {wrong:?}");
                failpoints.set(&wrong);
                last = wrong;
            }
            Ok(_) => {}
            // Said once; what was in force stays.
            Err(error) if told.as_ref() != Some(&error) => {
                eprintln!("onceward-faults: {error}");
                told = Some(error);
            }
            Err(_) => {}
        }
    }
}

fn read(file: &Path) -> Result<Wrong, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Wrong::default()),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    let wrong: Wrong = toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let rate = wrong.monotonic_rate_ppm;
    if rate.abs() > FaultyClock::<SystemClock>::RATE_PPM_MAX {
        return Err(format!("{}: monotonic_rate_ppm is {rate}, at most 10000 either way", file.display()));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_is_wrong_and_none_or_an_empty_one_that_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("failpoints.toml");
        assert_eq!(read(&file), Ok(Wrong::default()));
        let of = |text: &str| {
            fs::write(&file, text).unwrap();
            read(&file)
        };
        assert_eq!(of(""), Ok(Wrong::default()));
        assert_eq!(of("free_bytes = 7"), Ok(Wrong { free_bytes: Some(7), ..Wrong::default() }));
        assert_eq!(of("wall_offset_ms = -3_600_000"), Ok(Wrong { wall_offset_ms: -3_600_000, ..Wrong::default() }));
        for refused in ["monotonic_rate_ppm = 10_001", "wall_offset = 1", "sync_delay_ms = -1", "sync_fails ="] {
            assert!(of(refused).is_err(), "{refused}");
        }
    }
}
