#!/usr/bin/python3
"""Writes the tables and plots of docs/benchmarks.md from the rows in bench/results.

    bench_report.py                        writes them
    bench_report.py --check                says whether they agree with the rows; for `make lint`
    bench_report.py --plots FOLDER FILE... draws a plot of each result of other rows

A table stands between `<!-- table NAME -->` and `<!-- end -->`; `bench_tables.py` has its lines
and columns. A plot has the digest of its rows in it, so that a check needs no matplotlib.
"""

import argparse
import glob
import os
import re
import sys
from dataclasses import dataclass

import bench_plots as plots
from bench_rows import read, size
from bench_tables import ROOT, TABLES

PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.S)


@dataclass
class Headline:
    """One of our values beside that of a paper."""

    title: str
    value: float
    case: str
    form: str
    paper: float
    place: str

    def text(self, value):
        return self.form.format(value)


def best(rows, choose, name, over, of="prism", by="system", told=("bytes",)):
    """The greatest or the least median ratio over all cases, and its case in words."""
    cases = []
    for row in rows.all:
        case = {key: value for key, value in row["case"].items() if key != by}
        if case not in cases:
            cases.append(case)
    ratios = [(rows.where(**case).ratio(name, over, of, by), case) for case in cases]
    ratio, case = choose(((ratio, case) for ratio, case in ratios if ratio), key=lambda one: one[0])
    words = [size(case[key]) if key == "bytes" else str(case[key]).upper() for key in told]
    return ratio, ", ".join(words)


def headlines(rows):
    """The first figures of the page: eight of ours beside those of the papers."""
    slow = rows["sweep"].where(link_bit_s=100_000_000)
    http, https = (slow.where(scheme=scheme) for scheme in ("http", "https"))
    most = [best(its, max, "mb_s", "nginx") for its in (http, https)]
    p50, p90 = (best(slow, min, f"p{n}_us", "nginx", told=("bytes", "scheme")) for n in (50, 90))
    cpu = best(http, min, "cpu_us", "nginx")
    scale = rows["scale"].where(system="prism")
    five = best(scale, max, "mb_s", 1, of=5, by="asked_backends")
    uniform = rows["partitioned"]
    lost = best(uniform, min, "mb_s", "uniform", of="zipf-1.2", by="popularity")
    moved = rows["handoff"].where(mode="return", scheme="https", step="total")
    times, less = "{:.1f}×", "{:.0f} %"
    slow_links = "slow links, objects of "
    return [
        Headline("Most throughput over nginx, HTTP", most[0][0], slow_links + most[0][1], times,
                 3.7, "“up to 3.7”, NSDI'21, 5.2"),
        Headline("Most throughput over nginx, HTTPS", most[1][0], slow_links + most[1][1], times,
                 3.4, "“up to 3.4”, NSDI'21, 5.2"),
        Headline("Median latency below nginx's by", 100 - 100 * p50[0], slow_links + p50[1], less,
                 74, "“up to 74 %”, NSDI'21, 5"),
        Headline("90th percentile below nginx's by", 100 - 100 * p90[0], slow_links + p90[1], less,
                 96, "“up to 96 %”, NSDI'21, 5"),
        Headline("CPU for a request, nginx's over ours", 1 / cpu[0], slow_links + cpu[1], times,
                 2.4, "2.4 (HTTP), NSDI'21, 5.2"),
        Headline("Five backends over one", five[0], slow_links + five[1], times,
                 None, "“almost proportionally”, NSDI'21, 5.2"),
        Headline("Throughput lost at Zipf 1.2", 100 - 100 * lost[0], "objects of " + lost[1], less,
                 17, "“up to 17 %”, 5.5.1; less is better"),
        Headline("One hand-off by return, HTTPS", moved.median("p50_us"), "median of two runs",
                 "{:.0f} µs", 232, "NSDI'21, Table 1; less is better"),
    ]


def images():
    """For each plot of the page: its path, its rows, and what draws it."""
    files = {name: [os.path.basename(path) for path in
                    sorted(glob.glob(os.path.join(ROOT, "bench", "results", f"*-{name}*.jsonl")))]
             for name in ("sweep", "scale", "partitioned", "handoff")}
    paths = {name: [os.path.join(ROOT, "bench", "results", file) for file in found]
             for name, found in files.items()}
    rows = {name: read(found) for name, found in paths.items()}
    everything = read(path for found in paths.values() for path in found)
    folder = os.path.join(ROOT, "docs")
    return [
        (os.path.join(folder, "report.png"), everything,
         lambda path, mark: plots.headlines(headlines(rows), path, mark)),
        (os.path.join(folder, "throughput.png"), rows["sweep"],
         lambda path, mark: plots.by_size(rows["sweep"], path, mark)),
    ]


def page(text):
    """The page with its tables written again."""
    names = [name for _, name, _ in MARKED.findall(text)]
    if sorted(names) != sorted(TABLES):
        raise SystemExit(f"docs/benchmarks.md has the tables {names}, not {sorted(TABLES)}")
    return MARKED.sub(lambda found: found[1] + "\n" + TABLES[found[2]]() + "\n\n" + found[3], text)


def check():
    """The faults of page and plots."""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    for old, new in zip(text.splitlines(), page(text).splitlines()):
        if old != new:
            yield f"docs/benchmarks.md is not what the rows say:\n  page: {old}\n  rows: {new}"
            break
    for path, rows, _ in images():
        if not os.path.exists(path) or plots.mark(path) != plots.digest(rows):
            yield f"{os.path.relpath(path, ROOT)} is of other rows"


def write():
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page(text))
    for path, rows, draw in images():
        draw(path, plots.digest(rows))


def plot(folder, paths):
    rows = read(paths)
    os.makedirs(folder, exist_ok=True)
    for name in sorted({row["result"] for row in rows.all}):
        path = os.path.join(folder, f"{name}.png")
        drawn = plots.result(name, type(rows)(r for r in rows.all if r["result"] == name), path)
        print(path if drawn else f"{name}: nothing to draw")


def main():
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plots", metavar="FOLDER")
    parser.add_argument("files", nargs="*", metavar="FILE")
    args = parser.parse_args()
    if bool(args.plots) != bool(args.files):
        parser.error("--plots FOLDER draws the rows of FILE...")
    if args.plots:
        plot(args.plots, args.files)
    elif args.check:
        faults = list(check())
        if faults:
            print("\n".join(faults))
            sys.exit("scripts/bench_report.py writes both from the rows")
    else:
        write()


if __name__ == "__main__":
    main()
