// Tests of the page's modules without a browser: `node --test tools/page/modules.test.mjs`.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../crates/prism-figures/src/page/format.js";
import { graphOf, stateOf } from "../../crates/prism-figures/src/page/graph.js";
import { arrange } from "../../crates/prism-figures/src/page/layout.js";
import {
  History,
  meanDurations,
  quantile,
  steps,
} from "../../crates/prism-figures/src/page/state.js";
import { tileNames } from "../../crates/prism-figures/src/page/tiles.js";
import { Cluster, random } from "./cluster.mjs";

test("numbers as texts", () => {
  const cases = [
    [format.bytes(0), "0 B"],
    [format.bytes(999), "999 B"],
    [format.bytes(1000), "1.00 kB"],
    [format.bytes(999_949), "1.00 MB"],
    [format.bytes(123_456_789), "123 MB"],
    [format.bytes(null), "–"],
    [format.byteRate(2.5e9), "2.50 GB/s"],
    [format.rate(0), "0/s"],
    [format.rate(0.04), "0.04/s"],
    [format.rate(12345.6), "12,346/s"],
    [format.duration(1.5), "1.50 s"],
    [format.duration(2.5e-5), "25.0 µs"],
    [format.duration(0.0123), "12.3 ms"],
    [format.age(59), "59 s"],
    [format.age(3700), "1 h 1 min"],
    [format.age(90000), "1 d 1 h"],
    [format.percent(0.99999), "99.99 %"],
    [format.percent(1), "100 %"],
    [format.percent(0.42), "42 %"],
  ];
  for (const [text, expected] of cases) assert.equal(text, expected);
  // Rounding never shows 1000 of a unit.
  for (let n = 1; n < 1e15; n *= 1.037) assert.doesNotMatch(format.bytes(n), /^\d{4}/);
});

const node = (fields) => ({
  name: "be0",
  roles: ["backend"],
  error: null,
  requests: [],
  relayed: [],
  handed_off: [],
  moves: [],
  steps: [],
  request_durations: [],
  accepted: 0,
  ...fields,
});
const documentOf = (time_ms, ...nodes) => ({
  kind: "node",
  name: "be0",
  version: "",
  time_ms,
  store_urls: [],
  nodes,
  cluster: null,
  switch: null,
});
const get = (count, sent_bytes, path = "direct") => ({
  operation: "GetObject",
  code: 200,
  path,
  count,
  sent_bytes,
  received_bytes: 0,
});

test("rates are differences over a node's own time", () => {
  const history = new History();
  const at = (time_ms, count) =>
    history.add(documentOf(9e9, node({ time_ms, requests: [get(count, 1000 * count)] })));
  assert.equal(at(1000, 50).nodes[0].rates.sent, null, "one document has no rate");
  assert.equal(at(3000, 60).nodes[0].rates.sent, 5000);
  assert.equal(
    at(3000, 60).nodes[0].rates.sent,
    5000,
    "a document that repeats an answer of the node",
  );
  assert.equal(at(4000, 60).nodes[0].rates.requests, 10 / 3);
  at(5000, 60);
  assert.equal(at(6000, 60).nodes[0].rates.requests, 0, "old intervals are left out");
});

test("a process that restarted has no rate for one interval", () => {
  const history = new History();
  const at = (time_ms, count, moves) =>
    history.add(documentOf(9e9, node({ time_ms, requests: [get(count, count)], moves }))).nodes[0];
  at(1000, 50, [{ n: 9, at_ms: 1, client: "c", to: "be1" }]);
  assert.equal(at(2000, 70, []).rates.requests, 20);
  const restarted = at(3000, 3, [{ n: 1, at_ms: 2, client: "c", to: "be1" }]);
  assert.equal(restarted.rates.requests, null);
  assert.equal(restarted.moves[0].isNew, true, "its moves count from 1 again");
  assert.equal(at(4000, 8, []).rates.requests, 5);
});

test("a node out of reach has no rates, and none from the time before", () => {
  const history = new History();
  const at = (fields) => history.add(documentOf(9e9, node(fields))).nodes[0];
  const durations = [{ operation: "GetObject", count: 1, sum_s: 2 }];
  at({ time_ms: 1000, uptime_s: 50, requests: [get(1, 1)], request_durations: durations });
  const gone = history.add(
    documentOf(9e9, { name: "be0", roles: ["backend"], address: "10.0.0.2", error: "no answer" }),
  );
  assert.deepEqual([gone.nodes[0].rates, gone.totals.bytes], [{}, null]);
  const back = at({
    time_ms: 9000,
    uptime_s: 3,
    requests: [get(9, 9)],
    request_durations: [{ operation: "GetObject", count: 9, sum_s: 18 }],
  });
  assert.equal(back.rates.requests, null);
  assert.deepEqual(back.baseline.request_durations, [], "it has restarted meanwhile");
});

test("bytes pass a frontend or not, by the node that sends them to clients", () => {
  const history = new History();
  const at = (time_ms, bytes) =>
    history.add(
      documentOf(
        time_ms,
        node({
          name: "fe0",
          roles: ["frontend"],
          time_ms,
          requests: [get(1, bytes, "relayed")],
          relayed: [{ node: "be0", count: 1, bytes }],
        }),
        node({
          time_ms,
          requests: [get(1, 9 * bytes)],
          handed_off: [{ node: "be1", count: bytes }],
        }),
      ),
    );
  at(0, 0);
  const view = at(1000, 100);
  assert.deepEqual(
    [view.totals.through, view.totals.direct, view.totals.directShare],
    [100, 900, 0.9],
  );
  const graph = graphOf(view);
  assert.deepEqual(
    graph.pairs.map(({ id, bytes, moves }) => [id, bytes, moves]),
    [
      ["fe0 be0", 100, 0],
      ["be0 be1", 0, 100],
    ],
  );
  assert.match(graph.lane, /900 B\/s \(90 %\)/);
});

test("a node that is a frontend and a backend answers from its own store", () => {
  const roles = ["frontend", "backend"];
  const [both] = new History().add(documentOf(9e9, node({ time_ms: 1, roles }))).nodes;
  assert.equal(both.isFrontend, false);
});

test("moves are new once", () => {
  const history = new History();
  const at = (time_ms, ...numbers) => {
    const moves = numbers.map((n) => ({ n, at_ms: n, client: `c${n}`, to: "be1" }));
    return history
      .add(documentOf(9e9, node({ time_ms, moves })))
      .moves.filter((move) => move.isNew)
      .map((move) => move.n);
  };
  assert.deepEqual(at(1, 1, 2), [], "those before the page was opened are not");
  assert.deepEqual(at(2, 1, 2, 3, 4), [4, 3]);
  assert.deepEqual(at(3, 3, 4, 5), [5]);
  assert.deepEqual(at(4, 5), []);
});

test("quantiles of buckets", () => {
  assert.equal(quantile(new Map(), 0.5), null);
  assert.equal(
    quantile(
      new Map([
        [1, 0],
        [2, 10],
      ]),
      0.5,
    ),
    1.5,
  );
  assert.equal(
    quantile(
      new Map([
        [1, 5],
        [2, 0],
        [4, 5],
      ]),
      0.5,
    ),
    1,
  );
  assert.equal(
    quantile(
      new Map([
        [1, 1],
        [Infinity, 99],
      ]),
      0.99,
    ),
    1,
    "above the last bound",
  );
  // Against the exact quantile of many values: within their bucket.
  const next = random(3);
  const values = Array.from({ length: 5000 }, () => next() ** 3).sort((one, other) => one - other);
  const bounds = [0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1];
  const counts = new Map(
    bounds.map((bound, index) => [
      bound,
      values.filter((v) => v <= bound && v > (bounds[index - 1] ?? 0)).length,
    ]),
  );
  for (const share of [0.1, 0.5, 0.9, 0.99]) {
    const exact = values[Math.floor(share * values.length)];
    const upper = bounds.findIndex((bound) => exact <= bound);
    const estimate = quantile(counts, share);
    assert.ok(
      estimate >= (bounds[upper - 1] ?? 0) - 1e-3 && estimate <= bounds[upper] + 1e-3,
      `${share}: ${estimate} and ${exact}`,
    );
  }
});

test("distributions begin when the page was opened, or with the nodes", () => {
  const history = new History();
  const at = (time_ms, count) => {
    const save = {
      role: "source",
      step: "save",
      count,
      sum_s: count * 0.002,
      buckets: [
        [0.001, 0],
        [0.003, count],
        [null, 0],
      ],
    };
    const durations = [{ operation: "GetObject", count, sum_s: count * 0.5 }];
    return history.add(
      documentOf(9e9, node({ time_ms, steps: [save], request_durations: durations })),
    );
  };
  const opened = at(1000, 40);
  assert.equal(steps(opened, true)[0].p50, null);
  assert.equal(steps(opened, false)[0].count, 40);
  const later = at(2000, 50);
  assert.deepEqual([steps(later, true)[0].count, steps(later, false)[0].count], [10, 50]);
  assert.ok(Math.abs(steps(later, true)[0].p50 - 0.002) < 1e-9);
  assert.equal(meanDurations(later, true).get("GetObject"), 0.5);
  const restarted = at(3000, 4);
  assert.equal(
    steps(restarted, true)[0].count,
    4,
    "all of a new process is since the page was opened",
  );
});

/** The states in the boxes of the backends. */
const boxStates = (shape) => {
  const { second } = graphOf(new History().add(new Cluster(shape).next(1e12)));
  return second.map(({ lines }) => lines.at(-1).text);
};

test("a box tells of the servers of its backend, and of no store", () => {
  const states = (troubles) => boxStates({ service: "upstream", troubles, backends: 2 });
  assert.deepEqual(states(false), ["● ready", "● ready"]);
  assert.deepEqual(states(true), ["▲ 1 of 2 unhealthy", "✕ not reachable"]);
});

test("a box of a combined service tells of unhealthy servers, and else of its store", () => {
  const states = (troubles) => boxStates({ service: "combined", troubles });
  assert.deepEqual(states(false), ["● in sync", "● in sync", "● in sync", "● in sync"]);
  const expected = ["▲ 1 of 2 unhealthy", "▲ catching up", "● in sync", "✕ not reachable"];
  assert.deepEqual(states(true), expected);
});

test("the worst of a backend's troubles is its state", () => {
  const state = (fields) => {
    const { service = "combined", status = "in-sync", lives, servers = [], not_ready } = fields;
    const doc = {
      service,
      servers: servers.map((one) => ({ backend: "be0", state: one })),
      cluster: { backends: [{ name: "be0", status, lives }] },
    };
    return stateOf(node({ not_ready }), doc).text;
  };
  const both = ["unhealthy", "healthy"];
  const cases = [
    [{ lives: false, servers: both }, "no lease"],
    [{ status: "out", servers: both }, "out"],
    [{ not_ready: "it leaves", servers: both }, "not ready"],
    [{ status: "lagging", servers: ["unhealthy"] }, "unhealthy"],
    [{ status: "lagging", servers: both }, "1 of 2 unhealthy"],
    [{ status: "lagging", servers: ["healthy", "draining"] }, "catching up"],
    [{ servers: ["healthy"] }, "in sync"],
    [{ service: "upstream", status: "lagging", servers: ["healthy"] }, "ready"],
    [{ service: "objects", status: "lagging" }, "catching up"],
  ];
  for (const [fields, expected] of cases)
    assert.equal(state(fields), expected, JSON.stringify(fields));
});

test("redirects have tiles once a node has followed one", () => {
  const history = new History();
  const at = (time_ms, fields) => {
    const view = history.add(documentOf(9e9, node({ time_ms, ...fields })));
    const shown = tileNames(view).filter((name) => name.startsWith("redirect"));
    return [view.totals.redirects, view.totals.redirectedBytes, shown];
  };
  const tiles = ["redirects", "redirected_bytes"];
  assert.deepEqual(at(1000, {}), [null, null, []], "a node without these figures");
  assert.deepEqual(at(2000, { redirects: 0, redirected_bytes: 0 }), [0, 0, []]);
  const followed = { redirects: 6, redirected_bytes: 3000 };
  assert.deepEqual(at(3000, followed), [3, 1500, tiles]);
  for (let second = 4; second < 7; second += 1) at(1000 * second, followed);
  assert.deepEqual(at(7000, followed), [0, 0, tiles], "none at present");
});

test("a view has the tiles of its cluster", () => {
  const names = (shape) => tileNames(new History().add(new Cluster(shape).next(1e12)));
  const all = ["bytes", "direct_share", "requests", "errors", "moves", "connections"];
  assert.deepEqual(names({}), all);
  assert.deepEqual(names({ service: "upstream" }), all);
  assert.deepEqual(names({ service: "combined" }), [...all, "redirects", "redirected_bytes"]);
  const alone = all.filter((name) => name !== "direct_share");
  assert.deepEqual(names({ frontends: 0, backends: 1 }), alone);
  const ofSwitch = new History().add(new Cluster({}).ofSwitch(1e12));
  assert.deepEqual(tileNames(ofSwitch), ["flows", "full", "packets"]);
});

test("boxes of the topology do not overlap, and lines end at them", () => {
  for (const [frontends, backends] of [
    [1, 1],
    [2, 4],
    [3, 8],
    [10, 40],
    [0, 1],
  ]) {
    for (const width of [560, 700, 1100]) {
      const history = new History();
      history.add(new Cluster({ frontends, backends }).next(1e12));
      const cluster = new Cluster({ frontends, backends });
      history.add(cluster.next(1e12));
      const graph = graphOf(history.add(cluster.next(1e12 + 1000)));
      const plan = arrange(graph, width, ({ bytes }) => Math.max(1.5, (30 * (bytes ?? 0)) / 1e9));
      assert.equal(plan.boxes.length, 1 + frontends + backends);
      assert.equal(plan.edges.length, frontends + backends);
      const where = `${frontends} and ${backends} at ${width}`;
      for (const box of plan.boxes) {
        assert.ok(
          box.x >= 0 &&
            box.x + box.width <= width &&
            box.y >= 0 &&
            box.y + box.height <= plan.height,
          `${where}: ${box.id}`,
        );
      }
      plan.boxes.forEach((one, index) =>
        plan.boxes.slice(index + 1).forEach((other) => {
          const gap = Math.max(
            other.x - (one.x + one.width),
            one.x - (other.x + other.width),
            other.y - (one.y + one.height),
            one.y - (other.y + other.height),
          );
          assert.ok(gap >= 4, `${where}: ${one.id} and ${other.id}`);
        }),
      );
      for (const { path } of [...plan.edges, ...plan.pairs])
        assert.doesNotMatch(path, /NaN|undefined/);
      const ids = plan.texts.map(({ id }) => id);
      assert.equal(new Set(ids).size, ids.length);
    }
  }
});

test("a document of 50 nodes and 10,000 flows is cheap, whatever its flows", () => {
  const cost = (connections) => {
    const history = new History();
    const cluster = new Cluster({ frontends: 10, backends: 40, connections, moves: 64 });
    const docs = Array.from({ length: 30 }, (_, second) =>
      structuredClone(cluster.next(1e12 + 1000 * second)),
    );
    assert.equal(
      docs[0].nodes.reduce((sum, { connections: own }) => sum + own, 0),
      connections,
    );
    const start = process.cpuUsage();
    for (const doc of docs) arrange(graphOf(history.add(doc)), 900, () => 2);
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 1000 / docs.length;
  };
  cost(10);
  const ms = cost(10_000);
  assert.ok(ms < 50, `${ms} ms of processor time for each document`);
});
