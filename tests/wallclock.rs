//! A wall clock of one server's own: `wallclock.c`, built once and preloaded into the
//! server, and the file that moves it. (libfaketime hangs where the server's allocator
//! is jemalloc.)

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::server::Builder;

pub(crate) struct WallClock {
    dir: TempDir,
    file: File,
}

impl WallClock {
    /// One that is right.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wall-clock").tempdir().unwrap();
        let file = File::create(dir.path().join("shift")).unwrap();
        let clock = Self { dir, file };
        clock.shift(0);
        clock.wobble(0);
        clock.hold_up(0);
        clock
    }

    /// One that is so far ahead, or behind.
    pub(crate) fn shifted(seconds: i64) -> Self {
        let clock = Self::new();
        clock.shift(seconds);
        clock
    }

    /// Sets the clock so far ahead of the right time, or behind it.
    pub(crate) fn shift(&self, seconds: i64) {
        self.file.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), 0).unwrap();
    }

    /// Every reading is off by up to so much, either way.
    pub(crate) fn wobble(&self, most_us: i64) {
        self.file.write_all_at(&most_us.to_ne_bytes(), 8).unwrap();
    }

    /// Whoever reads it is held up for so long before, as on a machine that is busy.
    pub(crate) fn hold_up(&self, us: i64) {
        self.file.write_all_at(&us.to_ne_bytes(), 16).unwrap();
    }
}

impl Builder {
    /// With this wall clock instead of the machine's.
    pub(crate) fn wall_clock(self, clock: &WallClock) -> Self {
        let shift = clock.dir.path().join("shift");
        self.environment("LD_PRELOAD", preloaded().to_str().unwrap()).environment("WALL_CLOCK", shift.to_str().unwrap())
    }
}

/// The library, built by the first who asks.
fn preloaded() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wallclock.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wallclock.so");
        // Moved into place: another run of the tests may be using the old one.
        let fresh = library.with_extension(std::process::id().to_string());
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&fresh).arg(source).arg("-ldl");
        assert!(cc.status().expect("a C compiler").success(), "{cc:?}");
        fs::rename(&fresh, &library).unwrap();
        library
    })
}
