//! Counters and gauges of one process, over all its threads.
//!
//! Not here: the figures of any part; each part has a struct of its own.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or gauge, as an administrator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name among the counters of its struct.
    pub name: &'static str,
    /// Its metric, without the prefix of the program and without `_total`.
    pub metric: &'static str,
    /// The labels that tell it from other figures of the same metric.
    pub labels: &'static [(&'static str, &'static str)],
    /// One sentence.
    pub help: &'static str,
    /// Whether it may decrease.
    pub is_gauge: bool,
    /// The value now.
    pub value: u64,
}

/// Defines a struct of [`Count`]s with a method `figures`. A row is
/// `field: counter "metric" {label: "value"}, "Help."`; gauges have `gauge` for `counter`.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])* $of:ident;
        $($name:ident: $kind:ident $metric:literal $({$($label:ident: $value:literal),*})?, $help:literal;)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $of {
            $(#[doc = $help] pub $name: $crate::counter::Count,)*
        }

        impl $of {
            /// Every counter and gauge with its present value.
            pub fn figures(&self) -> Vec<$crate::counter::Figure> {
                vec![$($crate::counter::Figure {
                    name: stringify!($name),
                    metric: $metric,
                    labels: &[$($((stringify!($label), $value)),*)?],
                    help: $help,
                    is_gauge: $crate::counters!(@$kind),
                    value: self.$name.read(),
                }),*]
            }
        }
    };
    (@counter) => { false };
    (@gauge) => { true };
}

/// Restarts of all tasks of the process; some tasks belong to no worker.
pub(crate) static TASKS_RESTARTED: Count = Count(AtomicU64::new(0));

/// The restarts of the process's tasks after a panic ([`crate::supervise`]).
pub fn tasks_restarted() -> Figure {
    Figure {
        name: "tasks_restarted",
        metric: "tasks_restarted",
        labels: &[],
        help: "Tasks of the process that were restarted after a panic.",
        is_gauge: false,
        value: TASKS_RESTARTED.read(),
    }
}

/// One counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Subtracts one, from a gauge.
    pub fn sub_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Subtracts `n`, from a gauge.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Sets a gauge, and returns its old value.
    pub fn replace(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }

    /// The value now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
