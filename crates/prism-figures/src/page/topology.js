// The picture of the cluster: clients on the left, frontends, backends on the right.
//
// Bytes that do not pass a frontend run in a lane around the frontends, with one ribbon for
// each backend; all other bytes run through the boxes of the frontends. Connections that move
// are dots. The number of elements depends on the number of nodes, never on that of flows.

import { keep, setAttribute, setText, setValue, svg } from "./dom.js";
import { byteRate, rate } from "./format.js";
import { arrange } from "./layout.js";

/** Dots at a time; more moves are in the table only. */
const MAX_DOTS = 40;
const DOT_MS = 900;
/** Edges between nodes; weaker ones are in the table only. */
const MAX_PAIRS = 120;
/** The width of the ribbons of all bytes together. */
const FULL_PX = 30;

export class Topology {
  #root;
  #layers;
  #dots = 0;
  #peak = 1;
  #paths = new Map();
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(root) {
    this.#root = root;
    const layer = () => root.appendChild(svg("g"));
    this.#layers = {
      pairs: layer(),
      clients: layer(),
      boxes: layer(),
      texts: layer(),
      dots: layer(),
    };
  }

  /** Draws a graph: see `graphOf` in graph.js. */
  draw(graph) {
    const all = graph.edges.reduce((sum, edge) => sum + weightOf(edge), 0);
    // The scale follows the load slowly, so that widths of two moments can be compared.
    this.#peak = Math.max(all, 0.95 * this.#peak, 1);
    const width = (edge) => Math.max(1.5, (FULL_PX * weightOf(edge)) / this.#peak);
    const pairs = strongest(graph.pairs);
    const plan = arrange({ ...graph, pairs }, Math.max(560, this.#root.clientWidth), width);
    setAttribute(this.#root, "viewBox", `0 0 ${plan.width} ${plan.height}`);
    setAttribute(this.#root, "height", plan.height);
    this.#lines(this.#layers.clients, plan.edges, width);
    this.#lines(this.#layers.pairs, plan.pairs, width);
    this.#paths = new Map(plan.pairs.map((pair) => [pair.id, pair.path]));
    keep(this.#layers.boxes, plan.boxes, makeBox, changeBox);
    keep(this.#layers.texts, plan.texts, () => svg("text"), changeText);
    setText(this.#root.querySelector("desc"), graph.description);
  }

  #lines(layer, lines, width) {
    keep(
      layer,
      lines,
      () => svg("path"),
      (path, line) => {
        setAttribute(path, "d", line.path);
        setAttribute(path, "stroke-width", width(line).toFixed(1));
        setAttribute(
          path,
          "class",
          `edge ${line.kind}${weightOf(line) > 0 || line.moves > 0 ? "" : " idle"}`,
        );
      },
    );
  }

  /** Shows moves as dots, spread over the time until the next document. */
  move(moves) {
    if (this.#reducedMotion.matches || document.hidden) return;
    const shown = moves.slice(0, MAX_DOTS - this.#dots);
    shown.forEach((move, index) => {
      const forward = this.#paths.get(`${move.from} ${move.to}`);
      const path = forward ?? this.#paths.get(`${move.to} ${move.from}`);
      if (path) this.#dot(path, !forward, (DOT_MS * index) / shown.length);
    });
  }

  #dot(path, isReverse, delay) {
    const dot = svg("circle", { r: 4, class: "dot" });
    dot.style.offsetPath = `path("${path}")`;
    this.#layers.dots.append(dot);
    this.#dots += 1;
    const distances = isReverse ? ["100%", "0%"] : ["0%", "100%"];
    const frames = distances.map((offsetDistance) => ({ offsetDistance }));
    const done = () => {
      dot.remove();
      this.#dots -= 1;
    };
    const timing = { duration: DOT_MS, delay, easing: "ease-in-out", fill: "both" };
    dot.animate(frames, timing).finished.then(done, done);
  }
}

// The switch's agent knows the flows of an edge and not its bytes.
const weightOf = (edge) => edge.weight ?? edge.bytes ?? 0;

// The edges between nodes that carry most.
function strongest(pairs) {
  const weight = (pair) => (pair.bytes ?? 0) + 1000 * (pair.moves ?? 0);
  return pairs.length <= MAX_PAIRS
    ? pairs
    : [...pairs].sort((one, other) => weight(other) - weight(one)).slice(0, MAX_PAIRS);
}

function makeBox() {
  const group = svg("g");
  group.append(svg("rect", { rx: 7 }));
  return group;
}

function changeBox(group, box) {
  setAttribute(group, "class", `box ${box.kind} ${box.level ?? ""}`);
  const rect = group.firstChild;
  for (const name of ["x", "y", "width", "height"]) setAttribute(rect, name, box[name]);
}

function changeText(text, shown) {
  setAttribute(text, "x", shown.x);
  setAttribute(text, "y", shown.y);
  setAttribute(text, "text-anchor", shown.anchor);
  setAttribute(text, "class", shown.kind);
  if (shown.key) setValue(text, shown.key, shown.raw, shown.text);
  else if (shown.room) setTextWithin(text, shown.text, shown.room);
  else setText(text, shown.text);
}

// Sets a text, and cuts its end if it is wider than `room`. The mouse over it then shows all of it.
function setTextWithin(target, text, room) {
  const wanted = `${room} ${text}`;
  if (target.wanted === wanted) return;
  target.textContent = text;
  const width = target.getComputedTextLength();
  // A picture that is not shown has no widths.
  target.wanted = width > 0 || text === "" ? wanted : null;
  if (width <= room) return;
  const signs = [...text];
  do {
    signs.pop();
    target.textContent = `${signs.join("").trimEnd()}…`;
  } while (signs.length > 1 && target.getComputedTextLength() > room);
  const whole = target.appendChild(svg("title"));
  whole.textContent = text;
}

/** The rows of the table of edges. */
export function edgeRows(graph, limit) {
  const clients = graph.edges.map((edge) => ({ ...edge, from: "clients", to: edge.name }));
  return [...clients, ...graph.pairs]
    .slice(0, limit)
    .map(({ from, to, bytes, moves, totalMoves }) => {
      const key = `edges.${from}.${to}`;
      return {
        id: key,
        cells: [
          from,
          to,
          { text: byteRate(bytes), raw: bytes, key: `${key}.bytes_rate`, class: "number" },
          { text: rate(moves), raw: moves, key: `${key}.moves_rate`, class: "number" },
          {
            text: totalMoves === undefined ? "" : String(totalMoves),
            raw: totalMoves,
            key: `${key}.moves`,
            class: "number",
          },
        ],
      };
    });
}
