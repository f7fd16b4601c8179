//! The example `explain`, driven as a person would: what each vendor's response means.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// 2025-11-30T13:10:47Z
const NOW: &str = "1764508247";

/// The example, built if `cargo test` was told to build less.
fn binary() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // Always as the debug build, whatever this test is.
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).expect("target/<profile>/deps");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "tokenbucket-client", "--example", "explain", "--target-dir"]);
        assert!(build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        target.join("debug/examples/explain")
    })
}

fn run(arguments: &[&str], response: &str) -> (bool, String, String) {
    let mut child = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(response.as_bytes()); // it may have seen enough
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Runs it on a response whose lines are separated by `|`; gives back the line of
/// JSON without `preset`, in short form.
#[track_caller]
fn explain(preset: Option<&str>, response: &str) -> String {
    let mut arguments = vec!["--now", NOW];
    arguments.extend(preset.iter().flat_map(|preset| ["--preset", preset]));
    let (ok, line, error) = run(&arguments, &response.replace('|', "\r\n"));
    assert!(ok, "{error}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(json["preset"].as_str(), preset);
    assert_eq!(json.as_object().unwrap().len(), 7, "{line}");
    let field = |name: &str| if json[name].is_null() { "-".to_owned() } else { json[name].to_string() };
    let window = if json["window"].as_bool().unwrap() { " window" } else { "" };
    let action = json["action"].as_str().unwrap();
    format!(
        "{action} {} left {} of {} reset {}{window}",
        field("seconds"),
        field("remaining"),
        field("limit"),
        field("reset_seconds")
    )
}

#[track_caller]
fn all(preset: Option<&str>, table: &[(&str, &str)]) {
    for (response, expected) in table {
        assert_eq!(&explain(preset, response), expected, "{preset:?} {response}");
    }
}

#[test]
fn the_line_has_every_part_and_keeps_decimals() {
    let (_, line, _) = run(&["--now", NOW, "--preset", "shopify"], "HTTP/1.1 429 Too Many Requests\nRetry-After: 2.5\n");
    let expected = r#"{"action":"penalise","seconds":2.5,"remaining":null,"limit":null,"reset_seconds":null,"window":false,"preset":"shopify"}"#;
    assert_eq!(line.trim_end(), expected);
}

#[test]
fn wrong_use_is_said_and_fails() {
    for (arguments, response, expected) in [
        (vec!["--preset", "acme"], "HTTP/1.1 200 OK\n", "no such preset; there are github, hubspot"),
        (vec!["--now", "x"], "HTTP/1.1 200 OK\n", "'x' is not a number of seconds"),
        (vec!["--now"], "HTTP/1.1 200 OK\n", "--now needs a value"),
        (vec!["--speed", "5"], "HTTP/1.1 200 OK\n", "there is no --speed"),
        (vec!["--now", "1e300"], "HTTP/1.1 200 OK\n", "'1e300'"),
        (vec!["--now", "1e19"], "HTTP/1.1 200 OK\n", "too far away"),
        (vec![], "", "nothing on standard input"),
        (vec![], "Retry-After: 5\n", "the first line must be a status line"),
        (vec![], "HTTP/1.1 999 No\n", "the first line must be a status line"),
    ] {
        let (ok, _, error) = run(&arguments, response);
        assert!(!ok && error.contains(expected), "{arguments:?} {response:?}: {error}");
    }
}

#[test]
fn what_comes_before_the_response_is_passed_over() {
    for before in ["HTTP/1.1 100 Continue||", "HTTP/1.1 200 Connection established|via: proxy||HTTP/2 103|link: x||"] {
        let response = format!("{before}HTTP/2 429|retry-after: 9||HTTP/2 200");
        assert_eq!(explain(None, &response), "penalise 9 left - of - reset -", "{before}");
    }
}

#[test]
fn github() {
    all(
        Some("github"),
        &[
            (
                "HTTP/2 200|date: Sun, 30 Nov 2025 13:10:47 GMT|x-ratelimit-limit: 5000|x-ratelimit-remaining: 4987|x-ratelimit-reset: 1764509447|x-ratelimit-used: 13|x-ratelimit-resource: core",
                "sync - left 4987 of 5000 reset 1200 window",
            ),
            (
                "HTTP/2 403|x-ratelimit-limit: 60|x-ratelimit-remaining: 0|x-ratelimit-reset: 1764508307",
                "penalise 60 left 0 of 60 reset 60",
            ),
            (
                "HTTP/2 403|retry-after: 30|x-ratelimit-remaining: 4000|x-ratelimit-limit: 5000|x-ratelimit-reset: 1764509447",
                "penalise 30 left 4000 of 5000 reset 1200",
            ),
            // A plain "forbidden" is not a rate limit.
            (
                "HTTP/2 403|x-ratelimit-remaining: 4000|x-ratelimit-limit: 5000|x-ratelimit-reset: 1764509447",
                "sync - left 4000 of 5000 reset 1200 window",
            ),
            // A secondary limit without a figure: the page asks for a minute.
            (
                "HTTP/2 429|x-ratelimit-remaining: 4000|x-ratelimit-limit: 5000|x-ratelimit-reset: 1764509447",
                "penalise 60 left 4000 of 5000 reset 1200",
            ),
            ("HTTP/2 502|x-ratelimit-remaining: 0|x-ratelimit-reset: 1764509447", "sync - left 0 of - reset 1200 window"),
        ],
    );
}

#[test]
fn hubspot() {
    let ok = "HTTP/1.1 200 OK|X-HubSpot-RateLimit-Daily: 250000|X-HubSpot-RateLimit-Daily-Remaining: 249998|X-HubSpot-RateLimit-Interval-Milliseconds: 10000|X-HubSpot-RateLimit-Max: 100|X-HubSpot-RateLimit-Remaining: 97";
    all(
        Some("hubspot"),
        &[
            (ok, "sync - left 97 of 100 reset -"),
            (
                "HTTP/1.1 200 OK|X-HubSpot-RateLimit-Daily: 250000|X-HubSpot-RateLimit-Daily-Remaining: 2|X-HubSpot-RateLimit-Secondly: 10|X-HubSpot-RateLimit-Secondly-Remaining: 9",
                "sync - left 2 of 250000 reset -",
            ),
            (
                "HTTP/1.1 429 Too Many Requests|X-HubSpot-RateLimit-Max: 100|X-HubSpot-RateLimit-Remaining: 0",
                "penalise - left 0 of 100 reset -",
            ),
        ],
    );
}

#[test]
fn shopify() {
    all(
        Some("shopify"),
        &[
            ("HTTP/1.1 200 OK|X-Shopify-Shop-Api-Call-Limit: 32/40", "sync - left 8 of 40 reset -"),
            (
                "HTTP/1.1 429 Too Many Requests|Retry-After: 2.0|X-Shopify-Shop-Api-Call-Limit: 40/40",
                "penalise 2 left 0 of 40 reset -",
            ),
            ("HTTP/1.1 200 OK|X-Shopify-Shop-Api-Call-Limit: 41/40", "sync - left 0 of 40 reset -"),
            ("HTTP/1.1 200 OK|X-Shopify-Shop-Api-Call-Limit: 32 of 40", "none - left - of - reset -"),
            ("HTTP/1.1 200 OK|X-Shopify-Shop-Api-Call-Limit: -1/40", "none - left - of - reset -"),
        ],
    );
}

#[test]
fn slack() {
    all(
        Some("slack"),
        &[
            ("HTTP/2 429|retry-after: 30|content-type: application/json", "penalise 30 left - of - reset -"),
            ("HTTP/2 200|content-type: application/json", "none - left - of - reset -"),
            // Should it ever send more, that is read as of one who is not known.
            ("HTTP/2 200|x-ratelimit-remaining: 3|x-ratelimit-reset: 1764508307", "sync - left 3 of - reset 60 window"),
        ],
    );
}

#[test]
fn x() {
    all(
        Some("x"),
        &[
            (
                "HTTP/2 200|x-rate-limit-limit: 900|x-rate-limit-remaining: 847|x-rate-limit-reset: 1764508847",
                "sync - left 847 of 900 reset 600 window",
            ),
            (
                "HTTP/2 429|x-rate-limit-limit: 900|x-rate-limit-remaining: 0|x-rate-limit-reset: 1764508847",
                "penalise 600 left 0 of 900 reset 600",
            ),
            (
                "HTTP/2 200|x-rate-limit-limit: 900|x-rate-limit-remaining: 847|x-rate-limit-reset: 1764508847|x-user-limit-24hour-limit: 100|x-user-limit-24hour-remaining: 3|x-user-limit-24hour-reset: 1764594647",
                "sync - left 3 of 100 reset 86400 window",
            ),
        ],
    );
}

#[test]
fn discord() {
    all(
        Some("discord"),
        &[
            (
                "HTTP/2 200|x-ratelimit-limit: 5|x-ratelimit-remaining: 4|x-ratelimit-reset: 1764508248.250|x-ratelimit-reset-after: 1.250|x-ratelimit-bucket: abcd1234",
                "sync - left 4 of 5 reset 1.25 window",
            ),
            (
                "HTTP/2 429|retry-after: 65|x-ratelimit-limit: 10|x-ratelimit-remaining: 0|x-ratelimit-reset-after: 64.57|x-ratelimit-scope: user",
                "penalise 65 left 0 of 10 reset 64.57",
            ),
            (
                "HTTP/2 429|x-ratelimit-limit: 10|x-ratelimit-remaining: 0|x-ratelimit-reset-after: 64.57",
                "penalise 64.57 left 0 of 10 reset 64.57",
            ),
            (
                "HTTP/2 200|x-ratelimit-limit: 5|x-ratelimit-remaining: 0|x-ratelimit-reset: 1764508249.5",
                "sync - left 0 of 5 reset 2.5 window",
            ),
        ],
    );
}

#[test]
fn openai() {
    all(
        Some("openai"),
        &[
            (
                "HTTP/2 200|x-ratelimit-limit-requests: 60|x-ratelimit-limit-tokens: 150000|x-ratelimit-remaining-requests: 59|x-ratelimit-remaining-tokens: 149984|x-ratelimit-reset-requests: 1s|x-ratelimit-reset-tokens: 6m0s",
                "sync - left 59 of 60 reset 1",
            ),
            // Tokens are another unit: they decide only when there are none.
            (
                "HTTP/2 200|x-ratelimit-remaining-requests: 4999|x-ratelimit-remaining-tokens: 300",
                "sync - left 4999 of - reset -",
            ),
            (
                "HTTP/2 200|x-ratelimit-remaining-requests: 4999|x-ratelimit-remaining-tokens: 0|x-ratelimit-reset-tokens: 12ms",
                "sync - left 0 of - reset 0.012",
            ),
            // The time to full is no penalty.
            ("HTTP/2 429|x-ratelimit-remaining-requests: 0|x-ratelimit-reset-requests: 6m0s", "penalise - left 0 of - reset 360"),
            ("HTTP/2 429|retry-after: 20|retry-after-ms: 19582", "penalise 19.582 left - of - reset -"),
            ("HTTP/2 503|retry-after: 5", "penalise 5 left - of - reset -"),
            ("HTTP/2 500|x-ratelimit-remaining-requests: 3", "sync - left 3 of - reset -"),
        ],
    );
}

#[test]
fn anthropic() {
    let limits = "anthropic-ratelimit-requests-limit: 50|anthropic-ratelimit-requests-remaining: 49|anthropic-ratelimit-requests-reset: 2025-11-30T13:10:48Z|anthropic-ratelimit-input-tokens-limit: 40000|anthropic-ratelimit-input-tokens-remaining: 39000|anthropic-ratelimit-input-tokens-reset: 2025-11-30T13:10:49Z";
    all(
        Some("anthropic"),
        &[
            (&format!("HTTP/2 200|{limits}"), "sync - left 49 of 50 reset 1"),
            (&format!("HTTP/2 429|retry-after: 12|{limits}"), "penalise 12 left 49 of 50 reset 1"),
            (&format!("HTTP/2 429|{limits}"), "penalise - left 49 of 50 reset 1"),
            ("HTTP/2 529|retry-after: 3", "penalise 3 left - of - reset -"),
            ("HTTP/2 529", "none - left - of - reset -"),
        ],
    );
}

#[test]
fn stripe() {
    all(
        Some("stripe"),
        &[
            ("HTTP/2 429|stripe-rate-limited-reason: global-rate|request-id: req_1", "penalise - left - of - reset -"),
            ("HTTP/2 200|request-id: req_1", "none - left - of - reset -"),
        ],
    );
    let (_, line, _) = run(&["--preset", "stripe", "--default", "1.5"], "HTTP/2 429\n");
    assert!(line.contains(r#""seconds":1.5"#), "{line}");
}

#[test]
fn retry_after_has_four_forms_and_beats_the_rest() {
    all(
        None,
        &[
            ("HTTP/1.1 429|Retry-After: 120", "penalise 120 left - of - reset -"),
            ("429|retry-after: 0.5", "penalise 0.5 left - of - reset -"),
            ("HTTP/1.1 429|Retry-After: Sun, 30 Nov 2025 13:11:47 GMT", "penalise 60 left - of - reset -"),
            ("HTTP/1.1 429|Retry-After: Sunday, 30-Nov-25 13:11:47 GMT", "penalise 60 left - of - reset -"),
            ("HTTP/1.1 429|retry-after-ms: 1500", "penalise 1.5 left - of - reset -"),
            ("HTTP/1.1 429|Retry-After: 0", "penalise 0 left - of - reset -"),
            (
                "HTTP/1.1 429|Retry-After: 5|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508847",
                "penalise 5 left 0 of - reset 600",
            ),
            // The response's own clock counts, not ours.
            (
                "HTTP/1.1 429|Date: Sun, 30 Nov 2025 13:11:17 GMT|Retry-After: Sun, 30 Nov 2025 13:11:47 GMT",
                "penalise 30 left - of - reset -",
            ),
            // Of two the longer.
            ("HTTP/1.1 429|Retry-After: 5|Retry-After: 50", "penalise 50 left - of - reset -"),
        ],
    );
}

#[test]
fn junk_is_no_value_never_0_and_never_a_year() {
    for junk in [
        "-1",
        "-0",
        "",
        "soon",
        "1e3",
        "NaN",
        "inf",
        "+5",
        "0x10",
        "5 seconds",
        "1,5",
        "1764508307",
        "1764508307000",
        "99999999999999999999999",
        "31622401",
        "Mon, 01 Jan 2024 00:00:00 GMT",
        "Sun, 31 Feb 2026 00:00:00 GMT",
        "2025-11-30T13:11:47Z",
        "\u{661}",
        "5s",
    ] {
        assert_eq!(explain(None, &format!("HTTP/1.1 429|Retry-After: {junk}")), "penalise - left - of - reset -", "{junk:?}");
    }
    for junk in ["-1", "", "none", "unlimited", "1e3", "NaN", "9999999999999", "--5", "5 of 10"] {
        let response = format!("HTTP/1.1 200|X-RateLimit-Remaining: {junk}|X-RateLimit-Limit: {junk}");
        assert_eq!(explain(None, &response), "none - left - of - reset -", "{junk:?}");
    }
    for junk in
        ["-1", "", "tomorrow", "1e9", "40000000", "-1764508307", "2025-13-30T13:11:47Z", "1d", "5 m", "99999999999999999999"]
    {
        let response = format!("HTTP/1.1 200|X-RateLimit-Remaining: 7|X-RateLimit-Reset: {junk}");
        assert_eq!(explain(None, &response), "sync - left 7 of - reset -", "{junk:?}");
    }
}

#[test]
fn a_long_penalty_is_capped() {
    assert_eq!(explain(None, "HTTP/1.1 429|Retry-After: 1000000"), "penalise 604800 left - of - reset -");
}

#[test]
fn a_reset_is_read_in_every_form_and_is_a_window_only_as_a_unix_time() {
    for (reset, expected) in [
        ("30", "30"),
        ("30.5", "30.5"),
        ("1764508307", "60 window"),
        ("1764508307.25", "60.25 window"),
        ("1764508307250", "60.25 window"),
        ("6m0s", "360"),
        ("12ms", "0.012"),
        ("2025-11-30T13:11:47Z", "60"),
        ("2025-11-30T15:11:47.5+02:00", "60.5"),
        ("Sun, 30 Nov 2025 13:11:47 GMT", "60"),
    ] {
        for prefix in ["X-RateLimit", "X-Rate-Limit"] {
            let response = format!("HTTP/1.1 200|{prefix}-Limit: 100|{prefix}-Remaining: 12.5|{prefix}-Reset: {reset}");
            assert_eq!(explain(None, &response), format!("sync - left 12.5 of 100 reset {expected}"), "{reset}");
        }
    }
}

#[test]
fn a_window_that_is_over_says_nothing() {
    all(
        None,
        &[
            ("HTTP/1.1 200|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508247", "none - left - of - reset -"),
            ("HTTP/1.1 200|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508000", "none - left - of - reset -"),
            ("HTTP/1.1 200|RateLimit: \"default\";r=0;t=0", "none - left - of - reset -"),
            // By the vendor's own clock it is not over.
            (
                "HTTP/1.1 200|Date: Sun, 30 Nov 2025 13:00:47 GMT|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508000",
                "sync - left 0 of - reset 353 window",
            ),
            ("HTTP/1.1 429|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508000", "penalise - left - of - reset -"),
        ],
    );
}

#[test]
fn a_window_that_ends_too_late_to_be_believed_has_no_end() {
    all(
        None,
        &[
            // 366 days ahead, and a second more.
            ("HTTP/1.1 200|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1796130647", "sync - left 0 of - reset 31622400 window"),
            ("HTTP/1.1 200|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1796130648", "sync - left 0 of - reset -"),
            ("HTTP/1.1 200|RateLimit: \"default\";r=3;t=31622401", "sync - left 3 of - reset -"),
            ("HTTP/1.1 429|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1796130648", "penalise - left 0 of - reset -"),
            // Believed, but longer than the cap of a penalty.
            ("HTTP/1.1 429|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1796130647", "penalise 604800 left 0 of - reset 31622400"),
        ],
    );
}

#[test]
fn only_a_429_penalises_without_a_preset() {
    all(
        None,
        &[
            ("HTTP/1.1 403|Retry-After: 5", "none - left - of - reset -"),
            ("HTTP/1.1 503|Retry-After: 5|X-RateLimit-Remaining: 3", "sync - left 3 of - reset -"),
            ("HTTP/1.1 429|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1764508307", "penalise 60 left 0 of - reset 60"),
            ("HTTP/1.1 429|X-RateLimit-Reset: 1764508307", "penalise 60 left - of - reset 60"),
            // The time to full is no penalty.
            ("HTTP/1.1 429|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 60", "penalise - left 0 of - reset 60"),
            // Something is left in this window: it is another limit that was hit.
            ("HTTP/1.1 429|X-RateLimit-Remaining: 9|X-RateLimit-Reset: 1764508307", "penalise - left 9 of - reset 60"),
        ],
    );
}

#[test]
fn the_ietf_fields_are_read_in_every_draft() {
    all(
        None,
        &[
            (
                "HTTP/1.1 200|RateLimit-Policy: \"burst\";q=100;w=60|RateLimit: \"burst\";r=50;t=30",
                "sync - left 50 of 100 reset 30 window",
            ),
            // Several policies: the tightest decides.
            (
                "HTTP/1.1 200|RateLimit-Policy: \"burst\";q=100;w=60, \"daily\";q=1000;w=86400|RateLimit: \"burst\";r=50;t=30,\"daily\";r=3;t=7200",
                "sync - left 3 of 1000 reset 7200 window",
            ),
            ("HTTP/1.1 200|RateLimit: \"a\";r=50;t=30|RateLimit: \"b\";r=5;t=40", "sync - left 5 of - reset 40 window"),
            // Bytes are not requests.
            (
                "HTTP/1.1 200|RateLimit-Policy: \"b\";q=1000;qu=\"content-bytes\", \"r\";q=10|RateLimit: \"b\";r=4;t=9, \"r\";r=7;t=9",
                "sync - left 7 of 10 reset 9 window",
            ),
            ("HTTP/1.1 429|RateLimit: \"burst\";r=0;t=30", "penalise 30 left 0 of - reset 30"),
            ("HTTP/1.1 429|RateLimit: \"burst\";r=0;t=30, \"daily\";r=0;t=300", "penalise 300 left 0 of - reset 300"),
            // Draft 07 and before.
            ("HTTP/1.1 200|RateLimit: limit=100, remaining=50, reset=30", "sync - left 50 of 100 reset 30 window"),
            (
                "HTTP/1.1 200|RateLimit-Limit: 100, 100;w=60, 1000;w=3600|RateLimit-Remaining: 50|RateLimit-Reset: 30",
                "sync - left 50 of 100 reset 30 window",
            ),
            // They beat the others.
            ("HTTP/1.1 200|RateLimit: \"a\";r=5;t=3|X-RateLimit-Remaining: 1", "sync - left 5 of - reset 3 window"),
            // Junk is no value.
            ("HTTP/1.1 200|RateLimit: \"a\";r=-5;t=3", "none - left - of - reset -"),
            ("HTTP/1.1 200|RateLimit: \"a\";r=5;t=-3", "sync - left 5 of - reset -"),
            ("HTTP/1.1 200|RateLimit: \"a;r=5", "none - left - of - reset -"),
            ("HTTP/1.1 200|RateLimit: \"a\";r=5;t=999999999", "sync - left 5 of - reset -"),
        ],
    );
}

#[test]
fn what_comes_twice_is_read_by_one_rule() {
    let once = "sync - left 5 of 10 reset 60 window";
    all(
        None,
        &[
            (
                "HTTP/1.1 200|X-RateLimit-Limit: 10, 10|X-RateLimit-Remaining: 5, 5|X-RateLimit-Reset: 1764508307, 1764508307",
                once,
            ),
            (
                "HTTP/1.1 200|X-RateLimit-Limit: 10|X-RateLimit-Limit: 10|X-RateLimit-Remaining: 5|X-RateLimit-Remaining: 5|X-RateLimit-Reset: 1764508307",
                once,
            ),
            ("HTTP/1.1 200|X-RateLimit-Limit: 10|X-RateLimit-Remaining: 5, 5|X-RateLimit-Reset: 1764508307", once),
            // Equal in one field, and policies by the others.
            (
                "HTTP/1.1 200|X-RateLimit-Limit: 10, 100|X-RateLimit-Remaining: 5, 5|X-RateLimit-Reset: 1, 60",
                "sync - left 5 of 100 reset 60",
            ),
        ],
    );
    all(
        Some("github"),
        &[
            (
                "HTTP/2 200|x-ratelimit-remaining: 5, 4|x-ratelimit-limit: 10|x-ratelimit-reset: 1764508300|x-ratelimit-reset: 1764508307",
                "sync - left 4 of 10 reset 60 window",
            ),
            ("HTTP/2 200|x-ratelimit-remaining: 5,000|x-ratelimit-limit: 10", "none - left - of 10 reset -"),
        ],
    );
    all(
        Some("shopify"),
        &[
            (
                "HTTP/1.1 200|X-Shopify-Shop-Api-Call-Limit: 32/40|X-Shopify-Shop-Api-Call-Limit: 32/40",
                "sync - left 8 of 40 reset -",
            ),
            ("HTTP/1.1 200|X-Shopify-Shop-Api-Call-Limit: 32/40, 35/40", "sync - left 5 of 40 reset -"),
        ],
    );
}

#[test]
fn lists_of_several_policies_are_kept_apart() {
    all(
        None,
        &[
            (
                "HTTP/1.1 200|X-RateLimit-Limit: 10, 100|X-RateLimit-Remaining: 9, 4|X-RateLimit-Reset: 1, 60",
                "sync - left 4 of 100 reset 60",
            ),
            (
                "HTTP/1.1 200|X-RateLimit-Limit: 10|X-RateLimit-Remaining: 9, 4|X-RateLimit-Reset: 1, 60",
                "none - left - of - reset -",
            ),
            // One number with a separator is no list, or nothing would be left.
            ("HTTP/1.1 200|X-RateLimit-Limit: 5,000|X-RateLimit-Remaining: 4,000", "none - left - of - reset -"),
            ("HTTP/1.1 200|X-RateLimit-Limit: 5,000|X-RateLimit-Remaining: 999", "sync - left 999 of - reset -"),
        ],
    );
}
