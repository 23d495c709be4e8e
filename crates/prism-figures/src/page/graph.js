// The graph that the topology shows, out of a view (see state.js). Pure.

import { byteRate, count, percent, rate } from "./format.js";
import { keepsObjects, stateByServers } from "./servers.js";
import { clientBytes } from "./state.js";

/** The state of a node in a few words, and how bad it is. */
export function stateOf(node, doc) {
  const { cluster } = doc;
  if (node.error) return { level: "critical", mark: "✕", text: "not reachable" };
  const backend = (cluster?.backends ?? []).find(({ name }) => name === node.name);
  if (backend?.lives === false) return { level: "critical", mark: "✕", text: "no lease" };
  if (backend?.status === "out") return { level: "critical", mark: "✕", text: "out" };
  if (node.not_ready) return { level: "warning", mark: "▲", text: "not ready" };
  // A backend answers while it catches up, and an unhealthy server does not.
  const byServers = stateByServers(node.name, doc);
  if (byServers) return byServers;
  const status = keepsObjects(doc) ? backend?.status : null;
  if (status === "lagging") return { level: "warning", mark: "▲", text: "catching up" };
  if (status === "in-sync") return { level: "good", mark: "●", text: "in sync" };
  return { level: "good", mark: "●", text: "ready" };
}

/** The graph of a view. */
export const graphOf = (view) =>
  view.doc.kind === "switch" ? graphOfSwitch(view.doc.switch) : graphOfNodes(view);

function graphOfNodes({ doc, nodes, totals }) {
  const frontends = nodes.filter((node) => node.isFrontend);
  const others = nodes.filter((node) => !node.isFrontend);
  const hasFrontends = frontends.length > 0;
  const boxes = (list) => list.map((node) => boxOf(node, doc));
  const edges = nodes.map((node) => {
    const bytes = clientBytes(node);
    const text = bytes === null ? "" : byteRate(bytes);
    return { name: node.name, bytes, text, kind: node.isFrontend ? "through" : "direct" };
  });
  const share = totals.directShare === null ? "" : ` (${percent(totals.directShare)})`;
  return {
    first: boxes(hasFrontends ? frontends : others),
    second: hasFrontends ? boxes(others) : [],
    edges,
    pairs: nodes.flatMap((node) => node.pairs).map(describePair),
    clients: [
      { text: "clients", kind: "name" },
      { text: count(totals.connections), raw: totals.connections, key: "totals.connections" },
      { text: "connections" },
    ],
    lane: `did not pass a frontend: ${byteRate(totals.direct)}${share}`,
    description:
      `${frontends.length} frontends and ${others.length} other nodes. ` +
      `${byteRate(totals.direct)} did not pass a frontend, ${byteRate(totals.through)} passed one. ` +
      "The table below has the numbers of each edge.",
  };
}

function boxOf(node, doc) {
  const state = stateOf(node, doc);
  const flows = node.error ? "" : `${count(node.connections)} flows`;
  return {
    name: node.name,
    kind: node.isFrontend ? "frontend" : "backend",
    level: state.level,
    lines: [{ text: flows }, { text: `${state.mark} ${state.text}`, kind: `line ${state.level}` }],
  };
}

function describePair(pair) {
  return {
    ...pair,
    id: `${pair.from} ${pair.to}`,
    kind: "through",
    text: pair.bytes > 0 ? byteRate(pair.bytes) : "",
    movesText: pair.moves > 0 ? `${rate(pair.moves).replace("/s", "")} moves/s` : "",
  };
}

// The switch's agent knows flows and no bytes.
function graphOfSwitch(part) {
  const flows = new Map((part?.owners ?? []).map(({ owner, flows: number }) => [owner, number]));
  const up = new Map((part?.nodes ?? []).map((node) => [node.name, node.up]));
  const names = [...new Set([...up.keys(), ...flows.keys()])];
  const boxes = names.map((name) => {
    const isUp = up.get(name) !== false;
    const state = isUp
      ? { level: "good", text: "● has a lease" }
      : { level: "critical", text: "✕ no lease" };
    const text = `${count(flows.get(name) ?? 0)} flows`;
    return {
      name,
      kind: "backend",
      level: state.level,
      lines: [{ text }, { text: state.text, kind: `line ${state.level}` }],
    };
  });
  const all = part?.flows ?? null;
  return {
    first: [{ name: "switch", kind: "frontend", lines: [{ text: `${count(all)} flows` }] }],
    second: boxes,
    edges: [{ name: "switch", bytes: null, weight: all, text: "", kind: "plain" }],
    pairs: names.map((name) => ({
      id: `switch ${name}`,
      from: "switch",
      to: name,
      bytes: null,
      weight: flows.get(name) ?? 0,
      moves: null,
      kind: "plain",
      text: `${count(flows.get(name) ?? 0)} flows`,
    })),
    clients: [{ text: "clients", kind: "name" }],
    lane: "",
    description:
      `The switch with ${count(all)} flows to ${names.length} nodes. ` +
      "The table of owners has their numbers.",
  };
}
