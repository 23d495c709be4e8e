// The totals at the top of the page, each with a line of its last minutes.

import { element, keep, setAttribute, setValue, svg } from "./dom.js";
import { byteRate, count, percent, rate } from "./format.js";

/** Points of a line, one for each document. */
const POINTS = 120;
const WIDTH = 120;
const HEIGHT = 26;

const hasFrontends = ({ nodes }) => nodes.some((node) => node.isFrontend);
const isLimited = ({ nodes }) =>
  nodes.some((node) => Object.values(node.above_limits ?? {}).some((count) => count > 0));
const hasRedirects = ({ nodes }) => nodes.some((node) => node.redirects > 0);

// `isShown` tells whether a view has the tile; without it all have. The mouse over a tile shows its
// `hint`.
const TILES = [
  {
    id: "bytes",
    title: "Bytes to and from clients",
    of: ({ totals }) => totals.bytes,
    show: byteRate,
  },
  {
    id: "direct_share",
    title: "did not pass a frontend",
    of: ({ totals }) => totals.directShare,
    show: percent,
    top: 1,
    kind: "direct",
    isShown: hasFrontends,
  },
  { id: "requests", title: "Requests", of: ({ totals }) => totals.requests, show: rate },
  {
    id: "errors",
    title: "Errors (5xx)",
    of: ({ totals }) => totals.errors,
    show: rate,
    kind: "critical",
  },
  {
    id: "moves",
    title: "Moves of connections",
    of: ({ totals }) => totals.moves,
    show: rate,
    kind: "moving",
  },
  {
    id: "connections",
    title: "Open connections",
    of: ({ totals }) => totals.connections,
    show: count,
  },
  {
    id: "above_limits",
    title: "Requests above a limit",
    hint: "Requests that a limit of the configuration has refused.",
    of: ({ totals }) => totals.aboveLimits,
    show: rate,
    isShown: isLimited,
  },
  {
    id: "redirects",
    title: "Internal redirects",
    hint: "Answers that name another resource, which clients get from the node that has it.",
    of: ({ totals }) => totals.redirects,
    show: rate,
    isShown: hasRedirects,
  },
  {
    id: "redirected_bytes",
    title: "did not pass the redirecting server",
    hint: "Bytes of the resources that redirects have named.",
    of: ({ totals }) => totals.redirectedBytes,
    show: byteRate,
    isShown: hasRedirects,
  },
];

const SWITCH_TILES = [
  { id: "flows", title: "Flows", of: ({ doc }) => doc.switch?.flows, show: count },
  {
    id: "full",
    title: "of the table is full",
    of: ({ doc }) => doc.switch && doc.switch.flows / doc.switch.max_flows,
    show: percent,
    top: 1,
  },
  {
    id: "packets",
    title: "Packets",
    of: ({ packets }) => packets.reduce((sum, row) => sum + (row.rate ?? 0), 0),
    show: rate,
  },
];

const tilesOfKind = ({ doc }) => ({ switch: SWITCH_TILES })[doc.kind] ?? TILES;

/** The names of the tiles that a view has. */
export const tileNames = (view) =>
  tilesOfKind(view)
    .filter(({ isShown }) => isShown?.(view) ?? true)
    .map(({ id }) => id);

export class Tiles {
  #root;
  #history = new Map();

  constructor(root) {
    this.#root = root;
  }

  /** Shows a view, and adds it to the lines. */
  update(view) {
    // A tile that is shown later has its whole line.
    const items = tilesOfKind(view).map((tile) => {
      const raw = tile.of(view);
      const points = this.#history.get(tile.id) ?? [];
      points.push(raw ?? null);
      if (points.length > POINTS) points.shift();
      this.#history.set(tile.id, points);
      return { ...tile, raw, points };
    });
    const names = tileNames(view);
    const shown = items.filter(({ id }) => names.includes(id));
    keep(this.#root, shown, make, change);
  }
}

function make({ title, kind, hint }) {
  const line = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  line.append(svg("path"));
  const text = element("p", {}, element("strong"), element("span", {}, title));
  const tile = element("div", { class: `tile ${kind ?? ""}` }, text, line);
  setAttribute(tile, "title", hint);
  return tile;
}

function change(tile, { id, raw, show, points, top }) {
  setValue(tile.querySelector("strong"), `totals.${id}`, raw, show(raw));
  const most = top ?? Math.max(1e-9, ...points);
  const step = WIDTH / (POINTS - 1);
  const from = WIDTH - step * (points.length - 1);
  // A point without a number begins a new piece of the line.
  let isOpen = false;
  const pieces = points.map((value, index) => {
    if (value === null) isOpen = false;
    if (value === null) return "";
    const [x, y] = [from + index * step, HEIGHT - 2 - ((HEIGHT - 4) * value) / most];
    const piece = `${isOpen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isOpen = true;
    return piece;
  });
  setAttribute(tile.querySelector("path"), "d", pieces.join(""));
}
