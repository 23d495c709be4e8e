//! A service with servers, as clients, proxies before it and readers of its log see it.

mod battery;
pub mod beside;
mod logged;
mod proxied;
mod proxies;
mod rules;
