//! A short form of the demonstration, with all three fleets.
#![cfg(test)] // all of it: what tests may do, their helpers may

use std::process::Command;

use serde_json::Value;

/// Runs it and checks what does not depend on how busy the machine is.
fn run() -> Value {
    let figures = tempfile::NamedTempFile::new().unwrap();
    let drawing = tempfile::NamedTempFile::new().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    demo.args(["--jobs", "300", "--json"]).arg(figures.path()).arg("--svg").arg(drawing.path());
    assert!(demo.status().unwrap().success());

    let json: Value = serde_json::from_slice(&std::fs::read(figures.path()).unwrap()).unwrap();
    let drawing = std::fs::read_to_string(drawing.path()).unwrap();
    for mode in ["tokenbucket", "lua", "retry"] {
        let figure = |name: &str| json[mode][name].as_f64().unwrap_or_else(|| panic!("no {name} of {mode} in {json}"));
        assert_eq!((figure("jobs"), figure("done"), figure("done_twice")), (300.0, 300.0, 0.0), "{mode}: {json}");
        assert!(figure("vendor_429") >= 1.0, "the freeze surprised nobody in {mode}: {json}");
        assert!((0.2..=1.0).contains(&figure("budget_used")), "{mode}: {json}");
        assert!(figure("p50_delay_seconds") <= figure("p99_delay_seconds"), "{mode}: {json}");
        assert!(drawing.starts_with("<svg") && drawing.contains(mode), "{drawing}");
    }
    assert!(json["lua"]["redis_writes_per_job"].as_f64().unwrap() >= 2.0, "HSET and PEXPIRE: {json}");
    assert_eq!(json["retry"]["redis_writes_per_job"], 0.0, "{json}");
    json
}

fn keeps_promises(json: &Value) -> bool {
    let figure = |name: &str| json["tokenbucket"][name].as_f64().unwrap_or(f64::NAN);
    figure("calls_during_freeze") == 0.0
        && figure("vendor_429_limit_right") == 0.0
        && figure("redis_writes_per_job") <= 1.2
        && figure("redis_reads_per_job") <= 1.2
}

/// A machine that stands still for a moment costs the token bucket its zeros (see the
/// fleet's README), so it has three tries.
#[test]
fn every_job_is_done_once_and_the_token_bucket_keeps_its_promises() {
    let mut runs = Vec::new();
    while runs.len() < 3 {
        runs.push(run());
        if runs.last().is_some_and(keeps_promises) {
            return;
        }
    }
    panic!("{runs:#?}");
}
