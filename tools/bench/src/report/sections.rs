//! What the report shows of each result, in its order.

use super::papers::{self, Figure};
use crate::builds::THIS_OVER_OTHER;
use crate::crossover::HAND_OFF_OVER_OTHERS;
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};

/// One result.
pub(super) struct Section {
    pub(super) heading: &'static str,
    /// How it is got where it is missing.
    pub(super) command: &'static str,
    /// Its tables.
    pub(super) summary: Summary,
    pub(super) plots: &'static [View],
    pub(super) papers: &'static [Figure],
}

/// What a plot shows of rows: one for each case that differs in anything but `x` and
/// `series`.
pub(super) struct View {
    pub(super) title: &'static str,
    /// What the x axis is: something that was set, or [`SYSTEM`].
    pub(super) x: &'static str,
    pub(super) x_label: &'static str,
    /// The name of a value, and what it is divided by.
    pub(super) value: &'static str,
    pub(super) unit: f64,
    pub(super) y_label: &'static str,
    /// What a line or colour is: something that was set, or [`SYSTEM`].
    pub(super) series: &'static str,
    pub(super) is_log: bool,
    pub(super) is_bars: bool,
    /// A paper's values at steps of the x axis, shown beside.
    pub(super) paper: Option<(&'static str, &'static [(&'static str, f64)])>,
}

const LINES: View = View {
    title: "",
    x: "bytes",
    x_label: "size of an object",
    value: "mb_s",
    unit: 1.0,
    y_label: "MB/s",
    series: SYSTEM,
    is_log: false,
    is_bars: false,
    paper: None,
};
const THROUGHPUT: View = View {
    title: "Throughput",
    ..LINES
};
const P50: View = View {
    title: "Latency, p50",
    value: "p50_us",
    unit: 1e3,
    y_label: "ms",
    is_log: true,
    ..LINES
};
const P90: View = View {
    title: "Latency, p90",
    value: "p90_us",
    ..P50
};
const CPU: View = View {
    title: "CPU time of the servers for one request",
    value: "cpu_us",
    y_label: "µs",
    is_log: true,
    ..LINES
};

const BACKENDS: View = View {
    x: "asked_backends",
    x_label: "backends",
    ..THROUGHPUT
};
const POPULARITY: View = View {
    x: "popularity",
    x_label: "popularity of objects",
    is_bars: true,
    ..THROUGHPUT
};
const STEPS: View = View {
    title: "Steps of a hand-off, p50",
    x: "step",
    x_label: "step",
    value: "p50_us",
    y_label: "µs",
    series: "mode",
    is_bars: true,
    ..LINES
};
const BY_FLOWS: View = View {
    title: "Time of a packet, each of another flow",
    x: "flows",
    x_label: "flows in the table",
    value: "packet_ns",
    y_label: "ns",
    ..LINES
};
const fn column(heading: &'static str, value: &'static str, unit: f64, digits: usize) -> Column {
    Column {
        heading,
        value,
        unit,
        digits,
    }
}

const OVER_ONE_BACKEND: Comparison = Comparison {
    title: "Of so many backends over that of one",
    dimension: "asked_backends",
    base: "1",
    over: Over::Base,
    ..PRISM_OVER_OTHERS
};
const OVER_UNIFORM: Comparison = Comparison {
    title: "Over those whose objects are all alike",
    dimension: "popularity",
    base: "uniform",
    over: Over::Base,
    ..PRISM_OVER_OTHERS
};
const BY_SYSTEM: Summary = Summary {
    result: "",
    title: "Medians of the rounds",
    columns: COLUMNS,
    comparisons: &[PRISM_OVER_OTHERS],
};

/// All of them.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        heading: "Throughput, latency and CPU by size",
        command: "prism bench sweep --rows rows.jsonl (and with --tls, --unshaped)",
        summary: Summary {
            result: "sweep",
            ..BY_SYSTEM
        },
        plots: &[THROUGHPUT, P50, P90, CPU],
        papers: papers::SWEEP,
    },
    Section {
        heading: "Hand off or relay",
        command: "prism bench crossover --unshaped --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: "crossover",
            comparisons: &[HAND_OFF_OVER_OTHERS],
            ..BY_SYSTEM
        },
        plots: &[THROUGHPUT, P50, CPU],
        papers: papers::CROSSOVER,
    },
    Section {
        heading: "Two builds of Prism",
        command: "prism bench builds OTHER --unshaped --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: "builds",
            comparisons: &[THIS_OVER_OTHER],
            ..BY_SYSTEM
        },
        plots: &[THROUGHPUT, CPU],
        papers: &[],
    },
    Section {
        heading: "Growth with backends",
        command: "prism bench scale --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: "scale",
            comparisons: &[PRISM_OVER_OTHERS, OVER_ONE_BACKEND],
            ..BY_SYSTEM
        },
        plots: &[
            BACKENDS,
            View {
                x: "asked_backends",
                x_label: "backends",
                ..P50
            },
            View {
                x: "asked_backends",
                x_label: "backends",
                ..P90
            },
        ],
        papers: papers::SCALE,
    },
    Section {
        heading: "Partitioned store",
        command: "prism bench partitioned --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: "partitioned",
            comparisons: &[OVER_UNIFORM],
            ..BY_SYSTEM
        },
        plots: &[View {
            series: "writes_percent",
            ..POPULARITY
        }],
        papers: papers::PARTITIONED,
    },
    Section {
        heading: "Replicated store",
        command: "prism bench replicated --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: "replicated",
            comparisons: &[OVER_UNIFORM],
            ..BY_SYSTEM
        },
        plots: &[View {
            series: "writes_percent",
            ..POPULARITY
        }],
        papers: papers::REPLICATED,
    },
    Section {
        heading: "All clients want the same",
        command: "prism bench skew --rows rows.jsonl",
        summary: Summary {
            result: "skew",
            comparisons: &[OVER_UNIFORM, PRISM_OVER_OTHERS],
            ..BY_SYSTEM
        },
        plots: &[POPULARITY],
        papers: papers::SKEW,
    },
    Section {
        heading: "Uploads",
        command: "prism bench upload --rows rows.jsonl",
        summary: Summary {
            result: "upload",
            ..BY_SYSTEM
        },
        plots: &[THROUGHPUT, P50, CPU],
        papers: &[],
    },
    Section {
        heading: "What a hand-off costs",
        command: "prism bench handoff --json > handoff.json (and with --tls)",
        summary: Summary {
            result: "handoff",
            title: "Steps, in µs",
            columns: &[
                column("p50", "p50_us", 1.0, 1),
                column("p99", "p99_us", 1.0, 1),
                column("σ", "stddev_us", 1.0, 1),
            ],
            comparisons: &[],
        },
        plots: &[STEPS],
        papers: papers::HANDOFF,
    },
    Section {
        heading: "The switch",
        command: "prism bench switch --full --json > switch.json",
        summary: Summary {
            result: "switch",
            title: "Time of a packet, and throughput of one connection through the switch and a bridge",
            columns: &[
                column("ns", "ns_median", 1.0, 1),
                column("least", "ns_min", 1.0, 1),
                column("greatest", "ns_max", 1.0, 1),
                column("Gbit/s", "gbit_median", 1.0, 2),
                column("least", "gbit_min", 1.0, 2),
                column("greatest", "gbit_max", 1.0, 2),
            ],
            comparisons: &[],
        },
        plots: &[
            View {
                title: "Time of a packet",
                x: "frame_bytes",
                x_label: "bytes of a frame",
                value: "ns_median",
                y_label: "ns",
                series: "direction",
                is_bars: true,
                paper: Some(("SoCC, 5.1", &[("60", 60.0), ("1514", 183.0)])),
                ..LINES
            },
            View {
                title: "Throughput of one connection",
                x: "direction",
                x_label: "",
                value: "gbit_median",
                y_label: "Gbit/s",
                series: "path",
                is_bars: true,
                ..LINES
            },
        ],
        papers: papers::SWITCH,
    },
    Section {
        heading: "The switch by number of flows",
        command: "prism bench flows --rows rows.jsonl",
        summary: Summary {
            result: crate::flows::SUMMARY.result,
            title: crate::flows::SUMMARY.title,
            columns: crate::flows::SUMMARY.columns,
            comparisons: crate::flows::SUMMARY.comparisons,
        },
        plots: &[
            BY_FLOWS,
            View {
                title: "Round trip of a command that changes an owner",
                value: "round_trip_us",
                y_label: "µs",
                ..BY_FLOWS
            },
            View {
                title: "Kernel memory for a flow, taken from the system",
                value: "taken_flow_bytes",
                y_label: "bytes",
                is_log: true,
                ..BY_FLOWS
            },
        ],
        papers: papers::FLOWS,
    },
    Section {
        heading: "Connections that are kept alive",
        command: "prism bench connections --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: crate::connections::SUMMARY.result,
            title: crate::connections::SUMMARY.title,
            columns: crate::connections::SUMMARY.columns,
            comparisons: crate::connections::SUMMARY.comparisons,
        },
        plots: &[View {
            title: "Request over one of many connections, p50",
            x: "connections",
            x_label: "connections",
            value: "p50_us",
            y_label: "µs",
            ..LINES
        }],
        papers: &[],
    },
    Section {
        heading: "The steps of one request",
        command: "prism bench latency --rows rows.jsonl",
        summary: Summary {
            result: "latency",
            title: "Medians of the rounds, in µs",
            columns: &[
                column("connect", "connect_us", 1.0, 0),
                column("TLS", "handshake_us", 1.0, 0),
                column("parse", "parse_us", 1.0, 0),
                column("hand-off", "hand_off_us", 1.0, 0),
                column("answer", "answer_us", 1.0, 0),
                column("startup", "startup_us", 1.0, 0),
                column("σ", "startup_stddev_us", 1.0, 0),
                column("transfer", "transfer_us", 1.0, 0),
                column("teardown", "teardown_us", 1.0, 0),
                column("total", "total_us", 1.0, 0),
                column("total p99", "total_p99_us", 1.0, 0),
            ],
            comparisons: &[Comparison {
                values: &[
                    ("total", "total_us"),
                    ("startup", "startup_us"),
                    ("transfer", "transfer_us"),
                    ("teardown", "teardown_us"),
                ],
                ..PRISM_OVER_OTHERS
            }],
        },
        plots: &[View {
            title: "Startup: from the first packet to the first byte of the answer",
            x: SYSTEM,
            x_label: "",
            value: "startup_us",
            y_label: "µs",
            series: "bytes",
            is_bars: true,
            ..LINES
        }],
        papers: papers::LATENCY,
    },
    Section {
        heading: "The first second of a connection over a long path",
        command: "prism bench long-path --rows rows.jsonl (and with --tls)",
        summary: Summary {
            result: crate::long_path::SUMMARY.result,
            title: crate::long_path::SUMMARY.title,
            columns: crate::long_path::SUMMARY.columns,
            comparisons: crate::long_path::SUMMARY.comparisons,
        },
        plots: &[View {
            x: SYSTEM,
            x_label: "",
            series: "rtt_ms",
            is_bars: true,
            ..THROUGHPUT
        }],
        papers: &[],
    },
    Section {
        heading: "One node beside other stores",
        command: "prism bench store --rows rows.jsonl",
        summary: Summary {
            result: "store",
            title: "CPU time of the server for one request",
            comparisons: &[Comparison {
                title: "Their CPU time over Prism's",
                over: Over::Base,
                values: &[("CPU", "cpu_us")],
                ..PRISM_OVER_OTHERS
            }],
            ..BY_SYSTEM
        },
        plots: &[
            View {
                x: "request",
                x_label: "",
                is_bars: true,
                ..CPU
            },
            View {
                x: "case",
                x_label: "",
                is_bars: true,
                ..CPU
            },
        ],
        papers: &[],
    },
    Section {
        heading: "The hashes of bodies",
        command: "prism bench hashes --rows rows.jsonl",
        summary: Summary {
            result: crate::hashes::SUMMARY.result,
            title: crate::hashes::SUMMARY.title,
            columns: crate::hashes::SUMMARY.columns,
            comparisons: crate::hashes::SUMMARY.comparisons,
        },
        plots: &[View {
            title: "MD5 and SHA-256 of 1 MiB",
            x: "together",
            x_label: "bodies together",
            value: "both_us",
            y_label: "µs",
            ..LINES
        }],
        papers: &[],
    },
    Section {
        heading: "TLS records",
        command: "prism bench tls --json > tls.json",
        summary: Summary {
            result: "tls",
            title: "One core, records of 16 KiB; moving a session",
            columns: &[
                column("seal GB/s", "seal_gb_s", 1.0, 2),
                column("open GB/s", "open_gb_s", 1.0, 2),
                column("export µs", "export_us", 1.0, 2),
                column("p99", "export_p99_us", 1.0, 2),
                column("rebuild µs", "rebuild_us", 1.0, 2),
                column("p99", "rebuild_p99_us", 1.0, 2),
            ],
            comparisons: &[Comparison {
                values: &[("seal", "seal_gb_s"), ("open", "open_gb_s")],
                ..PRISM_OVER_OTHERS
            }],
        },
        plots: &[View {
            title: "Sealing",
            x: "suite",
            x_label: "",
            value: "seal_gb_s",
            y_label: "GB/s",
            is_bars: true,
            ..LINES
        }],
        papers: papers::TLS,
    },
];
