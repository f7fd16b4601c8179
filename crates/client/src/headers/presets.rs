//! What is known of each vendor, as a table.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Counted;

/// A vendor whose response headers are known.
///
/// Pages were read as stored copies on 2026-11-30; where a copy held only the
/// beginning of a page, that is said. A policy that is named here has a bucket of its own,
/// [`policy_key`](super::policy_key), whether it comes alone or beside others.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// GitHub's REST API: `x-ratelimit-limit`, `-remaining` and `-reset`, a Unix time
    /// at which the window **ends**. A 403 means the same as a 429 where it has a
    /// `retry-after`, or nothing is left; with neither, a 429 is a secondary limit,
    /// for which the page asks to wait a minute. Each `x-ratelimit-resource` is counted
    /// apart, so use a key for each.
    ///
    /// <https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api>,
    /// read whole in its source.
    GitHub,
    /// HubSpot: `X-HubSpot-RateLimit-Max` and `-Remaining` for an interval of ten
    /// seconds, `-Daily` and `-Secondly` with a `-Remaining` each. They are policies
    /// `interval`, `daily` and `secondly`. None has a reset: the day ends at midnight
    /// of the account's time zone, which no header tells, and the length of the
    /// interval is not what is left of it.
    ///
    /// <https://developers.hubspot.com/changelog/2018-11-06-rate-limit-information-headers-will-be-included-in-http-responses>
    /// for the day and the second. Of the usage guidelines
    /// (<https://developers.hubspot.com/docs/guides/apps/api-usage/usage-details>) the
    /// copy did not hold the table of headers: the interval's names could not be checked.
    HubSpot,
    /// Shopify's REST Admin API: `X-Shopify-Shop-Api-Call-Limit: 32/40`, used and
    /// bucket size. The bucket leaks all the time, so there is no reset; a 429 has a
    /// `Retry-After` with decimals.
    ///
    /// <https://shopify.dev/docs/api/admin-rest/usage/rate-limits> (its beginning) and
    /// <https://shopify.dev/docs/api/usage/limits> (its beginning).
    Shopify,
    /// Slack's Web API: nothing but a `Retry-After` in seconds with a 429, per method
    /// and workspace, so use a key for each of these.
    ///
    /// <https://docs.slack.dev/apis/web-api/rate-limits> (its beginning).
    Slack,
    /// X: `x-rate-limit-limit`, `-remaining` and `-reset`, a Unix time at which the
    /// window **ends**. The daily counts of an app or a user, where sent, are policies
    /// `app-24hour` and `user-24hour`, and beside them the window's own is `default`; the
    /// names of the daily headers could not be checked.
    ///
    /// <https://docs.x.com/fundamentals/rate-limits>, read whole.
    X,
    /// Discord: `X-RateLimit-Limit` and `-Remaining`, `-Reset-After` in seconds with
    /// decimals, at whose end the window **ends**, or else `-Reset`, a Unix time.
    ///
    /// <https://docs.discord.com/developers/topics/rate-limits> (its beginning), and an
    /// older version of it read whole, in which `Retry-After` was in milliseconds; it
    /// is read as the seconds it has been since.
    Discord,
    /// `OpenAI`: policies `requests` and `tokens`, with resets such as `6m0s` that tell
    /// when the count is **full again** and so are neither windows nor penalties. A
    /// 503 may have a `retry-after`.
    ///
    /// <https://platform.openai.com/docs/guides/rate-limits>: the page itself could not
    /// be read, only what <https://community.openai.com/t/535297/2> quotes of it.
    OpenAi,
    /// Anthropic: policies `requests`, `tokens`, `input-tokens` and `output-tokens`,
    /// with dates as of RFC 3339 at which each is **full again**, so neither windows
    /// nor penalties. A 529 may have a `retry-after`.
    ///
    /// <https://platform.claude.com/docs/en/api/rate-limits>: read in a copy of
    /// 2025-11-08 (response headers).
    Anthropic,
    /// Stripe: a 429 has no figures, so the default is used.
    ///
    /// <https://docs.stripe.com/rate-limits> (its beginning).
    Stripe,
}

/// What one vendor's responses look like.
pub(super) struct Vendor {
    pub(super) name: &'static str,
    /// A reset is a window's end, not the time to full.
    pub(super) window: bool,
    pub(super) penalises_403: bool,
    pub(super) penalises_5xx: bool,
    /// What the vendor asks to wait where it gives no figure.
    pub(super) wait: Option<Duration>,
    pub(super) quotas: &'static [Quota],
}

impl Vendor {
    /// The names of its policies, where it has any.
    #[cfg(feature = "limiter")]
    pub(super) fn policies(&self) -> impl Iterator<Item = &'static str> {
        let named = self.quotas.iter().any(|quota| quota.policy.is_some());
        self.quotas.iter().filter(move |_| named).map(|quota| quota.policy.unwrap_or(super::DEFAULT))
    }
}

/// The headers of one count.
pub(super) struct Quota {
    pub(super) policy: Option<&'static str>,
    pub(super) left: Left,
    /// The first of these that is there.
    pub(super) reset: &'static [&'static str],
    pub(super) counted: Counted,
}

/// Where it says what is left.
pub(super) enum Left {
    Of {
        limit: &'static str,
        remaining: &'static str,
    },
    /// `32/40`: used and most.
    UsedOf(&'static str),
}

const fn quota(
    policy: Option<&'static str>,
    limit: &'static str,
    remaining: &'static str,
    reset: &'static [&'static str],
) -> Quota {
    Quota { policy, left: Left::Of { limit, remaining }, reset, counted: Counted::InRequests }
}

const fn in_tokens(quota: Quota) -> Quota {
    Quota { counted: Counted::Otherwise, ..quota }
}

const GITHUB: Vendor = Vendor {
    name: "github",
    window: true,
    penalises_403: true,
    penalises_5xx: false,
    wait: Some(Duration::from_secs(60)),
    quotas: &[quota(None, "x-ratelimit-limit", "x-ratelimit-remaining", &["x-ratelimit-reset"])],
};

const HUBSPOT: Vendor = Vendor {
    name: "hubspot",
    window: false,
    penalises_403: false,
    penalises_5xx: false,
    wait: None,
    quotas: &[
        quota(Some("interval"), "x-hubspot-ratelimit-max", "x-hubspot-ratelimit-remaining", &[]),
        quota(Some("daily"), "x-hubspot-ratelimit-daily", "x-hubspot-ratelimit-daily-remaining", &[]),
        quota(Some("secondly"), "x-hubspot-ratelimit-secondly", "x-hubspot-ratelimit-secondly-remaining", &[]),
    ],
};

const SHOPIFY: Vendor = Vendor {
    name: "shopify",
    window: false,
    penalises_403: false,
    penalises_5xx: false,
    wait: None,
    quotas: &[Quota {
        policy: None,
        left: Left::UsedOf("x-shopify-shop-api-call-limit"),
        reset: &[],
        counted: Counted::InRequests,
    }],
};

const SLACK: Vendor =
    Vendor { name: "slack", window: false, penalises_403: false, penalises_5xx: false, wait: None, quotas: &[] };

const X: Vendor = Vendor {
    name: "x",
    window: true,
    penalises_403: false,
    penalises_5xx: false,
    wait: None,
    quotas: &[
        quota(None, "x-rate-limit-limit", "x-rate-limit-remaining", &["x-rate-limit-reset"]),
        quota(Some("app-24hour"), "x-app-limit-24hour-limit", "x-app-limit-24hour-remaining", &["x-app-limit-24hour-reset"]),
        quota(Some("user-24hour"), "x-user-limit-24hour-limit", "x-user-limit-24hour-remaining", &["x-user-limit-24hour-reset"]),
    ],
};

const DISCORD: Vendor = Vendor {
    name: "discord",
    window: true,
    penalises_403: false,
    penalises_5xx: false,
    wait: None,
    quotas: &[quota(None, "x-ratelimit-limit", "x-ratelimit-remaining", &["x-ratelimit-reset-after", "x-ratelimit-reset"])],
};

const OPENAI: Vendor = Vendor {
    name: "openai",
    window: false,
    penalises_403: false,
    penalises_5xx: true,
    wait: None,
    quotas: &[
        quota(Some("requests"), "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", &["x-ratelimit-reset-requests"]),
        in_tokens(quota(
            Some("tokens"),
            "x-ratelimit-limit-tokens",
            "x-ratelimit-remaining-tokens",
            &["x-ratelimit-reset-tokens"],
        )),
    ],
};

const ANTHROPIC: Vendor = Vendor {
    name: "anthropic",
    window: false,
    penalises_403: false,
    penalises_5xx: true,
    wait: None,
    quotas: &[
        quota(
            Some("requests"),
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            &["anthropic-ratelimit-requests-reset"],
        ),
        in_tokens(quota(
            Some("tokens"),
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            &["anthropic-ratelimit-tokens-reset"],
        )),
        in_tokens(quota(
            Some("input-tokens"),
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-remaining",
            &["anthropic-ratelimit-input-tokens-reset"],
        )),
        in_tokens(quota(
            Some("output-tokens"),
            "anthropic-ratelimit-output-tokens-limit",
            "anthropic-ratelimit-output-tokens-remaining",
            &["anthropic-ratelimit-output-tokens-reset"],
        )),
    ],
};

const STRIPE: Vendor =
    Vendor { name: "stripe", window: false, penalises_403: false, penalises_5xx: false, wait: None, quotas: &[] };

impl Preset {
    /// All there are.
    pub const ALL: &'static [Self] = &[
        Self::GitHub,
        Self::HubSpot,
        Self::Shopify,
        Self::Slack,
        Self::X,
        Self::Discord,
        Self::OpenAi,
        Self::Anthropic,
        Self::Stripe,
    ];

    /// Its name in lower case, as it is parsed.
    pub const fn name(self) -> &'static str {
        self.vendor().name
    }

    pub(super) const fn vendor(self) -> &'static Vendor {
        match self {
            Self::GitHub => &GITHUB,
            Self::HubSpot => &HUBSPOT,
            Self::Shopify => &SHOPIFY,
            Self::Slack => &SLACK,
            Self::X => &X,
            Self::Discord => &DISCORD,
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            Self::Stripe => &STRIPE,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::ALL.iter().copied().find(|preset| name.eq_ignore_ascii_case(preset.name())).ok_or(UnknownPreset {})
    }
}

/// No vendor of that name is known.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPreset {}

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Preset::ALL.iter().map(|preset| preset.name()).collect::<Vec<_>>().join(", ");
        write!(f, "no such preset; there are {names}")
    }
}

impl std::error::Error for UnknownPreset {}
