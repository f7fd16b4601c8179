//! The vendor over HTTP.
#![cfg(test)] // all of it: what tests may do, their helpers may

use std::time::{Duration, UNIX_EPOCH};

use mock_vendor::book::{Account, Call};
use mock_vendor::limiter::{Settings, Window};
use mock_vendor::{Behaviour, Vendor};
use reqwest::{Client, Response, StatusCode};

struct Site {
    client: Client,
    url: String,
}

impl Site {
    async fn open(behaviour: Behaviour) -> Self {
        let (address, serving) = Vendor::new(behaviour).serve(0).await.unwrap();
        tokio::spawn(serving);
        Self { client: Client::new(), url: format!("http://{address}") }
    }

    async fn post(&self, path: &str, key: &str) -> Response {
        self.client.post(format!("{}/{path}", self.url)).header("idempotency-key", key).send().await.unwrap()
    }

    async fn account(&self) -> Account {
        self.client.get(format!("{}/account", self.url)).send().await.unwrap().json().await.unwrap()
    }
}

fn header<'r>(response: &'r Response, name: &str) -> &'r str {
    response.headers().get(name).unwrap_or_else(|| panic!("no {name}: {response:?}")).to_str().unwrap()
}

/// Nothing refills while a test runs.
const SLOW: Behaviour = Behaviour {
    settings: Settings { rate: 1, burst: 2, window: None },
    surprises: Vec::new(),
    others: 0.0,
    latency: (Duration::ZERO, Duration::ZERO),
    dates: false,
    seed: 1,
};

#[tokio::test]
async fn it_answers_counts_refuses_and_keeps_account() {
    let site = Site::open(SLOW).await;
    let first = site.post("send", "a").await;
    assert_eq!((first.status(), header(&first, "x-ratelimit-remaining")), (StatusCode::OK, "1"));
    assert_eq!(header(&first, "x-ratelimit-limit"), "1");
    assert_eq!(site.post("broken", "b").await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let refused = site.post("send", "a").await;
    assert_eq!((refused.status(), header(&refused, "retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    let account = site.account().await;
    assert_eq!((account.calls, account.accepted, account.accepted_twice, account.refused), (3, 1, 0, 1));
    let calls: Vec<Call> = site.client.get(format!("{}/calls", site.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(calls.iter().map(|call| (&*call.key, call.status)).collect::<Vec<_>>(), [("a", 200), ("b", 500), ("a", 429)]);
}

#[tokio::test]
async fn seconds_are_rounded_up() {
    let site = Site::open(SLOW).await;
    site.client.post(format!("{}/freeze?seconds=1.5", site.url)).send().await.unwrap();
    assert_eq!(header(&site.post("send", "a").await, "retry-after"), "2");
}

#[tokio::test]
async fn a_date_is_never_before_the_time_is_over() {
    let site = Site::open(Behaviour { dates: true, ..SLOW }).await;
    site.client.post(format!("{}/freeze?seconds=1.5", site.url)).send().await.unwrap().error_for_status().unwrap();
    let asked = UNIX_EPOCH.elapsed().unwrap();
    let refused = site.post("send", "a").await;
    let end = httpdate::parse_http_date(header(&refused, "retry-after")).unwrap().duration_since(UNIX_EPOCH).unwrap();
    assert!(end >= asked + Duration::from_secs(1) && end <= asked + Duration::from_secs(4), "{asked:?} {end:?}");
}

#[tokio::test]
async fn a_call_after_a_429_was_read_counts_as_made_during_the_freeze() {
    let site = Site::open(SLOW).await;
    site.client.post(format!("{}/freeze?seconds=30", site.url)).send().await.unwrap();
    site.post("send", "a").await;
    assert_eq!(site.account().await.calls_during_freeze, 0);
    tokio::time::sleep(mock_vendor::book::IN_FLIGHT * 2).await;
    site.post("send", "b").await;
    assert_eq!(site.account().await.calls_during_freeze, 1);
}

#[tokio::test]
async fn a_windows_reset_is_a_unix_time() {
    let window = Some(Window { limit: 1, length: Duration::from_secs(3_600) });
    let site = Site::open(Behaviour { settings: Settings { rate: 100, burst: 100, window }, ..SLOW }).await;
    let response = site.post("send", "a").await;
    let reset: u64 = header(&response, "x-ratelimit-reset").parse().unwrap();
    let ahead = reset.checked_sub(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    assert!((3_590..=3_601).contains(&ahead), "{ahead}");
    assert_eq!(site.post("send", "b").await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn an_answer_takes_its_time() {
    let latency = (Duration::from_millis(40), Duration::from_millis(60));
    let site = Site::open(Behaviour { latency, ..SLOW }).await;
    let begun = std::time::Instant::now();
    site.post("send", "a").await;
    assert!(begun.elapsed() >= latency.0, "{:?}", begun.elapsed());
}
