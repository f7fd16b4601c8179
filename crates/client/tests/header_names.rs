//! The names of headers that a response is read for. Besides the standards' whatever the
//! vendors' descriptions name: their source is asked, so that none is forgotten. The fuzzer
//! of headers has this file too.

use std::sync::LazyLock;

/// Some in capitals, which mean the same.
const OF_STANDARDS: [&str; 9] = [
    "retry-after",
    "Retry-After-Ms",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "X-RateLimit-Reset",
];

pub(crate) static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let quoted = include_str!("../src/headers/presets.rs").split('"').skip(1).step_by(2);
    let mut names: Vec<&str> = quoted.filter(|text| text.starts_with("x-") || text.contains("-ratelimit-")).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 20, "{names:?}");
    OF_STANDARDS.into_iter().chain(names).collect()
});
