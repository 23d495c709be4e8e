//! The sections of the report, in their order: words, figures and the papers' values.

use crate::summary::{SYSTEM, Summary};

/// One result.
pub(super) struct Section {
    pub(super) heading: &'static str,
    /// A description of the section.
    pub(super) text: &'static str,
    /// The command that measures it.
    pub(super) command: &'static str,
    pub(super) summary: &'static Summary,
    pub(super) views: &'static [View],
}

/// One figure: a panel for each case that differs in anything but `x` and `series`.
pub(super) struct View {
    pub(super) title: &'static str,
    /// The name on the x axis: a name of the case, or [`SYSTEM`].
    pub(super) x: &'static str,
    pub(super) x_label: &'static str,
    /// The name of a value, and its divisor.
    pub(super) value: &'static str,
    pub(super) unit: f64,
    pub(super) y_label: &'static str,
    /// The name that lines and colours differ in: a name of the case, or [`SYSTEM`].
    pub(super) series: &'static str,
    pub(super) is_log: bool,
    pub(super) is_bars: bool,
    /// A paper's values at steps of the x axis.
    pub(super) paper: Option<(&'static str, &'static [(&'static str, f64)])>,
}

const LINES: View = View {
    title: "Throughput",
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
const BARS: View = View {
    x_label: "",
    is_bars: true,
    ..LINES
};
const THROUGHPUT: View = View {
    is_log: true,
    ..LINES
};
const P50: View = View {
    title: "Latency, median",
    value: "p50_us",
    unit: 1e3,
    y_label: "ms",
    is_log: true,
    ..LINES
};
const P90: View = View {
    title: "Latency, 90th percentile",
    value: "p90_us",
    ..P50
};
const CPU: View = View {
    title: "CPU time of all servers for one request",
    value: "cpu_us",
    y_label: "µs",
    is_log: true,
    ..LINES
};
const BACKENDS: &str = "backends that are asked";
const POPULARITY: View = View {
    x: "popularity",
    x_label: "all alike, Zipf's exponent, one object",
    ..LINES
};
const BY_WRITES: View = View {
    series: "writes_percent",
    ..POPULARITY
};
const BY_FLOWS: View = View {
    title: "Time for a packet of a random flow",
    x: "flows",
    x_label: "flows in the table",
    value: "packet_ns",
    y_label: "ns",
    ..LINES
};

pub(super) const SECTIONS: &[Section] = &[
    Section {
        heading: "GETs by size",
        text: "Clients with 100 kept connections fetch random objects of one size. nginx and HAProxy \
               are proxies in front of nginx backends. Direct is a client that asks the owning \
               backend itself: the upper limit. On slow links a proxy's own link is the limit. \
               On unlimited links the processors are.",
        command: "prism-lab bench sweep --rows rows.jsonl (and with --tls, --unshaped)",
        summary: &crate::sweep::SUMMARY,
        views: &[THROUGHPUT, P50, P90, CPU],
    },
    Section {
        heading: "Hand off or relay",
        text: "Three clusters of Prism differ in one setting. One always hands connections off, one \
               always relays answers, and one decides by the size of the answer (auto). Where the \
               lines cross, a hand-off begins to pay.",
        command: "prism-lab bench crossover --unshaped --rows rows.jsonl (and with --tls)",
        summary: &crate::crossover::SUMMARY,
        views: &[THROUGHPUT, CPU],
    },
    Section {
        heading: "One to five backends",
        text: "Clients ask for objects of the first backend only, then of two, up to all of them. \
               Throughput that grows with each backend is a straight line.",
        command: "prism-lab bench scale --rows rows.jsonl (and with --tls)",
        summary: &crate::scale::SUMMARY,
        views: &[
            View {
                x: "asked_backends",
                x_label: BACKENDS,
                ..LINES
            },
            View {
                x: "asked_backends",
                x_label: BACKENDS,
                ..P50
            },
        ],
    },
    Section {
        heading: "Each object on one backend",
        text: "Requests follow YCSB: from all objects alike, over Zipf's law, to one object that \
               everybody wants. The link of the backend with the most popular object is the limit.",
        command: "prism-lab bench partitioned --rows rows.jsonl (and with --tls)",
        summary: &crate::ycsb::OF_PARTITIONED,
        views: &[BY_WRITES],
    },
    Section {
        heading: "Each object on all backends",
        text: "The same requests, while each backend has every object. Reads use all links whatever \
               is popular. A write goes to all backends.",
        command: "prism-lab bench replicated --rows rows.jsonl (and with --tls)",
        summary: &crate::ycsb::OF_REPLICATED,
        views: &[BY_WRITES],
    },
    Section {
        heading: "Popular objects, beside nginx",
        text: "The same reads by Prism and by nginx as a proxy. A proxy is slow whatever is popular, \
               because its own link is the limit.",
        command: "prism-lab bench skew --rows rows.jsonl",
        summary: &crate::ycsb::OF_SKEW,
        views: &[POPULARITY],
    },
    Section {
        heading: "PUTs by size",
        text: "Clients write objects. Prism verifies the signature of each and flushes it to the \
               disk; nginx does neither. Objects from 16 MiB on have five connections.",
        command: "prism-lab bench upload --rows rows.jsonl",
        summary: &crate::upload::SUMMARY,
        views: &[LINES, P50, CPU],
    },
    Section {
        heading: "The steps of a hand-off",
        text: "One connection moves thousands of times, between processes on one core. Direct goes \
               to the next owner. Return goes through the frontend, like the cycle of the paper. \
               Total is the time until the connection is live at the target.",
        command: "prism-lab bench handoff --json > handoff.json (and with --tls)",
        summary: &crate::handoff::SUMMARY,
        views: &[View {
            title: "Steps of a hand-off, median",
            x: "step",
            value: "p50_us",
            y_label: "µs",
            series: "mode",
            ..BARS
        }],
    },
    Section {
        heading: "One request on a new connection",
        text: "One client opens a connection, sends one request, reads the answer, and waits until \
               the server has closed. Startup is the time until the first byte of the answer. Here \
               a hand-off only costs: the connection moves once and is never used again.",
        command: "prism-lab bench latency --rows rows.jsonl (and with --tls)",
        summary: &crate::latency::SUMMARY,
        views: &[
            View {
                title: "Startup: until the first byte",
                x: "bytes",
                value: "startup_us",
                y_label: "µs",
                ..BARS
            },
            View {
                title: "Total: until the connection is closed",
                x: "bytes",
                value: "total_us",
                y_label: "µs",
                ..BARS
            },
        ],
    },
    Section {
        heading: "The first second over a long path",
        text: "Clients are a round trip of 20 ms away and fetch from two backends alternately. A \
               connection that moves without its congestion window starts slowly again.",
        command: "prism-lab bench long-path --rows rows.jsonl (and with --tls)",
        summary: &crate::long_path::SUMMARY,
        views: &[View {
            x: SYSTEM,
            series: "rtt_ms",
            ..BARS
        }],
    },
    Section {
        heading: "Memory of kept connections",
        text: "Thousands of connections are open and idle. Some had one request, some none. The \
               figures have the memory of the frontend's process and that of the kernel, divided \
               by the connections.",
        command: "prism-lab bench connections --rows rows.jsonl (and with --tls)",
        summary: &crate::connections::SUMMARY,
        views: &[
            View {
                title: "Memory of the frontend for a connection",
                x: "state",
                value: "frontend_bytes",
                y_label: "bytes",
                ..BARS
            },
            View {
                title: "Memory of the kernel for a connection",
                x: "state",
                value: "kernel_bytes",
                y_label: "bytes",
                ..BARS
            },
        ],
    },
    Section {
        heading: "The switch",
        text: "The kernel times the eBPF program on a single packet. Throughput is that of one \
               connection through the switch, and through a plain bridge.",
        command: "prism-lab bench switch --full --json > switch.json",
        summary: &crate::switch::SUMMARY,
        views: &[
            View {
                title: "Time for a packet",
                x: "frame_bytes",
                value: "ns_median",
                y_label: "ns",
                series: "direction",
                paper: Some(("SoCC'17, 5.1", &[("60", 60.0), ("1514", 183.0)])),
                ..BARS
            },
            View {
                title: "Throughput of one connection",
                x: "direction",
                value: "gbit_median",
                y_label: "Gbit/s",
                series: "path",
                ..BARS
            },
        ],
    },
    Section {
        heading: "The switch as its table grows",
        text: "Each packet and each command is of a random flow. With many flows the table no longer \
               fits in the caches, so the program waits for memory.",
        command: "prism-lab bench flows --rows rows.jsonl",
        summary: &crate::flows::SUMMARY,
        views: &[
            BY_FLOWS,
            View {
                title: "Round trip of a command that changes an owner",
                value: "round_trip_us",
                y_label: "µs",
                ..BY_FLOWS
            },
        ],
    },
    Section {
        heading: "One node beside other S3 servers",
        text: "Every server has the same objects in memory and gets the same signed requests over \
               loopback. nginx verifies no signature. The axis is logarithmic.",
        command: "prism-lab bench store --rows rows.jsonl",
        summary: &crate::store::SUMMARY,
        views: &[
            View {
                title: "CPU time of the server for one request",
                x: "request",
                x_label: "",
                is_bars: true,
                ..CPU
            },
            View {
                title: "CPU time of the server for one request",
                x: "case",
                x_label: "",
                is_bars: true,
                ..CPU
            },
        ],
    },
    Section {
        heading: "Hashes of bodies",
        text: "One core hashes bodies of 1 MiB, one alone or up to 16 at once. OpenSSL takes one at \
               a time.",
        command: "prism-lab bench hashes --rows rows.jsonl",
        summary: &crate::hashes::SUMMARY,
        views: &[
            View {
                title: "MD5 of 1 MiB",
                x: "together",
                x_label: "bodies at once",
                value: "md5_us",
                y_label: "µs",
                ..LINES
            },
            View {
                title: "MD5 and SHA-256 of 1 MiB",
                x: "together",
                x_label: "bodies at once",
                value: "both_us",
                y_label: "µs",
                ..LINES
            },
        ],
    },
    Section {
        heading: "TLS records and sessions",
        text: "One core seals records of 16 KiB, beside openssl speed. To rebuild a session is what \
               a hand-off adds over HTTPS.",
        command: "prism-lab bench tls --json > tls.json",
        summary: &crate::tls::SUMMARY,
        views: &[
            View {
                title: "Sealing",
                x: "suite",
                value: "seal_gb_s",
                y_label: "GB/s",
                ..BARS
            },
            View {
                title: "Rebuilding a session",
                x: "suite",
                value: "rebuild_us",
                y_label: "µs",
                ..BARS
            },
        ],
    },
    Section {
        heading: "Unmodified HTTP servers",
        text: "The same server runs at each of five backends: nginx with files, an application in \
               Go, or versitygw. Prism, nginx and HAProxy are in front of it. Direct clients ask \
               the servers themselves: the upper limit.",
        command: "prism-lab bench upstream --rows rows.jsonl (and with --tls, --unshaped)",
        summary: &crate::upstream::SUMMARY,
        views: &[THROUGHPUT, P50, CPU],
    },
    Section {
        heading: "Unmodified HTTP servers, without a switch",
        text: "The same with all hosts on one Ethernet segment. Packets of clients go to the \
               frontend, which sends them on; answers leave from the backends.",
        command: "prism-lab bench hostmode --rows rows.jsonl (and with --tls, --unshaped)",
        summary: &crate::upstream::SUMMARY_HOST,
        views: &[THROUGHPUT, P50, CPU],
    },
    Section {
        heading: "A key-value server with read replicas",
        text: "Clients of Redis read and write values. The connections of readers of large values \
               move from the primary to a replica. nutcracker and HAProxy (in TCP mode) are \
               proxies in front of the same replicas. Direct clients ask one replica themselves.",
        command: "prism-lab bench replicas-kv --rows rows.jsonl (and with --unshaped)",
        summary: &crate::replicas_kv::SUMMARY,
        views: &[THROUGHPUT, P50, CPU],
    },
    Section {
        heading: "A cluster that is watched",
        text: "Turns with metrics, an access log and an open page alternate with turns without them, \
               by default and with every connection handed off.",
        command: "prism-lab bench observed --unshaped --rows rows.jsonl",
        summary: &crate::observed::SUMMARY,
        views: &[THROUGHPUT, CPU],
    },
    Section {
        heading: "Two builds of Prism",
        text: "This program and another build of it alternate, with every connection handed off and \
               with every answer relayed.",
        command: "prism-lab bench builds OTHER --unshaped --rows rows.jsonl (and with --tls)",
        summary: &crate::builds::SUMMARY,
        views: &[THROUGHPUT, CPU],
    },
];
