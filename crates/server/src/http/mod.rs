//! HTTP as bytes on connections: accepting within bounds, TLS, what every request and answer has in common, and an
//! end that answers what is in flight. What a request means is [`crate::api`]'s business.

mod edge;
mod large;
mod listener;
mod request_id;
mod stall;
mod tls;

pub use edge::Edge;
pub use listener::{Listener, ServeError};
