// Rates and distributions out of a sequence of state documents. Pure: no DOM, no clock.
//
// All counters of a document are totals since the start of their process. A rate is their
// difference over the last WINDOW documents, divided by the difference of the node's own times.

/** Rates are over this many intervals, so that single requests do not make numbers jump. */
const WINDOW = 3;

/** The counters of a node whose rates a view has. */
const RATES = [
  "sent",
  "received",
  "requests",
  "errors",
  "accepted",
  "handed off",
  "above limits",
  "redirects",
  "redirected bytes",
];

/** One node over time. */
class Track {
  samples = [];
  last = null;
  // The counts of the node when the page was opened.
  baseline = null;
  lastMove = null;

  add(node) {
    const sample = { time_ms: node.time_ms, uptime_s: node.uptime_s, counters: counters(node) };
    if (this.last && restarted(this.last, sample)) {
      // All that the new process counted happened while the page was open.
      this.samples = [];
      this.baseline = { steps: [], request_durations: [] };
      this.lastMove = 0;
    }
    this.baseline ??= { steps: node.steps ?? [], request_durations: node.request_durations ?? [] };
    this.last = sample;
    // A document may repeat an answer of the node.
    if (this.samples.at(-1)?.time_ms !== sample.time_ms) this.samples.push(sample);
    if (this.samples.length > WINDOW + 1) this.samples.shift();
  }

  /** The rate of a counter per second; null if it is not known. */
  rate(name) {
    const [first, last] = [this.samples[0], this.samples.at(-1)];
    if (!first || first === last) return null;
    // A counter appears with the first event that it counts.
    const difference = (last.counters.get(name) ?? 0) - (first.counters.get(name) ?? 0);
    return (1000 * difference) / (last.time_ms - first.time_ms);
  }

  /** The moves that no earlier document had. At the first one nothing counts as new. */
  newMoves(moves) {
    const highest = moves.reduce((most, move) => Math.max(most, move.n), 0);
    const known = this.lastMove ?? highest;
    this.lastMove = Math.max(known, highest);
    return moves.filter((move) => move.n > known);
  }
}

const restarted = (last, next) =>
  next.uptime_s < last.uptime_s ||
  next.time_ms < last.time_ms ||
  [...last.counters].some(([name, value]) => (next.counters.get(name) ?? 0) < value);

/** The counters of a node by name. */
function counters(node) {
  const found = new Map();
  const add = (name, value) => found.set(name, (found.get(name) ?? 0) + value);
  add("accepted", node.accepted ?? 0);
  for (const count of Object.values(node.above_limits ?? {})) add("above limits", count);
  add("redirects", node.redirects ?? 0);
  add("redirected bytes", node.redirected_bytes ?? 0);
  for (const { role, step, count } of node.steps ?? []) add(`step ${role} ${step}`, count);
  for (const request of node.requests ?? []) {
    add("sent", request.sent_bytes);
    add("received", request.received_bytes);
    add("requests", request.count);
    if (request.code >= 500) add("errors", request.count);
    add(requestName(request), request.count);
  }
  for (const { node: peer, count, bytes } of node.relayed ?? []) {
    add(`relayed ${peer}`, count);
    add(`relayed bytes ${peer}`, bytes);
  }
  for (const { node: peer, count } of node.handed_off ?? []) {
    add(`handed off ${peer}`, count);
    add("handed off", count);
  }
  return found;
}

const requestName = ({ operation, code }) => `request ${operation} ${code}`;

/** The packets of the switch by verdict and reason. */
function packetCounters(part) {
  return new Map((part.packets ?? []).map((row) => [`${row.verdict} ${row.reason}`, row.count]));
}

/** Makes a view of each document, with the rates that follow from the ones before. */
export class History {
  #tracks = new Map();
  #switch = new Track();

  /** The view of the next document. */
  add(doc) {
    const nodes = (doc.nodes ?? []).map((node) => this.#node(node));
    // Nodes that left the cluster are forgotten.
    const names = new Set(nodes.map((node) => node.name));
    for (const name of this.#tracks.keys()) if (!names.has(name)) this.#tracks.delete(name);
    const moves = nodes.flatMap((node) => node.moves);
    moves.sort((one, other) => other.at_ms - one.at_ms);
    return {
      doc,
      nodes,
      moves,
      totals: totals(nodes),
      requests: requests(nodes),
      packets: this.#packets(doc),
    };
  }

  #node(node) {
    const roles = node.roles ?? [];
    // A node that answers from its own store is a backend, whatever else it is.
    const isFrontend = roles.includes("frontend") && !roles.includes("backend");
    const view = { ...node, roles, isFrontend, rates: {}, pairs: [], moves: [] };
    if (node.error) {
      this.#tracks.get(node.name)?.samples.splice(0);
      return view;
    }
    if (!this.#tracks.has(node.name)) this.#tracks.set(node.name, new Track());
    const track = this.#tracks.get(node.name);
    track.add(node);
    for (const name of RATES) view.rates[name] = track.rate(name);
    const fresh = new Set(track.newMoves(node.moves ?? []));
    view.moves = (node.moves ?? []).map((move) => ({
      ...move,
      from: node.name,
      isNew: fresh.has(move),
    }));
    view.pairs = pairs(node, track);
    view.baseline = track.baseline;
    view.requestRate = (request) => track.rate(requestName(request));
    return view;
  }

  #packets({ switch: part, time_ms }) {
    if (!part || part.error) return [];
    const now = { time_ms, counters: packetCounters(part) };
    const last = this.#switch.samples.at(-1);
    if (last && restarted(last, now)) this.#switch.samples = [];
    this.#switch.samples.push(now);
    if (this.#switch.samples.length > WINDOW + 1) this.#switch.samples.shift();
    return (part.packets ?? []).map((row) => ({
      ...row,
      rate: this.#switch.rate(`${row.verdict} ${row.reason}`),
    }));
  }
}

// The edges from a node to each other one.
function pairs(node, track) {
  const peers = new Set(
    [...(node.relayed ?? []), ...(node.handed_off ?? [])].map((row) => row.node),
  );
  return [...peers].sort().map((peer) => ({
    from: node.name,
    to: peer,
    bytes: track.rate(`relayed bytes ${peer}`),
    relayed: track.rate(`relayed ${peer}`),
    moves: track.rate(`handed off ${peer}`),
    totalMoves: (node.handed_off ?? []).find((row) => row.node === peer)?.count ?? 0,
  }));
}

// The sum of the numbers that are known; null if none is.
const sum = (numbers) => {
  const known = numbers.filter((number) => number !== null && number !== undefined);
  return known.length > 0 ? known.reduce((all, number) => all + number, 0) : null;
};

/** The bytes per second between a node and its clients, in both directions. */
export const clientBytes = ({ rates }) => sum([rates.sent, rates.received]);

function totals(nodes) {
  const of = (name) => sum(nodes.map((node) => node.rates[name]));
  const through = sum(nodes.filter((node) => node.isFrontend).map(clientBytes));
  const direct = sum(nodes.filter((node) => !node.isFrontend).map(clientBytes));
  const bytes = sum([through, direct]);
  return {
    through,
    direct,
    bytes,
    directShare: bytes > 0 && direct !== null ? direct / bytes : null,
    connections: sum(nodes.map((node) => node.connections)),
    requests: of("requests"),
    errors: of("errors"),
    accepted: of("accepted"),
    moves: of("handed off"),
    aboveLimits: of("above limits"),
    redirects: of("redirects"),
    redirectedBytes: of("redirected bytes"),
  };
}

// Requests of all nodes by operation and status.
function requests(nodes) {
  const rows = new Map();
  for (const node of nodes) {
    const seen = new Set();
    for (const request of node.requests ?? []) {
      const id = requestName(request);
      const { operation, code } = request;
      const row = rows.get(id) ?? {
        id,
        operation,
        code,
        total: 0,
        relayed: 0,
        sent: 0,
        received: 0,
        rates: [],
      };
      row.total += request.count;
      row.relayed += request.path === "relayed" ? request.count : 0;
      row.sent += request.sent_bytes;
      row.received += request.received_bytes;
      // The rate covers both paths of the operation.
      if (!seen.has(id)) row.rates.push(node.requestRate?.(request));
      seen.add(id);
      rows.set(id, row);
    }
  }
  const found = [...rows.values()].map((row) => ({ ...row, rate: sum(row.rates) }));
  return found.sort(
    (one, other) => one.operation.localeCompare(other.operation) || one.code - other.code,
  );
}

/** The mean duration of each operation over all nodes, by its name. */
export function meanDurations(view, sinceOpened) {
  const sums = new Map();
  const add = (rows, sign) => {
    for (const { operation, count, sum_s } of rows ?? []) {
      const all = sums.get(operation) ?? { count: 0, sum_s: 0 };
      sums.set(operation, { count: all.count + sign * count, sum_s: all.sum_s + sign * sum_s });
    }
  };
  for (const node of view.nodes) {
    add(node.request_durations, 1);
    if (sinceOpened) add(node.baseline?.request_durations, -1);
  }
  return new Map(
    [...sums].map(([name, all]) => [name, all.count > 0 ? all.sum_s / all.count : null]),
  );
}

/** The distribution of each step of hand-offs over all nodes: the order is that of the nodes. */
export function steps(view, sinceOpened) {
  const found = new Map();
  const add = (rows, sign) => {
    for (const { role, step, count, sum_s, buckets } of rows ?? []) {
      const id = `${role} ${step}`;
      const all = found.get(id) ?? { id, role, step, count: 0, sum_s: 0, buckets: new Map() };
      all.count += sign * count;
      all.sum_s += sign * sum_s;
      for (const [bound, number] of buckets) {
        const key = bound ?? Infinity;
        all.buckets.set(key, (all.buckets.get(key) ?? 0) + sign * number);
      }
      found.set(id, all);
    }
  };
  for (const node of view.nodes) {
    add(node.steps, 1);
    if (sinceOpened) add(node.baseline?.steps, -1);
  }
  return [...found.values()].map((all) => ({
    ...all,
    mean: all.count > 0 ? all.sum_s / all.count : null,
    p50: quantile(all.buckets, 0.5),
    p99: quantile(all.buckets, 0.99),
  }));
}

/**
 * An estimate of a quantile, out of a map from upper bounds to counts. Values are taken as
 * spread evenly within their bucket; above the last bound it is that bound.
 */
export function quantile(buckets, share) {
  const sorted = [...buckets].sort(([one], [other]) => one - other);
  const all = sorted.reduce((sofar, [, number]) => sofar + number, 0);
  if (all <= 0) return null;
  let left = share * all;
  let lower = 0;
  for (const [bound, number] of sorted) {
    if (number > 0 && left <= number)
      return bound === Infinity ? lower : lower + ((bound - lower) * left) / number;
    left -= number;
    lower = bound === Infinity ? lower : bound;
  }
  return lower;
}
