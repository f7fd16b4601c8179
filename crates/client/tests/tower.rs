//! The layer around a real HTTP client that asks a real HTTP server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokenbucket_client::headers::Preset;
use tokenbucket_client::tower::RateLimitLayer;
use tokenbucket_client::{Error, Limit, Origin, RateLimiter, Redis, WhenAway};
use tower::{Service, ServiceBuilder, ServiceExt as _};

use crate::server::Server;

/// A vendor that answers each path in its own way, and counts.
struct Vendor {
    port: u16,
    requests: Arc<AtomicU32>,
}

impl Vendor {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let counted = Arc::clone(&counted);
                let answer = service_fn(move |request: Request<Incoming>| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let response = match request.uri().path() {
                        "/429" => Response::builder().status(429).header("Retry-After", "60"),
                        "/limit" => Response::builder().header("X-Shopify-Shop-Api-Call-Limit", "38/40"),
                        _ => Response::builder(),
                    };
                    std::future::ready(response.body(Empty::<Bytes>::new()))
                });
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { port, requests }
    }

    fn request(&self, path: &str) -> Request<Empty<Bytes>> {
        Request::get(format!("http://127.0.0.1:{}{path}", self.port)).body(Empty::new()).unwrap()
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }
}

fn http_client() -> Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn slow(burst: u32) -> Limit {
    Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(burst).unwrap()
}

#[tokio::test]
async fn requests_are_sent_while_there_are_tokens_and_the_429_is_obeyed() {
    let (server, vendor) = (Server::start(), Vendor::start().await);
    let limiter = RateLimiter::new(Redis(server.multiplexed().await), WhenAway::FailClosed, Duration::from_secs(5));
    let layer = RateLimitLayer::new(limiter.clone(), slow(3));
    let mut client = ServiceBuilder::new().layer(layer).service(http_client());
    for _ in 0..3 {
        let response = client.ready().await.unwrap().call(vendor.request("/")).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let error = client.ready().await.unwrap().call(vendor.request("/")).await.unwrap_err();
    let error = error.downcast::<Error>().unwrap();
    assert!(!error.rate_limited().unwrap().is_frozen(), "{error}");
    assert_eq!(vendor.requests(), 3);

    // Another client of the same fleet is stopped by the 429 of this one.
    let layer = RateLimitLayer::new(limiter, slow(30)).key(|request| format!("vendor:{}", request.method()));
    let mut client = ServiceBuilder::new().layer(layer.clone()).service(http_client());
    let response = client.ready().await.unwrap().call(vendor.request("/429")).await.unwrap();
    assert_eq!(response.status(), 429);
    let other = ServiceBuilder::new().layer(layer).service(http_client());
    let deadline = Instant::now() + Duration::from_secs(5);
    while server.calls("tb.penalise") == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = other.oneshot(vendor.request("/")).await.unwrap_err().downcast::<Error>().unwrap();
    assert!(error.rate_limited().unwrap().is_frozen(), "{error}");
    assert_eq!(vendor.requests(), 4);
}

#[tokio::test]
async fn what_the_response_says_is_left_is_synced() {
    let vendor = Vendor::start().await;
    let limiter = RateLimiter::in_process().with_preset(Preset::Shopify);
    let layer = RateLimitLayer::new(limiter.clone(), slow(40)).key(|_| "shop".to_owned());
    let client = ServiceBuilder::new().layer(layer).service(http_client());
    client.oneshot(vendor.request("/limit")).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while limiter.check("shop", &slow(40), 0).await.unwrap().remaining != 2 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_waits_for_a_slot_where_it_is_told_to() {
    let vendor = Vendor::start().await;
    let limit = Limit::per(1, Duration::from_millis(500)).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_process(), limit).wait_up_to(Duration::from_millis(700));
    let client = ServiceBuilder::new().layer(layer).service(http_client());
    let start = Instant::now();
    for _ in 0..2 {
        client.clone().oneshot(vendor.request("/")).await.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(499), "{:?}", start.elapsed());
    // The third of three at once would have to wait too long.
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(client.clone().oneshot(vendor.request("/")))).collect();
    let mut refused = 0;
    for call in calls {
        refused += u32::from(call.await.unwrap().is_err());
    }
    assert!(refused >= 1);
    assert_eq!(vendor.requests() + refused, 5);
}

#[tokio::test]
async fn a_response_says_who_let_its_request_through() {
    let (mut server, vendor) = (Server::start(), Vendor::start().await);
    for most in [Duration::ZERO, Duration::from_secs(1)] {
        let limiter = RateLimiter::new(Redis(server.multiplexed().await), WhenAway::FailOpen, Duration::from_secs(5));
        let client = ServiceBuilder::new().layer(RateLimitLayer::new(limiter, slow(9)).wait_up_to(most)).service(http_client());
        let response = client.clone().oneshot(vendor.request("/")).await.unwrap();
        assert_eq!(response.extensions().get(), Some(&Origin::Redis));
        server.kill();
        let response = client.oneshot(vendor.request("/")).await.unwrap();
        assert_eq!(response.extensions().get(), Some(&Origin::FailOpen));
        server = Server::start();
    }
}

#[tokio::test]
async fn an_error_of_the_client_is_its_own() {
    let closed = crate::server::free_port();
    let layer = RateLimitLayer::new(RateLimiter::in_process(), slow(3));
    let client = ServiceBuilder::new().layer(layer).service(http_client());
    let request = Request::get(format!("http://127.0.0.1:{closed}/")).body(Empty::new()).unwrap();
    let error = client.oneshot(request).await.unwrap_err();
    assert!(error.downcast_ref::<Error>().is_none(), "{error}");
}
