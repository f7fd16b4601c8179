//! Responses of vendors, whatever they send: reading them does not panic, and what comes
//! of it is within bounds.

#![no_main]

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use tokenbucket_client::headers::{Action, Preset, Reader};

const NAMES: [&str; 8] = [
    "retry-after",
    "retry-after-ms",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
];

/// Besides, whatever the vendors' descriptions name: their source is asked, so that none is
/// forgotten.
static ALL_NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let quoted = include_str!("../../crates/client/src/headers/presets.rs").split('"').skip(1).step_by(2);
    let names: Vec<&str> = quoted.filter(|text| text.starts_with("x-") || text.contains("-ratelimit-")).collect();
    assert!(names.len() > 20, "{names:?}");
    NAMES.into_iter().chain(names).collect()
});

fuzz_target!(|input: (u16, u8, u32, Vec<(u8, &[u8])>)| {
    let (status, preset, now, lines) = input;
    let cap = Duration::from_secs(3_600);
    let mut reader = Reader::new().default_penalty(Duration::from_secs(5)).cap(cap);
    // Each of them, or none.
    if let Some(preset) = Preset::ALL.get(usize::from(preset) % (Preset::ALL.len() + 1)) {
        reader = reader.preset(*preset);
    }
    let headers = lines.iter().map(|(name, value)| (ALL_NAMES[usize::from(*name) % ALL_NAMES.len()], *value));
    let advice = reader.read(status, headers, SystemTime::UNIX_EPOCH + Duration::from_secs(now.into()));
    if let Action::Penalise(penalty) = advice.action {
        assert!(penalty.is_some_and(|penalty| penalty <= cap));
    }
    for quota in advice.policies.iter().chain(&advice.quota) {
        assert!(quota.reset.is_none_or(|reset| reset > Duration::ZERO && reset <= Duration::from_secs(366 * 86_400)));
        assert!(quota.limit.is_none_or(|limit| limit.whole() >= 1));
    }
});
