//! A [`tower`](https://docs.rs/tower) layer around any HTTP client: takes a token,
//! calls, and learns from the response.
//!
//! ```no_run
//! use std::time::Duration;
//! use tokenbucket_client::tower::RateLimitLayer;
//! use tokenbucket_client::{Limit, RateLimiter};
//! use tower::{ServiceBuilder, ServiceExt as _};
//! # use http_body_util::Empty;
//! # use hyper::body::Bytes;
//! # use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//!
//! # async fn example() -> Result<(), tokenbucket_client::tower::BoxError> {
//! let limiter = RateLimiter::in_process();
//! let layer = RateLimitLayer::new(limiter, Limit::per_second(10)?).wait_up_to(Duration::from_secs(5));
//! let client = ServiceBuilder::new().layer(layer).service(Client::builder(TokioExecutor::new()).build_http());
//! let request = http::Request::get("http://api.example.com/").body(Empty::<Bytes>::new())?;
//! let response = client.oneshot(request).await?;
//! # Ok(())
//! # }
//! ```

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::limiter::{Buckets, RateLimiter};
use crate::{Limit, Tokens};

/// Any error: of the client, or an [`Error`](crate::Error) of ours.
pub type BoxError = Box<dyn StdError + Send + Sync>;

type Key<T> = Arc<dyn Fn(&Request<T>) -> String + Send + Sync>;

/// Wraps HTTP clients in [`RateLimit`].
pub struct RateLimitLayer<B, T> {
    limiter: RateLimiter<B>,
    limit: Limit,
    key: Key<T>,
    max_wait: Duration,
}

impl<B: Buckets, T> RateLimitLayer<B, T> {
    /// One bucket for each host and port, as the request's URI has them or else its `Host`
    /// field; the scheme's own port (80, 443) is left out.
    pub fn new(limiter: RateLimiter<B>, limit: Limit) -> Self {
        let host = |request: &Request<T>| {
            let uri = request.uri();
            let field = || request.headers().get(http::header::HOST)?.to_str().ok()?.parse().ok();
            let Some(authority) = uri.authority().cloned().or_else(field) else { return String::new() };
            // A user and a password stand before the host: they are no part of a key.
            let host = authority.host().to_ascii_lowercase();
            // Of a request that does not say how it is sent, both are taken for usual.
            let is_usual = |port| match uri.scheme_str() {
                Some("http") => port == 80,
                Some("https") => port == 443,
                _ => port == 80 || port == 443,
            };
            match authority.port_u16().filter(|port| !is_usual(*port)) {
                Some(port) => format!("{host}:{port}"),
                None => host,
            }
        };
        Self { limiter, limit, key: Arc::new(host), max_wait: Duration::ZERO }
    }

    /// The bucket of a request: by tenant, route or whatever the vendor counts by.
    #[must_use]
    pub fn key(mut self, key: impl Fn(&Request<T>) -> String + Send + Sync + 'static) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// Waits for a slot, if there is one within so long; else a request for which there
    /// is no token fails at once.
    #[must_use]
    pub const fn wait_up_to(mut self, most: Duration) -> Self {
        self.max_wait = most;
        self
    }
}

impl<B, T> Clone for RateLimitLayer<B, T> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), limit: self.limit, key: Arc::clone(&self.key), max_wait: self.max_wait }
    }
}

impl<B, T> std::fmt::Debug for RateLimitLayer<B, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitLayer").field("limit", &self.limit).field("max_wait", &self.max_wait).finish_non_exhaustive()
    }
}

impl<B, T, S> Layer<S> for RateLimitLayer<B, T> {
    type Service = RateLimit<B, T, S>;

    fn layer(&self, client: S) -> Self::Service {
        RateLimit { layer: self.clone(), client }
    }
}

/// An HTTP client that keeps to a limit.
///
/// A request without a token is not sent: it fails with
/// [`Error::RateLimited`](crate::Error::RateLimited) in a box. A response has the
/// [`Origin`](crate::Origin) of the decision that let it through among its extensions.
#[derive(Debug)]
pub struct RateLimit<B, T, S> {
    layer: RateLimitLayer<B, T>,
    client: S,
}

impl<B, T, S: Clone> Clone for RateLimit<B, T, S> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), client: self.client.clone() }
    }
}

impl<B, T, R, S> Service<Request<T>> for RateLimit<B, T, S>
where
    B: Buckets,
    T: Send + 'static,
    S: Service<Request<T>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<T>) -> Self::Future {
        // The client that was polled ready is the one to call; its clone may not be.
        let clone = self.client.clone();
        let mut client = std::mem::replace(&mut self.client, clone);
        let RateLimitLayer { limiter, limit, key, max_wait } = self.layer.clone();
        Box::pin(async move {
            let key = key(&request);
            let decision = if max_wait.is_zero() {
                limiter.check_or_refuse(&key, &limit).await?
            } else {
                limiter.acquire(&key, &limit, Tokens::ONE, max_wait).await?
            };
            let mut response = client.call(request).await.map_err(Into::into)?;
            response.extensions_mut().insert(decision.origin);
            let headers = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            limiter.observe(&key, response.status().as_u16(), headers); // in the background
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_host_and_port_and_no_password() {
        let layer = RateLimitLayer::new(RateLimiter::in_process(), Limit::per_second(1).unwrap());
        for (uri, key) in [
            ("http://api.example.com/a", "api.example.com"),
            ("https://user:secret@API.example.com:8443/a", "api.example.com:8443"),
            ("http://[::1]:80/", "[::1]"),
            ("http://api.example.com:443/", "api.example.com:443"),
            ("https://api.example.com:443/", "api.example.com"),
            ("/a", ""),
        ] {
            assert_eq!((layer.key)(&Request::get(uri).body(()).unwrap()), key, "{uri}");
        }
        for (host, key) in [("API.example.com", "api.example.com"), ("a:8443", "a:8443"), ("a:443", "a"), ("a b", "")] {
            let request = Request::get("/a").header("Host", host).body(()).unwrap();
            assert_eq!((layer.key)(&request), key, "{host}");
        }
    }
}
