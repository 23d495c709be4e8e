//! Which requests a rule or an upstream is for, and texts with variables. No I/O, no clock.
//!
//! | question | file |
//! |---|---|
//! | does a request fit the conditions of a rule? | `matcher.rs` |
//! | does a host or a path fit a pattern? | `pattern.rs` |
//! | which path do patterns see? | `paths.rs` |
//! | which text has a template for a request? | `template.rs` |
//!
//! Not here: the file that has the rules (`prism-config`), and what follows from them.
#![forbid(unsafe_code)]

mod matcher;
mod paths;
mod pattern;
mod template;

pub use matcher::{Conditions, Fit, Matcher};
pub use paths::{AmbiguousPath, RequestPath, is_settled};
pub use pattern::{HostPattern, MAX_PATTERN_BYTES, PathPattern, PatternError};
pub use template::{Template, Variable, fill_field};
