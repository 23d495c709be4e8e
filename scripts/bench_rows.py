"""Rows of benchmarks: reading them, and medians and ratios over their rounds.

A row is one turn: a line of JSON with `result`, `case`, `system`, `round` and `values`
(`prism-lab bench ... --rows FILE`). The output of `--json` has the same rows in a document.
"""

import json
import statistics

SYSTEM = "system"


def read(paths):
    """The rows of all files. If several have the same turn, the first counts."""
    turns = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"{path} cannot be read: {error}") from error
        try:
            found = parse(text)
            for row in found:
                turns.setdefault(identity(row), row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path} has no rows of `prism-lab bench`: {error}") from error
    return Rows(turns.values())


def parse(text):
    try:
        document = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]
    return document["rows"] if "rows" in document else [document]


def identity(row):
    case = tuple(sorted((name, str(value)) for name, value in row["case"].items()))
    return row["result"], case, row["system"], row["round"], bool(row["values"])


def field(row, name):
    """A name of the case, or the system. None if the case has no such name."""
    return row["system"] if name == SYSTEM else row["case"].get(name)


class Rows:
    """A selection of rows."""

    def __init__(self, rows):
        self.all = list(rows)

    def where(self, **wanted):
        """The rows with these fields. None is for rows without the name."""
        fits = lambda row: all(field(row, name) == value for name, value in wanted.items())
        return Rows(row for row in self.all if fits(row))

    def values(self, value):
        """One value of all rows that have it."""
        return [row["values"][value] for row in self.all if value in row["values"]]

    def median(self, value):
        values = self.values(value)
        return statistics.median(values) if values else None

    def ratios(self, value, over, of="prism", by=SYSTEM):
        """A value of side `of` over that of side `over`, in each round that has both. The sides
        differ in the field `by` only."""

        def rest(row):
            case = {name: text for name, text in row["case"].items() if name != by}
            system = None if by == SYSTEM else row["system"]
            return row["round"], system, tuple(sorted(case.items()))

        sides = {rest(row): row["values"] for row in self.all if field(row, by) == over}
        pairs = ((row["values"], sides.get(rest(row))) for row in self.all if field(row, by) == of)
        return [mine[value] / theirs[value] for mine, theirs in pairs if theirs and theirs[value]]

    def ratio(self, value, over, of="prism", by=SYSTEM):
        """The median of the ratios."""
        ratios = self.ratios(value, over, of, by)
        return statistics.median(ratios) if ratios else None


def size(number):
    """Bytes in the largest unit that gives a whole number."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} B"
