// The tables of the page, each out of a view (see state.js).
//
// A table has a row for each node, operation, step or file; no table has rows for flows.

import { fill, setText } from "./dom.js";
import { age, byteRate, bytes, clock, count, day, duration, percent, rate } from "./format.js";
import { stateOf } from "./graph.js";
import { hasServers, keepsObjects } from "./servers.js";
import { meanDurations, steps } from "./state.js";

const MAX_ROWS = 100;
const MAX_MOVES = 40;
const DAY_S = 86400;
/** The axis of hand-off latencies: 1 µs to 1 s. */
const AXIS_FROM = 1e-6;
const AXIS_DECADES = 6;

const table = (id) => document.getElementById(id);
const number = (text, raw, key) => ({ text, raw, key, class: "number" });

/** Shows or hides the panel of a table. */
function setPanel(id, isShown) {
  table(id).closest(".panel").hidden = !isShown;
}

/** Updates all tables. `sinceOpened` is the beginning of the durations. */
export function updatePanels(view, sinceOpened) {
  const { doc } = view;
  servers(doc);
  nodes(view);
  owners(view);
  moves(view);
  requests(view, sinceOpened);
  latencies(view, sinceOpened);
  backends(keepsObjects(doc) ? doc.cluster : null);
  stores(view);
  certificates(view);
  packets(view);
}

function servers(doc) {
  setPanel("servers", hasServers(doc));
  const rows = (doc.servers ?? []).slice(0, MAX_ROWS).map((server) => {
    const { upstream, address, source, backend, state } = server;
    const { under_way: underWay, last_fault: fault } = server;
    const level = { healthy: "good", unhealthy: "critical" }[state] ?? "warning";
    const mark = { good: "●", warning: "▲", critical: "✕" }[level];
    const errors = Object.values(server.errors ?? {}).reduce((sum, number) => sum + number, 0);
    const named = source && source !== "configuration" ? `${address} (${source})` : address;
    const id = `${upstream} ${address} ${backend}`;
    const key = `servers.${id}`;
    return {
      id,
      cells: [
        { text: upstream, class: "path" },
        named,
        backend,
        { text: `${mark} ${state}`, class: `state ${level}` },
        number(count(underWay), underWay, `${key}.under_way`),
        number(count(errors), errors, `${key}.errors`),
        {
          text: fault ? `${fault.reason} (${fault.by}), ${age(fault.ago_s)} ago` : "",
          class: "long",
        },
      ],
    };
  });
  fill(table("servers"), rows, "The service has no servers.");
}

function nodes({ nodes: all, doc }) {
  setPanel("nodes", all.length > 0);
  const rows = all.slice(0, MAX_ROWS).map((node) => {
    const state = stateOf(node, doc);
    const key = `nodes.${node.name}`;
    const { rates } = node;
    return {
      id: node.name,
      cells: [
        node.name,
        {
          text: `${state.mark} ${state.text}`,
          class: `state ${state.level}`,
          title: node.error ?? node.not_ready,
        },
        node.roles.join(", "),
        node.address ?? "",
        number(age(node.uptime_s), node.uptime_s, `${key}.uptime_s`),
        number(rate(rates.accepted), node.accepted, `${key}.accepted`),
        number(byteRate(rates.sent), rates.sent, `${key}.sent_rate`),
        number(byteRate(rates.received), rates.received, `${key}.received_rate`),
        node.version ?? "",
      ],
    };
  });
  fill(table("nodes"), rows, "No nodes are known.");
}

function owners({ nodes: all, doc }) {
  const part = doc.switch;
  const inSwitch = new Map((part?.owners ?? []).map((row) => [row.owner, row.flows]));
  const own = new Map(all.map((node) => [node.name, node.error ? null : node.connections]));
  const names = [...new Set([...own.keys(), ...inSwitch.keys()])];
  const flows = (name) => own.get(name) ?? inSwitch.get(name) ?? 0;
  const sum = names.reduce((total, name) => total + flows(name), 0);
  const rows = names.slice(0, MAX_ROWS).map((name) => {
    const share = sum > 0 ? flows(name) / sum : 0;
    return {
      id: name,
      cells: [
        name,
        number(count(own.get(name)), own.get(name), `nodes.${name}.connections`),
        number(count(inSwitch.get(name)), inSwitch.get(name), `switch.${name}.flows`),
        { text: percent(share), class: "number wide", bar: { from: 0, to: share } },
      ],
    };
  });
  fill(table("owners"), rows, "There are no flows.");
  const text = part
    ? `${count(part.flows)} of ${count(part.max_flows)} in the switch`
    : `${count(sum)} in all`;
  setText(document.getElementById("flows-aside"), text);
  // A column that nothing is known for is not shown.
  table("owners").classList.toggle("without-nodes", all.length === 0);
  table("owners").classList.toggle("without-switch", !part);
}

function moves({ moves: all, nodes: list }) {
  setPanel("moves", list.length > 1);
  const rows = all.slice(0, MAX_MOVES).map((move) => ({
    id: `${move.from} ${move.n}`,
    cells: [move.client, move.from, move.to, { text: clock(move.at_ms), class: "number" }],
  }));
  fill(table("moves"), rows, "No connection has moved yet.");
}

function requests(view, sinceOpened) {
  setPanel("requests", view.nodes.length > 0);
  const means = meanDurations(view, sinceOpened);
  let last = "";
  const rows = view.requests.slice(0, MAX_ROWS).map((row) => {
    const key = `requests.${row.operation}.${row.code}`;
    const isFirst = row.operation !== last;
    last = row.operation;
    const mean = means.get(row.operation);
    const level = row.code >= 500 ? "state critical" : row.code >= 400 ? "state warning" : "state";
    const mark = row.code >= 500 ? " ✕" : row.code >= 400 ? " ▲" : "";
    return {
      id: row.id,
      cells: [
        row.operation,
        { text: `${row.code}${mark}`, class: level },
        number(rate(row.rate), row.rate, `${key}.rate`),
        number(count(row.total), row.total, `${key}.count`),
        number(
          percent(row.total > 0 ? row.relayed / row.total : null),
          row.relayed,
          `${key}.relayed`,
        ),
        number(bytes(row.sent), row.sent, `${key}.sent_bytes`),
        number(bytes(row.received), row.received, `${key}.received_bytes`),
        // The durations are those of the operation, whatever its status.
        number(isFirst ? duration(mean) : "", mean, `${key}.mean_s`),
      ],
    };
  });
  fill(table("requests"), rows, "There were no requests yet.");
}

const onAxis = (seconds) =>
  Math.min(1, Math.max(0, Math.log10(seconds / AXIS_FROM) / AXIS_DECADES));

function latencies(view, sinceOpened) {
  setPanel("steps", view.nodes.length > 0);
  const rows = steps(view, sinceOpened).map((step) => {
    const key = `steps.${step.role}.${step.step}`;
    const isKnown = step.p50 !== null;
    const from = isKnown ? onAxis(step.p50) : 0;
    const to = isKnown ? Math.max(from + 0.01, onAxis(step.p99)) : 0;
    return {
      id: step.id,
      cells: [
        step.step,
        step.role,
        number(count(step.count), step.count, `${key}.count`),
        number(duration(step.mean), step.mean, `${key}.mean_s`),
        number(duration(step.p50), step.p50, `${key}.p50_s`),
        number(duration(step.p99), step.p99, `${key}.p99_s`),
        { text: "", class: "wide axis", bar: { from, to } },
      ],
    };
  });
  fill(table("steps"), rows, "No connection was handed off yet.");
}

function backends(cluster) {
  setPanel("backends", Boolean(cluster));
  if (!cluster) return;
  const rows = (cluster.backends ?? []).slice(0, MAX_ROWS).map((backend) => {
    const { name, status, since, lives, in_reach: inReach } = backend;
    const level = status === "in-sync" ? "good" : status === "lagging" ? "warning" : "critical";
    const mark = { good: "●", warning: "▲", critical: "✕" }[level];
    const lease =
      lives === undefined ? (inReach ? "in reach" : "out of reach") : lives ? "has one" : "✕ none";
    return {
      id: name,
      cells: [
        name,
        {
          text: status ? `${mark} ${status}` : "not a member",
          class: `state ${status ? level : ""}`,
        },
        number(count(since), since, `backends.${name}.since`),
        { text: lease, class: lives === false || inReach === false ? "state critical" : "state" },
        number(count(backend.open_changes), backend.open_changes, `backends.${name}.open_changes`),
        catchUp(backend),
      ],
    };
  });
  fill(table("backends"), rows, "The cluster has no backends.");
}

// What a backend has done of its catch-up: it compares its objects bucket by bucket with each other
// backend.
function catchUp(backend) {
  const { name, catching_up: report, fetches_since: wanted, caught_up: reached } = backend;
  const label = `Catch-up of ${name}`;
  const isBehind = Number.isFinite(wanted) && (reached ?? report?.caught_up ?? 0) < wanted;
  const without = (text) => ({ text, progress: undefined, class: "long" });
  if (backend.status === "out") return without("begins when it is back");
  if (!report) return without("not in reach");
  if (!isBehind && !report.is_running) return without("complete");
  const { parts, parts_done: done, compared, fetched, fetched_bytes: size, hindrance } = report;
  const wait = hindrance ? `; waits: ${hindrance}` : "";
  const share = parts > 0 ? `${count(done)} of ${count(parts)} parts; ` : "";
  return {
    text: `${share}${count(compared)} compared, ${count(fetched)} fetched (${bytes(size)})${wait}`,
    class: "long",
    raw: compared,
    key: `backends.${name}.compared`,
    progress: parts > 0 ? done / parts : null,
    label,
  };
}

// The share of a store that is used.
function fullShare({ used_bytes, quota_bytes, free_bytes }) {
  const all = used_bytes + free_bytes;
  const room = quota_bytes > 0 ? Math.min(quota_bytes, all) : all;
  return room > 0 ? Math.min(1, used_bytes / room) : 0;
}

function stores({ nodes: all, doc }) {
  const withStore = all.filter((node) => node.store);
  setPanel("stores", withStore.length > 0);
  const open = new Map(
    (doc.cluster?.backends ?? []).map((backend) => [backend.name, backend.open_changes]),
  );
  const rows = withStore.slice(0, MAX_ROWS).map(({ name, store }) => {
    const share = fullShare(store);
    const damaged = store.corrupt_reads + store.scrub_faults;
    const changes = store.open_changes ?? open.get(name);
    return {
      id: name,
      cells: [
        name,
        number(bytes(store.used_bytes), store.used_bytes, `stores.${name}.used_bytes`),
        number(bytes(store.free_bytes), store.free_bytes, `stores.${name}.free_bytes`),
        { text: percent(share), class: "number wide", bar: { from: 0, to: share } },
        number(count(changes), changes, `stores.${name}.open_changes`),
        {
          ...number(count(damaged), damaged, `stores.${name}.damaged`),
          class: `number${damaged > 0 ? " state critical" : ""}`,
        },
      ],
    };
  });
  fill(table("stores"), rows, "No node has a store.");
}

// Nodes often have the same file, which then is one row.
function certificates({ nodes: all, doc }) {
  const files = new Map();
  for (const { name, certificates: own } of all) {
    for (const { file, expires_s: end_s } of own ?? []) {
      const id = `${file} ${day(1000 * end_s)}`;
      const names = files.get(id)?.names ?? [];
      files.set(id, { id, file, end_s, names: [...names, name] });
    }
  }
  setPanel("certificates", files.size > 0);
  const sorted = [...files.values()].sort((one, other) => one.end_s - other.end_s);
  const rows = sorted.slice(0, MAX_ROWS).map(({ id, file, end_s, names }) => {
    const days = Math.floor((end_s - doc.time_ms / 1000) / DAY_S);
    const level = days < 0 ? "critical" : days < 14 ? "warning" : "";
    const mark = { critical: "✕ ", warning: "▲ " }[level] ?? "";
    const left = {
      text: `${mark}${count(days)}`,
      raw: days,
      key: `certificates.${file}.${names[0]}.days`,
    };
    const nodes = names.length > 8 ? `${names.length} nodes` : names.join(", ");
    return {
      id,
      cells: [
        { text: file, class: "path" },
        { text: nodes, class: "long" },
        day(1000 * end_s),
        { ...left, class: `number state ${level}` },
      ],
    };
  });
  fill(table("certificates"), rows, "No node has a certificate.");
}

function packets({ packets: all, doc }) {
  setPanel("packets", Boolean(doc.switch));
  const rows = all.slice(0, MAX_ROWS).map((row) => ({
    id: `${row.verdict} ${row.reason}`,
    cells: [
      row.verdict,
      row.reason,
      number(rate(row.rate), row.rate, `packets.${row.verdict}.${row.reason}.rate`),
      number(count(row.count), row.count, `packets.${row.verdict}.${row.reason}.count`),
    ],
  }));
  fill(table("packets"), rows, "The switch has counted no packets.");
}
