"""Plots of benchmarks, by matplotlib (`scripts/setup.sh bench` installs it)."""

import hashlib
import json
import zlib

from bench_rows import SYSTEM, Rows, field, size

# The values that are drawn, if a result has them: title, name and divisor.
VALUES = [
    ("throughput, MB/s", "mb_s", 1), ("p50, ms", "p50_us", 1e3), ("p90, ms", "p90_us", 1e3),
    ("CPU time for a request, µs", "cpu_us", 1), ("time of a packet, ns", "ns_median", 1),
    ("throughput, Gbit/s", "gbit_median", 1),
]
# The name on the x axis, where it is not the size of objects.
AXES = {"partitioned": "popularity", "replicated": "popularity", "skew": "popularity",
        "handoff": "step", "switch": "frame_bytes"}
# Names of a case that make a panel of their own.
PANELS = ("link_bit_s", "scheme", "server", "family")
COLOURS = {"prism": "#0b62c4", "nginx": "#c24f00", "haproxy": "#00795a", "direct": "#6a6f75"}
NAMES = {"prism": "Prism", "haproxy": "HAProxy"}
INK, SOFT = "#1d2329", "#5c6670"


def digest(rows):
    """What a plot of these rows is marked with."""
    text = "\n".join(sorted(json.dumps(row, sort_keys=True) for row in rows.all))
    return hashlib.sha256(text.encode()).hexdigest()


def mark(path):
    """The mark of a PNG file: the text chunk `Rows`. None if there is none."""
    with open(path, "rb") as file:
        data = file.read()
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        if kind == b"tEXt" and body.startswith(b"Rows\0"):
            return body[5:].decode()
        if kind == b"zTXt" and body.startswith(b"Rows\0"):
            return zlib.decompress(body[6:]).decode()
        at += 12 + length
    return None


def pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"{error}; scripts/setup.sh bench installs Debian's, for /usr/bin/python3")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plots

    plots.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                           "text.color": INK, "axes.titleweight": "bold", "axes.titlesize": 10})
    return plots


def headlines(cards, path, mark_text):
    """Ratios of Prism beside those of the papers, as pairs of bars."""
    plots = pyplot()
    figure, grid = plots.subplots(2, 4, figsize=(14, 4.6))
    for axes, card in zip(grid.flat, cards):
        pair = [card.paper or 0, card.value]
        axes.barh(["paper", "Prism"], pair, color=[SOFT, COLOURS["prism"]], height=0.5)
        for at, value in enumerate(pair):
            text = card.text(value) if value else "a plot only"
            axes.text(value, at, f" {text}", va="center", weight="bold" if at else "normal")
        axes.set_xlim(0, max(pair) * 1.35)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_title(card.title, loc="left")
        words = f"Prism: {card.case}\nPaper: {card.place}"
        axes.text(0, -0.08, words, transform=axes.transAxes, va="top", fontsize=7.5, color=SOFT)
    figure.tight_layout(h_pad=3)
    save(figure, path, mark_text)


def by_size(rows, path, mark_text):
    """Throughput by the size of objects: a panel for each kind of link and scheme."""
    plots = pyplot()
    kinds = [(link, scheme) for link in (100_000_000, None) for scheme in ("http", "https")]
    figure, grid = plots.subplots(1, 4, figsize=(13, 3.4))
    for axes, (link, scheme) in zip(grid, kinds):
        its = rows.where(link_bit_s=link, scheme=scheme)
        draw(axes, its, "bytes", "mb_s", 1)
        links = "fast" if link is None else "slow"
        axes.set_title(f"{scheme.upper()}, {links} links", loc="left")
    grid[0].set_ylabel("throughput, MB/s")
    grid[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    save(figure, path, mark_text)


def result(name, rows, path):
    """All values of one result: a row of panels for each case."""
    plots = pyplot()
    x = AXES.get(name, "bytes")
    cases = []
    for row in rows.all:
        case = {panel: field(row, panel) for panel in PANELS}
        if case not in cases:
            cases.append(case)
    shown = [value for value in VALUES if rows.values(value[1])]
    if not shown:
        return False
    size_inches = (3.8 * len(shown), 3.1 * len(cases))
    figure, grid = plots.subplots(len(cases), len(shown), figsize=size_inches, squeeze=False)
    for line, case in zip(grid, cases):
        for axes, (title, value, unit) in zip(line, shown):
            draw(axes, rows.where(**case), x, value, unit)
            axes.set_title(title, loc="left")
            labels = axes.get_legend_handles_labels()[1]
            if labels and (axes is line[0] or labels != line[0].get_legend_handles_labels()[1]):
                axes.legend(frameon=False, fontsize=7)
        words = [f"{text / 1e6:.0f} Mbit/s" if name == "link_bit_s" else str(text)
                 for name, text in case.items() if text is not None]
        line[0].set_ylabel(", ".join(words))
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plots.close(figure)
    return True


def draw(axes, rows, x, value, unit):
    """A line for each system and case: medians, with the least and greatest round."""
    rows = Rows(row for row in rows.all if value in row["values"])
    if not any(field(row, x) is not None for row in rows.all):
        x = next((name for row in rows.all for name in row["case"] if name not in PANELS), SYSTEM)
    lines = {}
    for row in rows.all:
        if field(row, x) is not None:
            # Large objects have fewer connections, and stay on their line.
            same = (x, "connections", *PANELS)
            its = {name: text for name, text in row["case"].items() if name not in same}
            lines.setdefault((row[SYSTEM], json.dumps(its, sort_keys=True)), []).append(row)
    steps = []
    for row in rows.all:
        if field(row, x) not in (None, *steps):
            steps.append(field(row, x))
    if all(isinstance(step, int) for step in steps):
        steps.sort()
    several = {its for _, its in lines}
    for (system, its), found in lines.items():
        points = []
        for at, step in enumerate(steps):
            values = sorted(row["values"][value] / unit for row in found if field(row, x) == step)
            if values:
                half = len(values) // 2
                middle = (values[half] + values[(len(values) - 1) // 2]) / 2
                points.append((at, middle, middle - values[0], values[-1] - middle))
        at, middle, below, above = zip(*points)
        label = f"{NAMES.get(system, system)} {differing(its, several)}"
        colour = COLOURS.get(system) if len(several) == 1 else None
        axes.errorbar(at, middle, (below, above), label=label, color=colour,
                      marker="o", markersize=3, linewidth=1.5, elinewidth=0.7)
    if lines:
        axes.set_yscale("log")
    labels = [size(step).rstrip("iB").replace(" ", "") if x == "bytes" else step for step in steps]
    turned = {} if x == "bytes" else {"rotation": 30, "ha": "right"}
    axes.set_xticks(range(len(steps)), labels, fontsize=7, **turned)


def differing(its, several):
    """The names and values that are not the same in all cases."""
    cases = [json.loads(text) for text in several]
    mine = json.loads(its)
    names = [name for name in mine if any(case.get(name) != mine[name] for case in cases)]
    return ", ".join(f"{name} {mine[name]}" for name in names)


def save(figure, path, mark_text):
    figure.savefig(path, dpi=100, metadata={"Rows": mark_text, "Software": None})
