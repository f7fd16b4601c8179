//! The IETF's fields, `RateLimit` and `RateLimit-Policy`, as structured fields
//! (draft-ietf-httpapi-ratelimit-headers-10 of 27 September 2025; its beginning and
//! that of drafts 06 to 08 were read on 2026-11-30), and the one field of draft 07
//! that held a dictionary.

use std::time::Duration;

use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use super::values::MAX_DURATION;
use super::{Counted, Found};
use crate::Tokens;

/// The quotas in both fields. A policy that only one of them names is worth
/// something where that is `RateLimit`; a policy alone says nothing of now.
pub(super) fn quotas(limit: &str, policy: Option<&str>) -> Vec<Found> {
    let policies = policy.map(policies).unwrap_or_default();
    let mut found = items(limit);
    if found.is_empty() {
        found.extend(dictionary(limit));
    }
    for quota in &mut found {
        let known = match &quota.policy {
            Some(name) => policies.iter().find(|policy| policy.policy.as_ref() == Some(name)),
            None => policies.first().filter(|_| policies.len() == 1),
        };
        if let Some(known) = known {
            quota.limit = quota.limit.or(known.limit);
            quota.counted = known.counted;
        }
    }
    found
}

/// `"burst";r=50;t=30, "daily";r=9000;t=7200`
fn items(text: &str) -> Vec<Found> {
    let Ok(list) = Parser::new(text).parse::<List>() else { return Vec::new() };
    let quotas = list.into_iter().filter_map(|entry| {
        let ListEntry::Item(item) = entry else { return None };
        let remaining = tokens(&item.params, "r")?;
        let reset = duration(&item.params, "t");
        Some(Found { policy: name(&item.bare_item), remaining: Some(remaining), reset, window: true, ..Found::default() })
    });
    quotas.collect()
}

/// `limit=100, remaining=50, reset=30`
fn dictionary(text: &str) -> Option<Found> {
    let fields: Dictionary = Parser::new(text).parse().ok()?;
    let field = |name: &str| match fields.get(name) {
        Some(ListEntry::Item(item)) => whole(&item.bare_item),
        _ => None,
    };
    Some(Found {
        remaining: Some(Tokens::try_from(field("remaining")?).ok()?),
        limit: field("limit").and_then(|limit| Tokens::try_from(limit).ok()),
        reset: field("reset").map(Duration::from_secs).filter(|reset| *reset <= MAX_DURATION),
        window: true,
        ..Found::default()
    })
}

/// `"burst";q=100;w=60, "daily";q=10000;w=86400`, and `100;w=60` of earlier drafts.
fn policies(text: &str) -> Vec<Found> {
    let Ok(list) = Parser::new(text).parse::<List>() else { return Vec::new() };
    let policies = list.into_iter().filter_map(|entry| {
        let ListEntry::Item(item) = entry else { return None };
        let limit = match whole(&item.bare_item) {
            Some(limit) => Tokens::try_from(limit).ok(),
            None => tokens(&item.params, "q"),
        };
        let counted = match item.params.get("qu").and_then(name) {
            Some(unit) if unit != "requests" => Counted::Otherwise,
            _ => Counted::InRequests,
        };
        Some(Found { policy: name(&item.bare_item), limit, counted, ..Found::default() })
    });
    policies.collect()
}

fn name(item: &BareItem) -> Option<String> {
    match item {
        BareItem::String(name) => Some(name.as_str().to_owned()),
        BareItem::Token(name) => Some(name.as_str().to_owned()),
        _ => None,
    }
}

fn whole(item: &BareItem) -> Option<u64> {
    item.as_integer().and_then(|number| u64::try_from(i64::from(number)).ok())
}

fn tokens(params: &Parameters, name: &str) -> Option<Tokens> {
    Tokens::try_from(whole(params.get(name)?)?).ok()
}

fn duration(params: &Parameters, name: &str) -> Option<Duration> {
    Some(Duration::from_secs(whole(params.get(name)?)?)).filter(|duration| *duration <= MAX_DURATION)
}
