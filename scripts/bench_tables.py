"""The tables of docs/benchmarks.md: the rows, lines and columns of each.

A line is a label and the fields of its rows. A column is a heading and a function from those
rows to the text of a cell.
"""

import os

from bench_rows import SYSTEM, Rows, read, size

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def rows_of(*files):
    return read(os.path.join(ROOT, "bench", "results", file) for file in files)


def table(corner, files, lines, columns, **fields):
    """The text of a table."""
    rows = rows_of(*files).where(**fields)
    cells = []
    for label, wanted in lines:
        its = rows.where(**wanted)
        if not its.all:
            raise SystemExit(f"{', '.join(files)}: no rows for the line {label}")
        cells.append([label, *(cell(its) for _, cell in columns)])
    return layout([corner, *(heading for heading, _ in columns)], cells)


def layout(headings, lines):
    rule = "|---|" + "---:|" * (len(headings) - 1)
    return "\n".join([line(headings), rule, *map(line, lines)])


def line(cells):
    return "| " + " | ".join(cells) + " |"


def number(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def median(value, digits, unit=1, **wanted):
    """A cell with a median."""

    def cell(rows):
        middle = rows.where(**wanted).median(value)
        return number(None if middle is None else middle / unit, digits)

    return cell


def over(value, other, of="prism", by=SYSTEM, **wanted):
    """A cell with the median of the ratios of `of` and `other`."""
    return lambda rows: number(rows.where(**wanted).ratio(value, other, of, by), 2)


def spread(value, other, of="prism"):
    """The same with the least and the greatest ratio."""

    def cell(rows):
        ratios = rows.ratios(value, other, of)
        if not ratios:
            return ""
        middle = rows.ratio(value, other, of)
        digits = 2 if middle < 9.95 else 0
        least, most = number(min(ratios), digits), number(max(ratios), digits)
        return f"{number(middle, digits)} ({least} to {most})"

    return cell


def mean(value, digits, **wanted):
    """A cell with the mean of a value."""

    def cell(rows):
        values = rows.where(**wanted).values(value)
        return number(sum(values) / len(values), digits) if values else ""

    return cell


def each(value, **wanted):
    """A cell with the values of all rounds."""
    return lambda rows: " and ".join(number(one, 0) for one in rows.where(**wanted).values(value))


def under(prefix, columns, **wanted):
    """Columns of the rows with these fields. The first heading begins with `prefix`."""

    def of(cell):
        return lambda rows: cell(rows.where(**wanted))

    first, *others = [(heading, of(cell)) for heading, cell in columns]
    return [(f"{prefix}: {first[0]}", first[1]), *others]


def by_scheme(columns, secure=None):
    """The columns for HTTP, and the same or others for HTTPS."""
    plain = under("HTTP", columns, scheme="http")
    return plain + under("HTTPS", secure or columns, scheme="https")


def by_size(*kibs):
    return [(size(int(kib * 1024)), {"bytes": int(kib * 1024)}) for kib in kibs]


OTHERS = {"nginx": "nginx", "HAProxy": "haproxy", "direct": "direct"}
MB_S = ("MB/s", median("mb_s", 1, system="prism"))
OVER = {name: (f"over {name}", over("mb_s", other)) for name, other in OTHERS.items()}
COSTS = [(name, over(value, "nginx")) for name, value in
         (("p50", "p50_us"), ("p90", "p90_us"), ("CPU", "cpu_us"))]
SIZES = by_size(1 / 16, 1, 4, 16, 64, 256, 1024, 4096)
POPULARITY = {"uniform": "uniform", "Zipf 0.9": "zipf-0.9", "Zipf 1.2": "zipf-1.2",
              "one object": "single"}


def sweep(file, *columns):
    return table("", [file], SIZES, by_scheme([*columns, *COSTS]))


def crossover():
    def auto(rows):
        return number(min(rows.ratio("mb_s", way, "auto") for way in ("hand-off", "relay")), 2)

    columns = [("throughput", over("mb_s", "relay", "hand-off")),
               ("CPU", over("cpu_us", "relay", "hand-off")), ("auto", auto)]
    lines = by_size(1 / 16, 4, 16, 32, 64)
    return table("", ["2026-11-22-crossover.jsonl"], lines, by_scheme(columns))


def scale():
    def over_one(backends, system):
        return over("mb_s", 1, backends, "asked_backends", system=system)

    columns = [("2 backends", over_one(2, "prism"))]
    columns += [(str(n), over_one(n, "prism")) for n in (3, 4, 5)]
    columns += [(f"{system} with 5", over_one(5, system)) for system in ("direct", "nginx")]
    columns.append(("MB/s with 5", median("mb_s", 1, system="prism", asked_backends=5)))
    columns += [(f"over {system}", over("mb_s", system, asked_backends=5))
                for system in ("nginx", "direct")]
    return table("", ["2026-11-22-scale.jsonl"], by_size(16), columns)


def popular():
    places = {"one": "partitioned", "all": "replicated"}

    def mb_s(name, writes=0, system="prism"):
        return median("mb_s", 1, placement=places[name], writes_percent=writes, system=system)

    nginx = ("nginx", mb_s("one", system="nginx"))
    columns = under("256 KiB", [nginx, ("one", mb_s("one")), ("all", mb_s("all"))], bytes=256 << 10)
    for kib, names in ((16, places), (128, places), (512, ["one"])):
        its = [[(name, mb_s(name)), (f"{name}, writes", mb_s(name, 5))] for name in names]
        columns += under(f"{kib} KiB", sum(its, []), bytes=kib << 10)
    files = [f"2026-11-22-{name}.jsonl" for name in ("skew", "partitioned", "replicated")]
    lines = [(label, {"popularity": name}) for label, name in POPULARITY.items()]
    return table("", files, lines, columns)


def upload():
    columns = [MB_S, OVER["nginx"], OVER["direct"], ("p50 over nginx", over("p50_us", "nginx")),
               ("CPU over nginx", over("cpu_us", "nginx"))]
    return table("", ["2026-11-22-upload.jsonl"], by_size(64, 1024, 16384), columns)


def latency():
    columns = [("Prism, µs", median("total_us", 0, system="prism")),
               ("hand-off, µs", median("hand_off_us", 0, system="prism"))]
    columns += [(f"over {name}", over("total_us", other)) for name, other in OTHERS.items()]
    files = ["2026-11-22-latency.jsonl", "2026-11-22-latency-tls.jsonl"]
    return table("", files, by_size(4, 64, 2048), by_scheme(columns))


def long_path():
    rows = rows_of("2026-11-22-long-path.jsonl", "2026-11-22-long-path-tls.jsonl")
    heads = ["", "HTTP, MB/s", "over nginx", "HTTPS, MB/s", "over nginx",
             "HTTP, KiB after 100 ms", "200 ms", "500 ms"]
    lines = []
    for system in ("carry", "fresh", "nginx", "direct"):
        cells = [median("mb_s", 1, system=system, scheme="http"),
                 over("mb_s", "nginx", system, scheme="http"),
                 median("mb_s", 1, system=system, scheme="https"),
                 over("mb_s", "nginx", system, scheme="https")]
        cells += [median(f"in_{ms}_ms_bytes", 0, 1024, system=system, scheme="http")
                  for ms in (100, 200, 500)]
        lines.append([system, *(cell(rows) for cell in cells)])
    return layout(heads, lines)


def connections():
    columns = [("silent, frontend", median("frontend_bytes", 0, state="silent"))]
    columns += [(f"served, {part}", median(f"{value}_bytes", 0, state="served"))
                for part, value in (("frontend", "frontend"), ("backends", "backends"),
                                    ("kernel", "kernel"))]
    lines = [(name, {"system": name.lower()}) for name in ("Prism", "nginx", "HAProxy")]
    file = "2026-11-22-connections.jsonl"
    return table("", [file], lines, by_scheme(columns), connections=8000)


def handoff():
    steps = {"block": "block", "save TCP": "save tcp", "encode": "encode",
             "to the frontend": "hand-off to frontend", "frontend decides": "frontend decides",
             "to the backend": "hand-off to backend", "restore TCP": "restore tcp",
             "modify rule": "modify rule", "go live": "go live"}
    columns = [(value, each(f"{value}_us", step="total")) for value in ("p50", "p99")]
    columns += [(label, mean("p50_us", 1, step=name)) for label, name in steps.items()]
    lines = [(f"{scheme.upper()}, {mode}", {"scheme": scheme, "mode": mode})
             for scheme in ("http", "https") for mode in ("direct", "return")]
    return table("µs", ["2026-11-22-handoff.jsonl"], lines, columns)


def flows():
    packets = [("to the owner, ns", median("to_owner_ns", 0)),
               ("to the client", median("to_client_ns", 0)), ("look-up", median("lookup_ns", 0))]
    rule = ("rule", median("rule_ns", 0))
    round_trip = ("round trip, µs", median("round_trip_us", 1))
    four = [*packets, ("empty", median("glance_ns", 0)), rule, round_trip]
    columns = under("IPv4", four, family="IPv4") + under("IPv6", [*packets, rule], family="IPv6")
    columns.append(("MB", median("taken_full_bytes", 1, 1e6, family="IPv4")))
    lines = [(number(count, 0), {"flows": count}) for count in (1000, 100_000, 1_000_000)]
    return table("flows", ["2026-11-26-flows.jsonl"], lines, columns)


def observed():
    def twice(value, digits):
        """The medians of all turns of a name, the second of them in parentheses."""

        def cell(rows):
            first, *again = [median(value, digits, system=name)(rows)
                             for name in ("watched", "log", "page", "unwatched", "again")
                             if rows.where(system=name).all]
            return " ".join([first, *(f"({text})" for text in again)])

        return cell

    rows = rows_of("2026-11-25-observed.jsonl")
    names = {"watched": ["watched"], "access log only": ["log"], "page and metrics only": ["page"],
             "unwatched (and again)": ["unwatched", "again"]}
    columns = [("requests/s", twice("requests_s", 0)), ("CPU, µs", twice("cpu_us", 1))]
    columns = (under("default", columns, way="auto")
               + under("all handed off", columns, way="hand-off"))
    lines = []
    for label, systems in names.items():
        its = Rows(row for row in rows.all if row["system"] in systems)
        lines.append([label, *(cell(its) for _, cell in columns)])
    return layout(["", *(heading for heading, _ in columns)], lines)


def replicas():
    columns = [("throughput over nutcracker", spread("mb_s", "nutcracker")),
               ("over HAProxy", spread("mb_s", "haproxy")), OVER["direct"]]
    for name, value in (("CPU", "cpu_us"), ("p50", "p50_us")):
        columns.append((f"{name} over nutcracker", over(value, "nutcracker")))
        columns += [(f"over {name}", over(value, OTHERS[name])) for name in ("HAProxy", "direct")]
    lines = [(f"GET {label}", {"operation": "GET", **fields})
             for label, fields in by_size(1, 16, 64, 256, 1024)]
    lines.append(("SET 1 KiB", {"operation": "SET", "bytes": 1024}))
    return table("", ["2026-11-26-replicas-kv.jsonl"], lines, columns)


def servers(file, *kibs):
    lines = [(f"{server}, {label}", {"server": server, **fields})
             for server in ("nginx", "go", "versitygw") for label, fields in by_size(*kibs)]
    columns = [MB_S, *OVER.values(), ("CPU", over("cpu_us", "haproxy"))]
    return table("", [file], lines, by_scheme(columns))


def redirect():
    columns = [MB_S, ("over nginx", spread("mb_s", "nginx")), ("p50", over("p50_us", "nginx")),
               ("CPU", over("cpu_us", "nginx")), ("front's CPU", over("frontend_cpu_us", "nginx")),
               ("front's link", median("frontend_link", 3, system="prism"))]
    return table("blob", ["2026-12-01-redirect.jsonl"], by_size(64, 1024, 4096), columns)


def store():
    columns = [(name, spread("cpu_us", "prism", name.lower()))
               for name in ("MinIO", "Garage", "versitygw", "nginx")]
    columns.append(("Prism, µs", median("cpu_us", 0, system="prism")))
    requests = ["GET 4 KiB", "GET 4 KiB, anonymous", "GET 1 MiB", "GET 1 MiB, anonymous",
                "PUT 4 KiB", "PUT 1 MiB"]
    lines = [(name, {"request": name}) for name in requests]
    return table("", ["2026-11-22-store.jsonl"], lines, columns)


def hashes():
    columns = []
    for name, value in (("MD5", "md5_us"), ("MD5 and SHA-256", "both_us")):
        columns.append((f"{name}, µs", median(value, 0, system="prism")))
        columns.append(("OpenSSL over it", over(value, "prism", "openssl")))
    lines = [(str(count), {"together": count}) for count in (1, 16)]
    return table("bodies at once", ["2026-11-22-hashes.jsonl"], lines, columns)


def tls():
    columns = [("seal, GB/s", median("seal_gb_s", 1, system="prism"))]
    columns += [(f"{name} over OpenSSL", over(f"{name}_gb_s", "openssl"))
                for name in ("seal", "open")]
    columns += [(f"{name}, µs", median(f"{name}_us", 2, system="prism"))
                for name in ("export", "rebuild")]
    both = [under(f"TLS {version}", columns, version=version) for version in ("1.3", "1.2")]
    suites = ("AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305")
    lines = [(name, {"suite": name}) for name in suites]
    return table("", ["2026-11-22-tls.jsonl"], lines, sum(both, []))


def papers():
    """The papers' values, which are quoted."""
    text = ["| result | quantity | value | place |", "|---|---|---|---|"]
    with open(os.path.join(ROOT, "bench", "papers.txt"), encoding="utf-8") as file:
        text += [line([row.strip()]) for row in file if not row.startswith("#")]
    return "\n".join(text)


TABLES = {
    "sweep": lambda: sweep("2026-11-22-sweep.jsonl", MB_S, OVER["nginx"], OVER["direct"]),
    "sweep-unshaped": lambda: sweep("2026-11-23-sweep-unshaped.jsonl", *OVER.values()),
    "crossover": crossover,
    "scale": scale,
    "popular": popular,
    "upload": upload,
    "latency": latency,
    "long-path": long_path,
    "connections": connections,
    "handoff": handoff,
    "flows": flows,
    "observed": observed,
    "replicas-kv": replicas,
    "upstream": lambda: servers("2026-11-26-upstream.jsonl", 1 / 16, 4, 16, 256, 1024),
    "upstream-unshaped": lambda: servers("2026-11-26-upstream-unshaped.jsonl", 1 / 16, 16, 1024),
    "hostmode": lambda: servers("2026-11-26-hostmode.jsonl", 1 / 16, 4, 16, 256, 1024),
    "hostmode-unshaped": lambda: servers("2026-11-26-hostmode-unshaped.jsonl", 1 / 16, 16, 1024),
    "redirect": redirect,
    "store": store,
    "hashes": hashes,
    "tls": tls,
    "papers": papers,
}
