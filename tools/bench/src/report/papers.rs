//! What the two papers measured, typed from their text and tables.
//!
//! NSDI is "Prism: Proxies without the Pain" (NSDI 2021), SoCC "Prism: A Proxy
//! Architecture for Datacenter Networks" (SoCC 2017). Nothing here was read off a plot:
//! what a figure shows and its text does not say is missing. Their machines are not
//! ours (10 Gbit/s links, six logical servers): ratios can be compared, not much else.

/// One figure of a paper.
pub(super) struct Figure {
    /// Paper, and number of the figure, table or section.
    pub(super) place: &'static str,
    pub(super) what: &'static str,
    pub(super) value: &'static str,
}

const fn figure(place: &'static str, what: &'static str, value: &'static str) -> Figure {
    Figure { place, what, value }
}

const SMALLEST: Figure = figure(
    "NSDI'21, 5.4 with Figure 9",
    "smallest object with more throughput than nginx",
    "2 KB (HTTP), 16 KB (HTTPS)",
);
pub(super) const CROSSOVER: &[Figure] = &[SMALLEST];

pub(super) const SWEEP: &[Figure] = &[
    figure(
        "NSDI'21, Figure 9 and 5.2",
        "most throughput over nginx as proxy, uplink of 4 links, 5 backends",
        "3.7 times (HTTP), 3.4 times (HTTPS)",
    ),
    figure(
        "NSDI'21, 2.3 with Figure 2",
        "nginx as proxy, link of 10 Gbit/s",
        "up to 9.2 Gbit/s (HTTP), 9.1 (HTTPS; 9.2 in 5.2)",
    ),
    figure(
        "NSDI'21, 5.2 with Figure 9",
        "Prism, uplink of 40 Gbit/s",
        "full from 256 KB on (HTTP); 31.4 Gbit/s (HTTPS)",
    ),
    SMALLEST,
    figure(
        "NSDI'21, 5.2",
        "CPU utilization improved, by factors",
        "2.4 (HTTP), 2.6 (HTTPS)",
    ),
    figure(
        "NSDI'21, 5.2",
        "CPU of the frontend",
        "23 to 53 % less than nginx (HTTP); at most 70 % busy (HTTPS)",
    ),
    figure(
        "SoCC'17, 5.2 with Figure 5",
        "smallest object with more throughput than a proxy can have (10 Gbit/s), two connections",
        "2 MB",
    ),
    figure(
        "SoCC'17, slides",
        "most throughput, two links of 10 Gbit/s",
        "18.7 Gbit/s; the proxy 9",
    ),
];

pub(super) const SCALE: &[Figure] = &[
    figure(
        "NSDI'21, 5.2 with Figure 10",
        "throughput by backends, 16, 256 and 512 KB",
        "almost proportional, up to 34 Gbit/s (HTTP) and 28 (HTTPS), the client's limit",
    ),
    figure(
        "NSDI'21, 5.3 with Figure 11 and section 5",
        "latency below nginx's, at most",
        "74 % (p50), 96 % (p90)",
    ),
    figure(
        "NSDI'21, 5.3",
        "nginx's latency by backends",
        "does not change much",
    ),
];

pub(super) const PARTITIONED: &[Figure] = &[
    figure(
        "NSDI'21, 5.5.1 with Figure 12",
        "throughput lost up to Zipf 1.0, read-only and with 5 % writes",
        "almost none",
    ),
    figure(
        "NSDI'21, 5.5.1 with Figure 12",
        "throughput lost at Zipf 1.2, over uniform",
        "up to 17 %",
    ),
];

pub(super) const REPLICATED: &[Figure] = &[figure(
    "NSDI'21, 5.5.2 with Figure 13",
    "throughput by skew",
    "the same; less with more writes, and less than partitioned",
)];

pub(super) const SKEW: &[Figure] = &[figure(
    "NSDI'21, 5.5.1 with Figure 12",
    "a single key asked for, partitioned: the end of the scale of skew",
    "a plot only",
)];

pub(super) const HANDOFF: &[Figure] = &[
    figure("NSDI'21, Table 1", "block all traffic", "22 µs (σ 13.1)"),
    figure(
        "NSDI'21, Table 1",
        "serialize TCP, TLS, HTTP",
        "7, 5, 2 µs (σ 1.1, 1.1, 0.6)",
    ),
    figure("NSDI'21, Table 1", "close the socket", "9 µs (σ 5.0)"),
    figure(
        "NSDI'21, Table 1",
        "hand-off to the frontend, to the backend",
        "21 µs each (σ 14.4)",
    ),
    figure(
        "NSDI'21, Table 1",
        "deserialize HTTP, TLS, TCP",
        "3, 109, 11 µs (σ 1.5, 64.3, 1.0)",
    ),
    figure("NSDI'21, Table 1", "modify the rule", "22 µs (σ 9.4)"),
    figure("NSDI'21, Table 1", "the full cycle (return)", "232 µs"),
    figure(
        "NSDI'21, 5.4",
        "of that spared without the frontend (direct)",
        "21 µs",
    ),
];

pub(super) const SWITCH: &[Figure] = &[
    figure(
        "SoCC'17, 5.1 with Figure 4",
        "one packet of 60 bytes, without checksum offload",
        "60 ns (16.63 million a second, 7.98 Gbit/s)",
    ),
    figure(
        "SoCC'17, 5.1 with Figure 4",
        "one packet of 1,514 bytes",
        "183 ns (5.48 million a second, 66.33 Gbit/s)",
    ),
    figure(
        "SoCC'17, 5.1",
        "the same on two cores",
        "16.03 and 127.1 Gbit/s",
    ),
];

pub(super) const LATENCY: &[Figure] = &[
    figure(
        "SoCC'17, Table 1",
        "before the first byte: direct, proxy, Prism",
        "446, 1,015, 754 µs (σ 65, 171, 74)",
    ),
    figure(
        "SoCC'17, Table 1",
        "after the last byte is acknowledged: direct, proxy, Prism",
        "52, 50, 185 µs (σ 36, 35, 62)",
    ),
    figure(
        "SoCC'17, Table 1",
        "with 2 MB between: direct, proxy, Prism",
        "3,883, 5,142, 3,990 µs (σ 786, 839, 837)",
    ),
];

pub(super) const FLOWS: &[Figure] = &[
    figure(
        "NSDI'21, Table 1",
        "one command to the switch, over the network",
        "22 µs",
    ),
    figure(
        "NSDI'21, 6",
        "the same in their first version, by the control plane",
        "up to 828 µs",
    ),
];

pub(super) const TLS: &[Figure] = &[figure(
    "NSDI'21, Table 1",
    "serialize, deserialize a session",
    "5 µs (σ 1.1), 109 µs (σ 64.3)",
)];
