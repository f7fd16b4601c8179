//! Responses of vendors, whatever they send: reading them does not panic, and what comes
//! of it is within bounds.

#![no_main]

#[path = "../../crates/client/tests/header_names.rs"]
mod header_names;

use std::time::{Duration, SystemTime};

use header_names::NAMES;
use libfuzzer_sys::fuzz_target;
use tokenbucket_client::headers::{Action, Preset, Reader};

fuzz_target!(|input: (u16, u8, u32, Vec<(u8, &[u8])>)| {
    let (status, preset, now, lines) = input;
    let cap = Duration::from_secs(3_600);
    let mut reader = Reader::new().default_penalty(Duration::from_secs(5)).cap(cap);
    // Each of them, or none.
    if let Some(preset) = Preset::ALL.get(usize::from(preset) % (Preset::ALL.len() + 1)) {
        reader = reader.preset(*preset);
    }
    let headers = lines.iter().map(|(name, value)| (NAMES[usize::from(*name) % NAMES.len()], *value));
    let advice = reader.read(status, headers, SystemTime::UNIX_EPOCH + Duration::from_secs(now.into()));
    if let Action::Penalise(penalty) = advice.action {
        assert!(penalty.is_some_and(|penalty| penalty <= cap));
    }
    for quota in advice.policies.iter().chain(&advice.quota) {
        assert!(quota.reset.is_none_or(|reset| reset > Duration::ZERO && reset <= Duration::from_secs(366 * 86_400)));
        assert!(quota.limit.is_none_or(|limit| limit.whole() >= 1));
    }
});
