//! A vendor to try rate limiters against: a real HTTP server with a strict limiter of
//! its own, surprises that follow from a seed, and its own account of every call.
//!
//! - `POST /…` is a call. 200, or 500 where the path ends in `/broken`, or 429 with
//!   `Retry-After`, in seconds or as a date. Every response has `X-RateLimit-Limit`
//!   (calls a second, or a window's), `-Remaining` and `-Reset` (seconds until full; with
//!   a window the Unix time of its end).
//! - `GET /account` and `GET /calls` are its account and every call as JSON.
//! - `POST /freeze?seconds=2` is a surprise on demand.
//!
//! A 429 for want of tokens promises nothing but that a call after `Retry-After` is in
//! time; as with most vendors, one that comes earlier may find a token. While it is
//! frozen nobody does.

#![forbid(unsafe_code)]

pub mod book;
pub mod limiter;
pub mod schedule;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::net::TcpListener;

use book::{Account, Book, Call};
use limiter::{Limiter, Settings, Verdict};
use schedule::{Schedule, Surprise};

/// How a vendor behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Its limits at the start.
    pub settings: Settings,
    /// What happens on the way.
    pub surprises: Vec<Surprise>,
    /// Calls a second of other clients of the same account.
    pub others: f64,
    /// The time from a call's sending to its answer, half of it either way: at least and
    /// at most.
    pub latency: (Duration, Duration),
    /// Retry-After as a date.
    pub dates: bool,
    /// Of latencies and of the others.
    pub seed: u64,
}

/// A running vendor. All clones are one.
#[derive(Clone)]
pub struct Vendor {
    inner: Arc<Mutex<Inner>>,
    behaviour: Arc<Behaviour>,
    started: Instant,
}

struct Inner {
    limiter: Limiter,
    schedule: Schedule,
    book: Book,
    random: fastrand::Rng,
    first: Option<Duration>,
}

/// What a call is answered with.
struct Answer {
    status: StatusCode,
    headers: Vec<(&'static str, String)>,
}

impl Vendor {
    /// One that nobody has called.
    pub fn new(behaviour: Behaviour) -> Self {
        let Behaviour { settings, others, seed, .. } = behaviour;
        let inner = Inner {
            limiter: Limiter::new(settings),
            schedule: Schedule::new(settings, behaviour.surprises.clone(), others, seed),
            book: Book::default(),
            random: fastrand::Rng::with_seed(seed),
            first: None,
        };
        Self { inner: Arc::new(Mutex::new(inner)), behaviour: Arc::new(behaviour), started: Instant::now() }
    }

    /// Serves on a port of the loopback interface, 0 for any, until the future is dropped.
    ///
    /// # Errors
    /// Where the port is taken.
    pub async fn serve(self, port: u16) -> std::io::Result<(SocketAddr, impl Future<Output = std::io::Result<()>>)> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let routes = Router::new()
            .route("/account", get(async |State(vendor): State<Self>| Json(vendor.account())))
            .route("/calls", get(async |State(vendor): State<Self>| Json(vendor.calls())))
            .route("/freeze", post(freeze))
            .route("/{*path}", post(call))
            .with_state(self);
        Ok((address, async move { axum::serve(listener, routes).await }))
    }

    /// What the calls so far add up to.
    pub fn account(&self) -> Account {
        let inner = self.lock();
        inner.book.account(inner.limiter.allowance())
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().book.calls().to_vec()
    }

    /// When the first call arrived.
    pub fn first_call(&self) -> Option<Instant> {
        self.lock().first.map(|first| self.started + first)
    }

    /// Serves nobody for so long, from now on.
    pub fn freeze(&self, duration: Duration) {
        let now = self.started.elapsed();
        self.lock().limiter.freeze(now, duration);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A latency, one way.
    fn latency(&self) -> Duration {
        let (least, most) = self.behaviour.latency;
        (least + most.saturating_sub(least).mul_f64(self.lock().random.f64())) / 2
    }

    /// Decides and notes; the answer will leave after `back`.
    fn decide(&self, key: String, broken: bool, back: Duration) -> Answer {
        let mut inner = self.lock();
        let inner = &mut *inner;
        // Read under the lock: moments never go back.
        let now = self.started.elapsed();
        let first = *inner.first.get_or_insert(now);
        inner.schedule.advance(&mut inner.limiter, first, now - first);
        let too_early = inner.book.is_too_early(now);
        let verdict = inner.limiter.call(now);
        let mut headers = self.limits(&inner.limiter);
        let rate = inner.limiter.settings().rate;
        let mut retry_after = None;
        let (status, frozen) = match verdict {
            Verdict::Accepted if broken => (StatusCode::INTERNAL_SERVER_ERROR, false),
            Verdict::Accepted => (StatusCode::OK, false),
            Verdict::Refused { wait, frozen } => {
                // Up to whole seconds: a caller who waits so long is in time.
                let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
                let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
                retry_after = Some(seconds);
                inner.book.tell(now + back, now + Duration::from_secs(seconds));
                headers.push(("retry-after", self.retry_after(seconds)));
                (StatusCode::TOO_MANY_REQUESTS, frozen)
            }
        };
        let at = (now - first).as_secs_f64();
        inner.book.note(Call { at, key, status: status.as_u16(), retry_after, too_early, frozen, rate });
        Answer { status, headers }
    }

    fn limits(&self, limiter: &Limiter) -> Vec<(&'static str, String)> {
        let Settings { rate, window, .. } = limiter.settings();
        let reset = match window {
            Some(_) => whole_seconds(unix_now() + limiter.reset()),
            None => whole_seconds(limiter.reset()),
        };
        vec![
            ("x-ratelimit-limit", window.map_or(rate, |window| window.limit).to_string()),
            ("x-ratelimit-remaining", limiter.remaining().to_string()),
            ("x-ratelimit-reset", reset.to_string()),
        ]
    }

    fn retry_after(&self, seconds: u64) -> String {
        if self.behaviour.dates {
            // Dates are whole seconds as well; the next one is in time.
            let end = whole_seconds(unix_now() + Duration::from_secs(seconds));
            return httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(end));
        }
        seconds.to_string()
    }
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Rounded up.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

async fn call(State(vendor): State<Vendor>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    let back = vendor.latency();
    tokio::time::sleep(vendor.latency()).await;
    let Answer { status, headers } = vendor.decide(key, path.ends_with("broken"), back);
    tokio::time::sleep(back).await;
    let mut response = status.into_response();
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[derive(Deserialize)]
struct Freeze {
    seconds: f64,
}

async fn freeze(State(vendor): State<Vendor>, Query(Freeze { seconds }): Query<Freeze>) -> StatusCode {
    let Ok(duration) = Duration::try_from_secs_f64(seconds) else { return StatusCode::BAD_REQUEST };
    vendor.freeze(duration);
    StatusCode::NO_CONTENT
}
