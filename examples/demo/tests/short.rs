//! A short form of the demonstration, with the fleet that has the token bucket.
#![cfg(test)] // all of it: what tests may do, their helpers may

use std::process::Command;

use serde_json::Value;

/// Every figure that does not depend on how busy the machine is; the share of the budget
/// does, so it is only to make sense.
#[test]
fn every_job_is_done_once_and_redis_is_asked_once_for_each() {
    let figures = tempfile::NamedTempFile::new().unwrap();
    let drawing = tempfile::NamedTempFile::new().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    demo.args(["--modes", "tokenbucket", "--jobs", "300", "--json"]).arg(figures.path()).arg("--svg").arg(drawing.path());
    assert!(demo.status().unwrap().success());

    let json: Value = serde_json::from_slice(&std::fs::read(figures.path()).unwrap()).unwrap();
    let figure = |name: &str| json["tokenbucket"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {json}"));
    assert_eq!((figure("jobs"), figure("done"), figure("done_twice")), (300.0, 300.0, 0.0), "{json}");
    assert!(figure("vendor_429") >= 1.0, "the freeze surprised nobody: {json}");
    assert!((0.2..=1.0).contains(&figure("budget_used")), "{json}");
    assert!((0.5..1.5).contains(&figure("redis_writes_per_job")), "{json}");
    assert!(figure("redis_reads_per_job") < 1.5, "{json}");
    assert!(figure("p50_delay_seconds") <= figure("p99_delay_seconds"), "{json}");

    let drawing = std::fs::read_to_string(drawing.path()).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.contains("tokenbucket"), "{drawing}");
}
