//! What the algorithm promises, and random attempts to break it.
//!
//! `oracle` is the same bucket once more, in exact fractions and without a thought
//! for speed; `agreement` lets both live through the same random histories. The
//! other tests hold the promises themselves against the bucket alone, so a promise
//! that both break is found too.
//!
//! Each property runs as many cases as PROPTEST_CASES says, and without that as many
//! as are worth their time on every commit. A failure prints the smallest history
//! that shows it; it then becomes a test with a name in `found`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    missing_docs
)]

mod agreement;
mod bytes;
mod edges;
mod found;
mod histories;
mod joint;
mod layout;
mod numbers;
mod oracle;
mod promises;
mod vectors;
mod waiting;

use proptest::test_runner::Config;

/// As many cases as PROPTEST_CASES says; `by_default` where it says nothing.
fn cases(by_default: u32) -> Config {
    let told = Config::default();
    Config {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { told.cases } else { by_default },
        // A found fault becomes a test in `found`, so no seeds are kept.
        failure_persistence: None,
        ..told
    }
}
