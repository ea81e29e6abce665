//! Whether an endpoint may have a URL: asked before it is stored. The same is asked again of the address that is dialled.

use futures::future::BoxFuture;
use onceward_dispatch::Sender;

/// Whoever judges URLs.
pub trait UrlGuard: Send + Sync + 'static {
    /// The reason against it, for people; it completes "the url …".
    fn vet<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>>;
}

/// Whoever sends knows what is sent to.
impl UrlGuard for Sender {
    fn vet<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.check_url(url).await.map(drop).map_err(|error| error.to_string()) })
    }
}
