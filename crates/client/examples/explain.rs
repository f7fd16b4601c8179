//! What a response means: reads a status line and header lines on standard input and
//! prints one line of JSON.
//!
//! ```text
//! $ curl -si https://api.example.com/ | cargo run -q -p tokenbucket-client --example explain -- --preset github
//! {"action":"sync","seconds":null,"remaining":59,"limit":60,"reset_seconds":3600,"window":true,"preset":"github"}
//! ```
//!
//! `--now UNIX-SECONDS` is the time to compare moments with where the response has no
//! `Date`; `--default SECONDS` is the penalty for a 429 with nothing in it. Reading
//! stops at the first empty line, so a body may follow.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use tokenbucket_client::headers::{Action, Preset, Reader};

fn main() -> ExitCode {
    match explain(std::env::args().skip(1)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("explain: {error}");
            ExitCode::from(2)
        }
    }
}

fn explain(mut arguments: impl Iterator<Item = String>) -> Result<String, String> {
    let (mut reader, mut preset, mut now) = (Reader::new(), None, SystemTime::now());
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--preset" => preset = Some(value.parse::<Preset>().map_err(|error| error.to_string())?),
            "--now" => now = SystemTime::UNIX_EPOCH.checked_add(seconds(&value)?).ok_or("that is too far away")?,
            "--default" => reader = reader.default_penalty(seconds(&value)?),
            _ => return Err(format!("there is no {option}; there are --preset NAME, --now UNIX-SECONDS, --default SECONDS")),
        }
    }
    if let Some(preset) = preset {
        reader = reader.preset(preset);
    }
    let (status, lines) = response(io::stdin().lock())?;
    let headers = lines.iter().filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        Some((std::str::from_utf8(name).ok()?, value.get(1..)?))
    });
    let advice = reader.read(status, headers, now);
    let (action, penalty) = match advice.action {
        Action::Penalise(penalty) => ("penalise", penalty),
        Action::Sync => ("sync", None),
        _ => ("none", None),
    };
    let quota = advice.quota.as_ref();
    Ok(format!(
        r#"{{"action":"{action}","seconds":{},"remaining":{},"limit":{},"reset_seconds":{},"window":{},"preset":{}}}"#,
        or_null(penalty.map(decimal)),
        or_null(quota.and_then(|quota| quota.remaining)),
        or_null(quota.and_then(|quota| quota.limit)),
        or_null(quota.and_then(|quota| quota.reset).map(decimal)),
        // A penalty is sent instead of it.
        action == "sync" && quota.is_some_and(|quota| quota.window),
        or_null(preset.map(|preset| format!("\"{preset}\""))),
    ))
}

/// The status of the first line (`HTTP/1.1 429 Too Many Requests`, or `429` alone) and
/// the header lines after it; of the response itself, not of what comes before it.
fn response(input: impl io::BufRead) -> Result<(u16, Vec<Vec<u8>>), String> {
    let mut lines = input.split(b'\n').map(|line| line.map(|line| line.trim_ascii_end().to_vec()));
    loop {
        let first = lines.next().ok_or("nothing on standard input")?.map_err(|error| error.to_string())?;
        let first = String::from_utf8_lossy(&first).into_owned();
        let mut words = first.split_ascii_whitespace();
        let status = words.next().and_then(|word| if word.starts_with("HTTP/") { words.next() } else { Some(word) });
        let status = status.and_then(|word| word.parse().ok()).filter(|status| (100..=599).contains(status));
        let status = status.ok_or_else(|| format!("the first line must be a status line, not '{first}'"))?;
        let headers = lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        // What curl prints of a proxy, and a "100 Continue", come before the response.
        if status >= 200 && !first.to_ascii_lowercase().ends_with("connection established") {
            return Ok((status, headers));
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    Duration::try_from_secs_f64(number).map_err(|error| format!("'{text}': {error}"))
}

/// Seconds with the decimals they came with.
fn decimal(duration: Duration) -> String {
    let text = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}
