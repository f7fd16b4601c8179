//! What a vendor's response says about its limits.
//!
//! Strict: a value that is not of a known form, is negative or absurdly large is no
//! value at all. Nothing here panics, whatever it is given.
//!
//! # Which responses penalise
//! A 429 does; a 403 or a 5xx where the [`Preset`] says so and the response has a
//! figure. For how long, the first that is there: `Retry-After` (or
//! `retry-after-ms`), the end of a window in which nothing is left, the default that
//! the caller set, what the vendor's documentation asks for. What is longer than the
//! cap is cut.
//!
//! # What is synced
//! Any other response that says what is left. Several counts in one response are
//! kept apart by [`Advice::policies`]; the tightest of them decides.
//!
//! # A field that comes twice
//! Several lines of a field are the members of one list, as HTTP has them. A list that says
//! the same again and again says it once: that is what proxies make of it. Where the members
//! differ, they are policies of their own in the fields that are guessed, each field with as
//! many; with a preset the least that is left, the least limit and the latest reset count.
//! Of several `Retry-After` the longest does.
//!
//! # A reset that cannot be believed
//! One of no known form, or more than 366 days ahead, is no value: what is left is synced
//! without it. One that is not in the future ends a window that is over: what was left in
//! that is no value either, and a 429 is as one with nothing in it. A window longer than
//! the server's `tokenbucket.max-window` is cut there, and a penalty to the end of a window
//! to the cap, as any penalty.
//!
//! # Without a preset
//! The guess: the IETF's `RateLimit` and `RateLimit-Policy`, or else
//! `RateLimit-Limit`, `-Remaining` and `-Reset` of its earlier drafts, or else
//! `X-RateLimit-*`, or else `X-Rate-Limit-*`. A reset is seconds from now, a Unix
//! time in seconds or milliseconds, a Go duration, a date. It counts as the end of a
//! window only in the IETF's fields and where it is a Unix time: a bare number of
//! seconds is the time to full with about as many vendors.

mod ietf;
mod presets;
mod values;

use std::time::{Duration, SystemTime};

use crate::{Sync, Tokens};
use presets::{Left, Vendor};
pub use presets::{Preset, UnknownPreset};
use values::{Moment, Reset};

/// Reads responses: of one vendor or by the documented guess.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tokenbucket_client::headers::{Action, Preset, Reader};
///
/// let reader = Reader::new().preset(Preset::Shopify).default_penalty(Duration::from_secs(2));
/// let headers = [("X-Shopify-Shop-Api-Call-Limit", b"32/40".as_slice())];
/// let advice = reader.read(200, headers, SystemTime::now());
/// assert_eq!(advice.action, Action::Sync);
/// assert_eq!(advice.quota.unwrap().remaining, Some(8.into()));
///
/// let advice = reader.read(429, [("Retry-After", b"1.5".as_slice())], SystemTime::now());
/// assert_eq!(advice.action, Action::Penalise(Some(Duration::from_millis(1500))));
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    preset: Option<Preset>,
    default_penalty: Option<Duration>,
    pub(crate) cap: Duration,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// By guess, without a default penalty, and with a cap of a week.
    pub const fn new() -> Self {
        Self { preset: None, default_penalty: None, cap: Duration::from_secs(604_800) }
    }

    /// As this vendor's documentation has it.
    #[must_use]
    pub const fn preset(mut self, preset: Preset) -> Self {
        self.preset = Some(preset);
        self
    }

    /// For a 429 with nothing in it.
    #[must_use]
    pub const fn default_penalty(mut self, penalty: Duration) -> Self {
        self.default_penalty = Some(penalty);
        self
    }

    /// The longest penalty, whatever the vendor says.
    #[must_use]
    pub const fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Reads a response that came at `now`. A moment in it is compared with the
    /// response's own `Date`, where it has one, so no clock need be right.
    pub fn read<'h>(&self, status: u16, headers: impl IntoIterator<Item = (&'h str, &'h [u8])>, now: SystemTime) -> Advice {
        let fields = Fields::new(headers);
        let now = fields.lines("date").find_map(values::http_date).unwrap_or_else(|| values::moment(now));
        let vendor = self.preset.map(Preset::vendor);
        let mut found = vendor.map(|vendor| fields.of(vendor, now)).unwrap_or_default();
        if found.is_empty() {
            found = fields.guess(vendor, now);
        }
        found.truncate(MAX_COUNTS);
        let penalty = self.penalty(status, &fields, &found, now);
        // One that the preset names has its bucket also where it comes alone.
        let several = found.len() > 1 || found.iter().any(|found| found.is_named);
        let policies: Vec<Quota> = found.iter().map(|found| found.quota(several)).collect();
        let decides = Found::tightest(&found);
        let quota = decides.and_then(|place| policies.get(place)).or(policies.first()).cloned();
        let action = match penalty {
            Some(penalty) => Action::Penalise(penalty),
            None if decides.is_some() => Action::Sync,
            None => Action::None,
        };
        Advice { action, quota, policies: if several { policies } else { Vec::new() } }
    }

    /// The names of the policies that a refusal stops: those of the response, and all that the
    /// preset knows, since a 429 often has no count at all.
    #[cfg(feature = "limiter")]
    pub(crate) fn policies<'a>(&self, advice: &'a Advice) -> Vec<&'a str> {
        let mut names: Vec<&str> = advice.policies.iter().filter_map(|quota| quota.policy.as_deref()).collect();
        for name in self.preset.map(Preset::vendor).iter().flat_map(|vendor| vendor.policies()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether the vendor refused, and for how long where anybody knows.
    fn penalty(&self, status: u16, fields: &Fields<'_>, found: &[Found], now: Moment) -> Option<Option<Duration>> {
        let vendor = self.preset.map(Preset::vendor);
        let refused = match status {
            429 => true,
            403 => vendor.is_some_and(|vendor| vendor.penalises_403),
            500..=599 => vendor.is_some_and(|vendor| vendor.penalises_5xx),
            _ => false,
        };
        if !refused {
            return None;
        }
        let used_up = |found: &&Found| found.window && found.remaining.is_none_or(|remaining| remaining == Tokens::ZERO);
        let said = fields.retry_after(now).or_else(|| found.iter().filter(used_up).filter_map(Found::later).max());
        match said {
            Some(penalty) => Some(Some(penalty.min(self.cap))),
            None if status == 429 => {
                let default = self.default_penalty.or(vendor.and_then(|vendor| vendor.wait));
                Some(default.map(|penalty| penalty.min(self.cap)))
            }
            None => None,
        }
    }
}

/// What to do about a response.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What to do with the bucket.
    pub action: Action,
    /// The count that decides: the tightest of them.
    pub quota: Option<Quota>,
    /// Where the response has several counts, or one that the [`Preset`] names, each of them;
    /// [`Quota::policy`] names its bucket.
    pub policies: Vec<Quota>,
}

impl Advice {
    /// The request that lowers the bucket of all calls, at `key`, to the count that decides;
    /// `None` where nothing is said. A limit in another unit than requests is no limit of
    /// that bucket.
    pub fn sync(&self, key: impl Into<Vec<u8>>) -> Option<Sync> {
        let quota = self.quota.as_ref()?;
        let limit = quota.limit.filter(|_| quota.in_requests);
        Quota { limit, ..quota.clone() }.sync(key)
    }
}

/// What to do with a bucket.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Freeze it for so long; `None` where neither the response nor the caller said.
    Penalise(Option<Duration>),
    /// Lower it to [`Advice::quota`].
    Sync,
}

/// One count of a vendor's.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its name, where the response has several or the [`Preset`] names it.
    pub policy: Option<String>,
    /// What is left.
    pub remaining: Option<Tokens>,
    /// The most there can be.
    pub limit: Option<Tokens>,
    /// Until its reset.
    pub reset: Option<Duration>,
    /// Whether the reset is the end of a window, so is sent as RESET; else it is the
    /// time to full.
    pub window: bool,
    /// Whether it counts requests, and not something of which a request takes more.
    pub in_requests: bool,
}

impl Quota {
    /// The request that lowers the bucket at `key` to it; `None` where it does not
    /// say what is left now.
    pub fn sync(&self, key: impl Into<Vec<u8>>) -> Option<Sync> {
        let mut request = Sync::new(key, self.remaining?);
        if let Some(limit) = self.limit {
            request = request.limit(limit);
        }
        match self.reset {
            Some(reset) if self.window => request = request.reset(reset),
            _ => {}
        }
        Some(request)
    }
}

/// The key of a policy's own bucket: `{key}:policy`, so that in a cluster it lies
/// beside that of `key`; a key with a hash tag of its own keeps that.
pub fn policy_key(key: &[u8], policy: &str) -> Vec<u8> {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.iter().position(|byte| *byte == b'}')
    });
    let mut name = Vec::with_capacity(key.len() + policy.len() + 3);
    match tag {
        Some(length) if length > 0 => name.extend_from_slice(key),
        _ => {
            name.push(b'{');
            name.extend_from_slice(key);
            name.push(b'}');
        }
    }
    name.push(b':');
    name.extend_from_slice(policy.as_bytes());
    name
}

/// What a count counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Counted {
    #[default]
    InRequests,
    /// Something a request takes more of than one: it decides only when used up.
    Otherwise,
}

/// A count as it was found.
#[derive(Clone, Debug, Default)]
struct Found {
    policy: Option<String>,
    remaining: Option<Tokens>,
    limit: Option<Tokens>,
    reset: Option<Duration>,
    window: bool,
    /// Its window is over, so what was left then says nothing.
    stale: bool,
    counted: Counted,
    /// Whether the preset names it.
    is_named: bool,
}

impl Found {
    fn quota(&self, named: bool) -> Quota {
        Quota {
            policy: self.policy.clone().filter(|_| named),
            remaining: self.remaining.filter(|_| !self.is_over()),
            limit: self.limit.filter(|limit| *limit >= Tokens::ONE),
            reset: self.later(),
            window: self.window && self.later().is_some(),
            in_requests: self.counted == Counted::InRequests,
        }
    }

    /// Until its reset, where that lies ahead.
    fn later(&self) -> Option<Duration> {
        self.reset.filter(|reset| !reset.is_zero())
    }

    fn is_over(&self) -> bool {
        self.stale || (self.window && self.reset == Some(Duration::ZERO))
    }

    /// The place of the one with the least left; of equal ones the one that lasts longest.
    fn tightest(found: &[Self]) -> Option<usize> {
        let says = |found: &Self| found.remaining.filter(|_| !found.is_over());
        let least = |decides: &dyn Fn(&Self, Tokens) -> bool| {
            let candidates = found.iter().enumerate().filter_map(|(place, found)| Some((place, found, says(found)?)));
            let candidates = candidates.filter(|(_, found, remaining)| decides(found, *remaining));
            candidates.min_by_key(|(_, found, left)| (*left, std::cmp::Reverse(found.reset))).map(|(place, ..)| place)
        };
        least(&|found, left| found.counted == Counted::InRequests || left == Tokens::ZERO).or_else(|| least(&|_, _| true))
    }
}

/// The readable header lines.
struct Fields<'h>(Vec<(&'h str, &'h str)>);

/// More lines than any response has; the rest is not looked at.
const MAX_LINES: usize = 1000;

/// More counts than any response has; the rest is not looked at. Each of them becomes a
/// command and a key.
const MAX_COUNTS: usize = 32;

/// A longer value is no figure.
const MAX_VALUE: usize = 4096;

impl<'h> Fields<'h> {
    fn new(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> Self {
        let readable = headers.into_iter().take(MAX_LINES).filter_map(|(name, value)| {
            let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_VALUE)?;
            Some((name.trim_ascii(), value.trim_ascii()))
        });
        Self(readable.collect())
    }

    fn lines(&self, name: &str) -> impl Iterator<Item = &'h str> {
        self.0.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// All lines of a field as one, which is how HTTP has them.
    fn joined(&self, name: &str) -> Option<String> {
        let lines: Vec<_> = self.lines(name).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// The longest wait that the response asks for.
    fn retry_after(&self, now: Moment) -> Option<Duration> {
        let ms = |name| self.lines(name).filter_map(values::milliseconds).max();
        ms("retry-after-ms").or_else(|| ms("x-ms-retry-after-ms")).or_else(|| {
            let read = |text| values::seconds(text).or_else(|| values::until(values::http_date(text)?, now));
            self.lines("retry-after").filter_map(read).max()
        })
    }

    /// The counts of a vendor.
    fn of(&self, vendor: &Vendor, now: Moment) -> Vec<Found> {
        let quotas = vendor.quotas.iter().filter_map(|quota| {
            let (limit, remaining) = match quota.left {
                Left::Of { limit, remaining } => (self.one(limit), self.one(remaining)),
                Left::UsedOf(name) => {
                    let said = self.members(name).filter_map(|text| {
                        let (used, limit) = text.split_once('/')?;
                        let (used, limit) = (values::tokens(used)?, values::tokens(limit)?);
                        let left = limit.millionths().saturating_sub(used.millionths());
                        Some((Tokens::from_millionths(left).ok()?, limit))
                    });
                    said.min().map(|(left, limit)| (Some(limit), Some(left))).unwrap_or_default()
                }
            };
            let reset = quota.reset.iter().find_map(|name| self.latest(name, now));
            if remaining.is_none() && limit.is_none() && reset.is_none() {
                return None;
            }
            let mut found = Found { remaining, limit, counted: quota.counted, ..Found::default() };
            found.policy = Some(quota.policy.unwrap_or(DEFAULT).to_owned());
            found.is_named = quota.policy.is_some();
            found.set_reset(reset, now, |_| vendor.window);
            Some(found)
        });
        quotas.collect()
    }

    /// The members of the list that all lines of a field make. One number with separators is
    /// none of two.
    fn members(&self, name: &str) -> impl Iterator<Item = &'h str> {
        self.lines(name).filter(|text| !values::has_thousands(text)).flat_map(|text| text.split(',').map(str::trim_ascii))
    }

    /// One amount; of several the least.
    fn one(&self, name: &str) -> Option<Tokens> {
        self.members(name).filter_map(values::tokens).min()
    }

    /// One reset; of several the latest.
    fn latest(&self, name: &str, now: Moment) -> Option<Reset> {
        let resets = self.lines(name).flat_map(|text| match values::reset(text) {
            // A date has a comma of its own.
            Some(reset) => vec![reset],
            None => text.split(',').filter_map(|text| values::reset(text.trim_ascii())).collect(),
        });
        resets.max_by_key(|reset| reset.ahead_of(now))
    }

    /// The counts of a vendor that is not known, or whose own fields are missing.
    fn guess(&self, vendor: Option<&Vendor>, now: Moment) -> Vec<Found> {
        // One whose resets are not known says nothing of them.
        let vendor = vendor.filter(|vendor| !vendor.quotas.is_empty());
        let policy = self.joined("ratelimit-policy");
        if let Some(limit) = self.joined("ratelimit") {
            let found = ietf::quotas(&limit, policy.as_deref());
            if !found.is_empty() {
                return found;
            }
        }
        for (prefix, ietf) in [("ratelimit", true), ("x-ratelimit", false), ("x-rate-limit", false)] {
            let window = |reset: Reset| vendor.map_or(ietf || matches!(reset, Reset::Epoch(_)), |vendor| vendor.window || ietf);
            let found = self.three(prefix, now, window);
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// `-limit`, `-remaining` and `-reset`. Where all list as many values, each place
    /// is a policy of its own, named by its number.
    fn three(&self, prefix: &str, now: Moment, window: impl Fn(Reset) -> bool) -> Vec<Found> {
        let field = |name: &str| self.joined(&format!("{prefix}-{name}"));
        let (limit, remaining, reset) = (field("limit"), field("remaining"), field("reset"));
        let reset = reset.or_else(|| field("reset-after"));
        let reset_list: Vec<&str> = match &reset {
            // A date has a comma of its own.
            Some(text) if values::reset(text).is_some() => vec![text],
            Some(text) => text.split(',').map(str::trim_ascii).collect(),
            None => Vec::new(),
        };
        let list = |text: &Option<String>| -> Vec<Option<Tokens>> {
            let parts = text.iter().filter(|text| !values::has_thousands(text)).flat_map(|text| text.split(','));
            // `100;w=60`: what follows the semicolon describes the policy.
            parts.map(|part| values::tokens(part.split(';').next().unwrap_or_default().trim_ascii())).collect()
        };
        let (mut limits, mut remainings, mut resets) = (list(&limit), list(&remaining), reset_list);
        // What all fields say the same of each place is said once.
        if says_once(&limits) && says_once(&remainings) && says_once(&resets) {
            limits.truncate(1);
            remainings.truncate(1);
            resets.truncate(1);
        }
        let reset_list = resets;
        let places = remainings.len().max(1);
        let agree = places == 1 || ((limits.len() == places || limits.is_empty()) && [0, 1, places].contains(&reset_list.len()));
        let found = (0..places).filter(|_| agree).filter_map(|place| {
            let reset = reset_list.get(place).or(reset_list.first()).and_then(|text| values::reset(text));
            let remaining = remainings.get(place).copied().flatten();
            let limit = limits.get(place).copied().flatten();
            if remaining.is_none() && limit.is_none() && reset.is_none() {
                return None;
            }
            let mut found = Found { policy: Some((place + 1).to_string()), remaining, limit, ..Found::default() };
            found.set_reset(reset, now, &window);
            Some(found)
        });
        found.collect()
    }
}

/// Whether a list has no two members that differ.
fn says_once<T: PartialEq>(list: &[T]) -> bool {
    list.windows(2).all(|pair| pair.first() == pair.last())
}

/// The name of a count that has none, beside others.
const DEFAULT: &str = "default";

impl Found {
    fn set_reset(&mut self, reset: Option<Reset>, now: Moment, window: impl Fn(Reset) -> bool) {
        let Some(reset) = reset else { return };
        self.window = window(reset);
        self.reset = match reset {
            Reset::In(duration) => Some(duration),
            Reset::Epoch(then) | Reset::Date(then) => values::until(then, now),
        };
        let past = matches!(reset, Reset::Epoch(then) | Reset::Date(then) if then <= now);
        self.stale = self.window && past;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_with_countless_policies_is_not_followed() {
        let lines: Vec<_> =
            (0..500).map(|line| (0..100).map(|nth| format!("\"{line}-{nth}\";r=1")).collect::<Vec<_>>().join(",")).collect();
        let headers = lines.iter().map(|line| ("ratelimit", line.as_bytes()));
        let advice = Reader::new().read(200, headers, SystemTime::now());
        assert_eq!((advice.action, advice.policies.len()), (Action::Sync, MAX_COUNTS));
    }
}
