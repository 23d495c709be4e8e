//! Requests that reach no server: those above a limit, and those that another server does not
//! allow.

mod auth;
mod limits;
