// Places of the boxes, lines and texts of the topology. Pure: numbers in, numbers out.

const MARGIN = 6;
/** Below this width of the picture its columns and gaps are smaller. */
const NARROW = 780;
/** Columns with more boxes have small boxes of one line. */
const MANY_BOXES = 8;
/** Edges between nodes have texts if there are at most so many frontends. */
const LABELLED = 3;
const LANE_PX = 34;
/** So many edges between nodes are fainter. */
const MANY_PAIRS = 24;
const LINE_PX = 17;
/** Between the left side of a box and its texts, and between these and its right side. */
const INDENT_PX = 12;
const RIGHT_PX = 6;
/** The part of a small box that its line has, beside its name. */
const SMALL_LINE_PX = 62;
/** Room beside the second column for edges between its boxes, and then for texts. */
const GUTTER_PX = 30;
const TEXT_PX = 84;
/** Without room for such a text, edges between nodes have none. */
const SHORT_TEXT_PX = 64;

/**
 * Arranges a graph in a picture that is `width` wide. `thickness(edge)` is the width of its line.
 * Returns the height, and `boxes`, `edges`, `pairs` and `texts` with their places. A text in a box
 * has no more `room` than that, in pixels.
 */
export function arrange(graph, width, thickness) {
  const isNarrow = width < NARROW;
  const hasLane = graph.edges.some((edge) => edge.kind === "direct") && graph.second.length > 0;
  const top = hasLane ? LANE_PX + 44 : 24;
  const columns = {
    clients: { x: MARGIN, width: isNarrow ? 84 : 96 },
    first: { width: isNarrow ? 100 : 138 },
    second: { width: isNarrow ? 136 : 146 },
  };
  const right = hasLane ? (isNarrow ? 72 : 92) + LANE_PX + 12 : 0;
  const last = width - MARGIN - right - columns.second.width;
  const firstGap = isNarrow ? 66 : 130;
  columns.first.x = MARGIN + columns.clients.width + firstGap;
  columns.second.x = graph.second.length > 0 ? last : width;
  const room = columns.second.x - columns.first.x - columns.first.width;
  const isLabelled =
    graph.first.length <= LABELLED &&
    graph.second.length <= MANY_BOXES &&
    room >= GUTTER_PX + SHORT_TEXT_PX;
  const ports = isLabelled ? Math.max(1, graph.first.length) : 1;
  const first = stack(graph.first, columns.first, 1);
  const second = stack(graph.second, columns.second, ports);
  const inner = Math.max(first.height, second.height, 96);
  for (const column of [first, second]) {
    for (const box of column.boxes) box.y += top + (inner - column.height) / 2;
  }
  const height = Math.ceil(top + inner + 14);
  const clients = {
    id: "clients",
    kind: "clients",
    ...columns.clients,
    y: MARGIN,
    height: height - 2 * MARGIN,
  };
  const boxes = new Map([...first.boxes, ...second.boxes].map((box) => [box.id, box]));
  const plan = {
    width,
    height,
    boxes: [clients, ...boxes.values()],
    edges: [],
    pairs: [],
    texts: [],
  };
  clientTexts(plan, clients, graph.clients);
  for (const box of boxes.values()) boxTexts(plan, box);
  straightEdges(plan, graph.edges, clients, first.boxes, thickness);
  if (hasLane) lane(plan, graph, clients, second.boxes, thickness);
  pairEdges(plan, graph.pairs, boxes, { first, second, ports, isLabelled }, thickness);
  return plan;
}

// The boxes of a column below each other, from 0.
function stack(nodes, column, ports) {
  const isSmall = nodes.length > MANY_BOXES;
  const height = isSmall ? 24 : Math.max(64, 36 * ports);
  const gap = isSmall ? 5 : 16;
  const boxes = nodes.map((node, index) => ({
    ...node,
    id: node.name,
    x: column.x,
    y: index * (height + gap),
    width: column.width,
    height,
    isSmall,
  }));
  return { boxes, height: Math.max(0, nodes.length * (height + gap) - gap) };
}

const middle = (box) => box.y + box.height / 2;

function clientTexts(plan, clients, lines) {
  const x = clients.x + clients.width / 2;
  const from = middle(clients) - (LINE_PX * (lines.length - 1)) / 2 + 4;
  lines.forEach((line, index) => {
    const kind = line.kind ?? "line";
    plan.texts.push({
      id: `clients ${index}`,
      ...line,
      kind,
      x,
      y: from + index * LINE_PX,
      anchor: "middle",
      room: clients.width - RIGHT_PX,
    });
  });
}

function boxTexts(plan, box) {
  const left = box.x + INDENT_PX;
  const room = box.width - INDENT_PX - RIGHT_PX;
  const name = { id: `${box.id} name`, x: left, anchor: "start", text: box.name, kind: "name" };
  const id = (index) => `${box.id} ${index}`;
  if (box.isSmall) {
    const y = Math.round(middle(box) + 4.5);
    const [line] = box.lines;
    const x = box.x + box.width - 10;
    plan.texts.push({ ...name, y, room: room - SMALL_LINE_PX });
    plan.texts.push({ id: id(0), kind: "line", ...line, x, y, anchor: "end" });
    return;
  }
  const from = Math.round(middle(box) - (LINE_PX * box.lines.length) / 2 + 4.5);
  plan.texts.push({ ...name, y: from, room });
  box.lines.forEach((line, index) => {
    const y = from + (index + 1) * LINE_PX;
    plan.texts.push({ id: id(index), kind: "line", ...line, x: left, y, anchor: "start", room });
  });
}

// The lines between the clients and the first column.
function straightEdges(plan, edges, clients, boxes, thickness) {
  const left = clients.x + clients.width;
  for (const box of boxes) {
    const edge = edges.find(({ name }) => name === box.id);
    if (!edge) continue;
    const y = middle(box);
    plan.edges.push({
      id: box.id,
      path: `M${left} ${y}H${box.x}`,
      bytes: edge.bytes,
      weight: edge.weight,
      kind: edge.kind,
    });
    plan.texts.push({
      id: `clients ${box.id} label`,
      x: (left + box.x) / 2,
      y: Math.round(y - thickness(edge) / 2 - (box.isSmall ? 3 : 6)),
      anchor: "middle",
      kind: `label ${edge.kind}`,
      text: edge.text,
    });
  }
}

// The ribbons from the second column around the first one. The ribbon of the highest box is
// the innermost one, so that none crosses another.
function lane(plan, graph, clients, boxes, thickness) {
  const edges = boxes.map((box) => graph.edges.find(({ name }) => name === box.id));
  const widths = edges.map((edge) => (edge ? thickness(edge) : 0));
  const sum = widths.reduce((total, one) => total + one, 0);
  const shrink = Math.min(1, LANE_PX / Math.max(1, sum));
  const left = clients.x + clients.width;
  const turn = plan.width - MARGIN - LANE_PX - 4;
  const bottom = MARGIN + LANE_PX;
  let offset = 0;
  boxes.forEach((box, index) => {
    const edge = edges[index];
    if (!edge) return;
    const own = widths[index] * shrink;
    const at = offset + own / 2;
    offset += own;
    const [start, y, x, laneY] = [box.x + box.width, middle(box), turn + at, bottom - at];
    const radius = Math.min(10 + at, x - start - 4);
    const path =
      `M${start} ${y}H${x - radius}Q${x} ${y} ${x} ${y - radius}` +
      `V${laneY + radius}Q${x} ${laneY} ${x - radius} ${laneY}H${left}`;
    plan.edges.push({ id: box.id, path, bytes: edge.bytes, kind: edge.kind });
    const labelY = Math.round(y - own / 2 - (box.isSmall ? 3 : 6));
    const label = { id: `clients ${box.id} label`, x: start + 8, y: labelY, anchor: "start" };
    plan.texts.push({ ...label, kind: `label ${edge.kind}`, text: edge.text });
  });
  const x = (left + plan.width - MARGIN - LANE_PX) / 2;
  plan.texts.push({
    id: "lane",
    x,
    y: bottom + 20,
    anchor: "middle",
    kind: "label direct strong",
    text: graph.lane,
  });
}

function pairEdges(plan, pairs, boxes, columns, thickness) {
  const density = pairs.length > MANY_PAIRS ? " dense" : "";
  const order = new Map(columns.first.boxes.map((box, index) => [box.id, index]));
  for (const pair of pairs) {
    const [from, to] = [boxes.get(pair.from), boxes.get(pair.to)];
    if (!from || !to || from === to) continue;
    const [leaves, reaches] = [order.has(from.id), order.has(to.id)];
    if (leaves === reaches) {
      const kind = `${pair.kind} between${density}`;
      plan.pairs.push({ ...pair, kind, path: arc(from, to, leaves) });
      continue;
    }
    const [left, right] = leaves ? [from, to] : [to, from];
    const port = columns.ports > 1 ? order.get(left.id) : 0;
    const y = right.y + ((port + 0.5) * right.height) / columns.ports;
    const path = across(left, right, y, columns.isLabelled, leaves);
    plan.pairs.push({ ...pair, kind: pair.kind + density, path });
    if (columns.isLabelled && leaves) pairTexts(plan, pair, right, y, thickness(pair) / 2);
  }
}

// An edge between the columns, to a height of the box at its right. Its right part is level,
// because the texts stand there.
function across(left, right, y, hasTexts, isForward) {
  const start = left.x + left.width;
  const room = hasTexts ? Math.min(GUTTER_PX + TEXT_PX, 0.65 * (right.x - start)) : 0;
  const level = right.x - room;
  const bend = (start + level) / 2;
  const from = middle(left);
  return isForward
    ? `M${start} ${from}C${bend} ${from} ${bend} ${y} ${level} ${y}H${right.x}`
    : `M${right.x} ${y}H${level}C${bend} ${y} ${bend} ${from} ${start} ${from}`;
}

// An edge within a column, beside its boxes.
function arc(from, to, isInFirst) {
  const x = isInFirst ? from.x + from.width : from.x;
  // Edges that reach further bulge further.
  const reach = Math.min(GUTTER_PX, 14 + Math.abs(to.y - from.y) / 16);
  const bulge = x + (isInFirst ? reach : -reach);
  const down = to.y > from.y ? 0.25 : -0.25;
  const [start, end] = [middle(from) + down * from.height, middle(to) - down * to.height];
  return `M${x} ${start}C${bulge} ${start} ${bulge} ${end} ${x} ${end}`;
}

function pairTexts(plan, pair, box, y, half) {
  const x = box.x - GUTTER_PX;
  const add = (id, dy, text, kind) =>
    text &&
    plan.texts.push({
      id: `${pair.id} ${id}`,
      x,
      y: Math.round(y + dy),
      anchor: "end",
      kind,
      text,
    });
  add("bytes", -half - 5, pair.text, `label ${pair.kind}`);
  add("moves", half + 12, pair.movesText, "label moving");
}
