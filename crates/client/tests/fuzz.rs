//! Header values nobody would send: the parser never panics, and what it makes of
//! them is within bounds. `PROPTEST_CASES` sets how many are tried.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tokenbucket_client::headers::{Action, Preset, Reader};

use crate::header_names::NAMES;

/// Near misses of every form, joined in any way, and bytes.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        any::<u64>().prop_map(|n| n.to_string()),
        any::<i32>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        (1_764_000_000_u64..1_765_000_000).prop_map(|n| n.to_string()),
        (0_u32..100).prop_map(|n| n.to_string()),
    ];
    let date = "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,12})?([Zz]|[+-][0-9]{2}:?[0-9]{2})?";
    let http = "(Sun|Mon|Sunday), ?[0-9]{1,2}[ -](Nov|Feb|Xyz)[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} (GMT|UTC)?";
    let go = "([0-9]{1,20}(\\.[0-9]{0,12})?(h|m|s|ms|us|µs|ns|d)?){1,4}";
    let fields = "(\"[a-z]{0,3}\"|[a-z]{1,3}|[0-9]{1,16})(;[rtqw]=-?[0-9]{1,16}(\\.[0-9]{1,4})?){0,3}";
    let part = prop_oneof![4 => number, 2 => date, 1 => http, 2 => go, 3 => fields, 1 => ".{0,8}"];
    prop_oneof![
        9 => (proptest::collection::vec(part, 1..4), "[,/;= ]{1,2}").prop_map(|(parts, between)| parts.join(&between).into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..80),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_vendor_sends_is_read_within_bounds(
        status in prop_oneof![Just(200_u16), Just(403), Just(429), Just(503), any::<u16>()],
        lines in proptest::collection::vec((proptest::sample::select(NAMES.as_slice()), value()), 0..8),
        preset in proptest::option::of(proptest::sample::select(Preset::ALL)),
        now in prop_oneof![Just(1_764_508_247_u64), any::<u32>().prop_map(u64::from)],
    ) {
        let cap = Duration::from_secs(3600);
        let mut reader = Reader::new().default_penalty(Duration::from_secs(5)).cap(cap);
        if let Some(preset) = preset {
            reader = reader.preset(preset);
        }
        let headers = lines.iter().map(|(name, value)| (*name, value.as_slice()));
        let advice = reader.read(status, headers, SystemTime::UNIX_EPOCH + Duration::from_secs(now));
        let year = Duration::from_secs(366 * 86_400);
        match advice.action {
            Action::Penalise(penalty) => {
                prop_assert!(status == 429 || preset.is_some());
                prop_assert!(penalty.is_some_and(|penalty| penalty <= cap));
            }
            Action::Sync => prop_assert!(advice.quota.as_ref().is_some_and(|quota| quota.remaining.is_some())),
            _ => prop_assert!(status != 429),
        }
        // One alone is one that the preset names.
        prop_assert!(advice.policies.len() != 1 || preset.is_some());
        for quota in advice.policies.iter().chain(&advice.quota) {
            prop_assert!(quota.reset.is_none_or(|reset| reset > Duration::ZERO && reset <= year));
            prop_assert!(!quota.window || quota.reset.is_some());
            prop_assert!(quota.limit.is_none_or(|limit| limit.whole() >= 1));
        }
        let synced = advice.sync("k");
        if let Some(decides) = advice.quota.filter(|_| advice.action == Action::Sync) {
            prop_assert!(decides.sync("k").is_some() && synced.is_some());
        }
    }
}
