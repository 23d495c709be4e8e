// Alerts: what an operator has to look at. Pure.
//
// The thresholds are those of contrib/prometheus/prism.rules.yml. That file also waits for a
// while before it alerts, and has rules about rates; the page shows the moment.
// Texts stay the same while their cause does, so that a screen reader says each only once.

import { bytes, count } from "./format.js";
import { ofServers } from "./servers.js";

const CERTIFICATE_DAYS = 14;
const FULL_SHARE = 0.9;
const FREE_SHARE = 0.05;
const SWITCH_SHARE = 0.8;
const DAY_S = 86400;

/** The alerts of a document, the critical ones first. Each has `id`, `level`, `text`, `remedy`. */
export function alerts(doc) {
  const found = [];
  const add = (level, text, remedy) => found.push({ id: text, level, text, remedy });
  ofServers(doc.servers ?? [], add);
  for (const node of doc.nodes ?? []) ofNode(node, add);
  suspects(doc.nodes ?? [], add);
  if (doc.cluster) ofCluster(doc.cluster, add);
  for (const node of doc.nodes ?? []) {
    for (const file of node.certificates ?? []) ofCertificate(node, file, doc.time_ms, add);
  }
  if (doc.switch) ofSwitch(doc.switch, add);
  const isCritical = ({ level }) => level === "critical";
  return [...found.filter(isCritical), ...found.filter((alert) => !isCritical(alert))];
}

function ofNode(node, add) {
  const { name, store } = node;
  if (node.error) {
    add(
      "critical",
      `${name} does not answer: ${node.error}`,
      "Look at the process there, and at its link.",
    );
    return;
  }
  if (node.not_ready) {
    add("warning", `${name} runs and may not serve: ${node.not_ready}`, "Its log has the reason.");
  }
  if (node.access_log_dropped_lines > 0) {
    add("warning", `${name} has dropped lines of its access log`, "Give the log a faster disk.");
  }
  if (!store) return;
  if (isNearlyFull(store)) {
    add(
      "critical",
      `The store of ${name} is nearly full; writes will be answered 507`,
      "Delete objects, add backends, or raise store.quota_bytes.",
    );
  }
  if (store.corrupt_reads > 0 || store.scrub_faults > 0) {
    add(
      "critical",
      `${name} has found damaged blocks since it started`,
      "`prism ctl scrub` names them. Look at the disk.",
    );
  }
}

function isNearlyFull({ used_bytes, quota_bytes, free_bytes }) {
  if (quota_bytes > 0 && used_bytes > FULL_SHARE * quota_bytes) return true;
  return free_bytes < FREE_SHARE * (free_bytes + used_bytes);
}

// One alert for each suspect, with the nodes that it leaves without an answer.
function suspects(nodes, add) {
  const by = new Map();
  for (const { name, suspects: names } of nodes) {
    for (const suspect of names ?? []) by.set(suspect, [...(by.get(suspect) ?? []), name]);
  }
  for (const [suspect, names] of by) {
    const text = `${suspect} leaves handshakes of ${names.join(", ")} unanswered`;
    add("warning", text, "Look at the link between them.");
  }
}

function ofCluster(cluster, add) {
  if (cluster.fault)
    add("critical", `The cluster: ${cluster.fault}`, "`prism ctl cluster` shows its state.");
  for (const { name, status, lives, in_reach } of cluster.backends ?? []) {
    const remedy = "The table of backends shows its progress.";
    if (status === "out") {
      add("critical", `${name} is out; its keys have a replica less`, remedy);
    } else if (status === "lagging") {
      add("warning", `${name} is not in sync; its keys have a replica less`, remedy);
    }
    if (lives === false) {
      add(
        "critical",
        `${name} has no lease`,
        "Look at the process there, and at its link to etcd.",
      );
    } else if (in_reach === false) {
      add(
        "warning",
        `${name} is out of reach of ${cluster.asked ?? "this node"}`,
        "Look at its link.",
      );
    }
  }
}

function ofCertificate({ name }, { file, expires_s }, now_ms, add) {
  const left_s = expires_s - now_ms / 1000;
  if (left_s >= CERTIFICATE_DAYS * DAY_S) return;
  const remedy = "Renew it; nodes read the file again by themselves.";
  if (left_s <= 0) {
    add("critical", `${file} of ${name} has expired`, remedy);
  } else {
    const days = Math.floor(left_s / DAY_S);
    add(
      "warning",
      `${file} of ${name} expires in ${days > 1 ? `${days} days` : "less than 2 days"}`,
      remedy,
    );
  }
}

function ofSwitch({ error, flows, max_flows, nodes }, add) {
  if (error) add("critical", `The switch's agent: ${error}`, "Look at the agent's log.");
  if (flows > SWITCH_SHARE * max_flows) {
    add(
      "critical",
      `The switch's table has room for less than a fifth of its ${count(max_flows)} flows`,
      "Raise switch.max_flows. Flows without room are relayed by their frontend.",
    );
  }
  for (const { name, up } of nodes ?? []) {
    if (!up)
      add(
        "critical",
        `${name} has no lease at the switch's agent`,
        "Look at its process and its link.",
      );
  }
}

/** The share of a store that is used, and a text about it. */
export function fullness({ used_bytes, quota_bytes, free_bytes }) {
  const room =
    quota_bytes > 0 ? Math.min(quota_bytes, used_bytes + free_bytes) : used_bytes + free_bytes;
  const share = room > 0 ? Math.min(1, used_bytes / room) : 0;
  return { share, text: `${bytes(used_bytes)} of ${bytes(room)}` };
}
