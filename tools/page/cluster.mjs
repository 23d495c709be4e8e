// An invented cluster that produces state documents as a node does, for tests of the page.
//
// Its numbers follow a seed and the time that it is given, so that tests can repeat them.

const STEPS = {
  source: ["block", "save", "encode", "send", "close", "verdict"],
  target: ["restore", "own", "resume"],
  transit: ["decide"],
};
const BOUNDS_S = [1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1e3, 2.5e3, 5e3, 1e4, 1e5, 1e6].map(
  (us) => us * 1e-6,
);
const OPERATIONS = [
  ["GetObject", 200, 400e3],
  ["GetObject", 206, 90e3],
  ["GetObject", 404, 300],
  ["HeadObject", 200, 0],
  ["PutObject", 200, 0],
  ["ListObjectsV2", 200, 4e3],
  ["UploadPart", 200, 0],
  ["DeleteObject", 204, 0],
  ["GetObject", 503, 250],
];
const WEIGHTS = [60, 8, 1, 12, 6, 2, 3, 1, 0.05];
const RECENT_MOVES = 64;
const DAY_S = 86400;

/** Pseudo-random numbers from 0 to 1 (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class Cluster {
  /**
   * `connections` are the flows of all nodes, `moves` those of each node and second. `service` is
   * "objects", "upstream" or "combined", whose servers redirect to its store. Names of nodes begin
   * with `prefix`.
   */
  constructor({
    frontends = 2,
    backends = 4,
    connections = 10000,
    moves = 24,
    load = 1,
    storeUrls = [],
    troubles = false,
    service = "objects",
    prefix = "",
  }) {
    this.options = { connections, moves, load, storeUrls, troubles, service };
    this.random = random(7);
    const name = (role) => (_, index) => `${prefix}${role}${index}`;
    this.frontends = Array.from({ length: frontends }, name("fe"));
    this.backends = Array.from({ length: backends }, name("be"));
    this.names = [...this.frontends, ...this.backends];
    this.nodes = new Map(this.names.map((node, index) => [node, this.#node(node, index)]));
    this.seconds = 0;
    for (let second = 0; second < 20; second += 1) this.#count(0);
  }

  #node(name, index) {
    const isFrontend = this.frontends.includes(name);
    return {
      name,
      roles: [isFrontend ? "frontend" : "backend"],
      address: `10.0.0.${index + 2}`,
      error: null,
      version: "0.1.0 (abc1234)",
      uptime_s: 0,
      time_ms: 0,
      not_ready: null,
      connections: 0,
      accepted: 0,
      requests: OPERATIONS.flatMap(([operation, code]) =>
        ["direct", "relayed"].map((path) => ({
          operation,
          code,
          path,
          count: 0,
          sent_bytes: 0,
          received_bytes: 0,
        })),
      ),
      relayed: this.backends
        .filter((other) => other !== name)
        .map((node) => ({ node, count: 0, bytes: 0 })),
      redirects: 0,
      redirected_bytes: 0,
      handed_off: this.backends
        .filter((other) => other !== name)
        .map((node) => ({ node, count: 0 })),
      moves: [],
      steps: Object.entries(STEPS).flatMap(([role, steps]) =>
        steps.map((step) => ({
          role,
          step,
          count: 0,
          sum_s: 0,
          buckets: BOUNDS_S.map((bound) => [bound, 0]),
        })),
      ),
      request_durations: [...new Set(OPERATIONS.map(([operation]) => operation))].map(
        (operation) => ({ operation, count: 0, sum_s: 0 }),
      ),
      store: isFrontend
        ? null
        : {
            used_bytes: 41e9 + 3e9 * index,
            quota_bytes: 0,
            free_bytes: 60e9,
            corrupt_reads: 0,
            scrub_faults: 0,
            open_changes: 2,
          },
      certificates: [{ file: "/etc/prism/tls/cert.pem", expires_s: 0 }],
      access_log_dropped_lines: 0,
      suspects: [],
    };
  }

  // Lets a second pass on all nodes.
  #count(time_ms) {
    this.seconds += 1;
    for (const node of this.nodes.values()) {
      const isFrontend = node.roles[0] === "frontend";
      node.uptime_s = 86400 + this.seconds;
      node.time_ms = time_ms;
      node.accepted += isFrontend ? Math.round(300 * this.random()) : 0;
      this.#requests(node, isFrontend);
      if (this.options.service === "combined" && !isFrontend) this.#redirects(node);
      this.#moves(node, isFrontend, time_ms);
    }
    this.#spread();
  }

  #requests(node, isFrontend) {
    const wave =
      1 + 0.4 * Math.sin(this.seconds / 9 + node.address.length + Number(node.address.slice(-1)));
    for (const row of node.requests) {
      const index = OPERATIONS.findIndex(
        ([operation, code]) => operation === row.operation && code === row.code,
      );
      // Frontends relay what is short; backends answer most.
      const share = row.path === "relayed" ? (isFrontend ? 0.25 : 0.02) : isFrontend ? 0.01 : 1;
      const count = Math.floor(
        WEIGHTS[index] * share * wave * this.options.load * 2 * this.random() + this.random(),
      );
      const size = OPERATIONS[index][2] * (isFrontend ? 0.02 : 1);
      row.count += count;
      row.sent_bytes += Math.round(count * size * (0.5 + this.random()));
      row.received_bytes +=
        row.operation === "PutObject"
          ? count * 120e3
          : row.operation === "UploadPart"
            ? count * 900e3
            : 0;
      const durations = node.request_durations.find(({ operation }) => operation === row.operation);
      durations.count += count;
      durations.sum_s += count * (0.0008 + 0.003 * this.random());
    }
    for (const row of node.relayed) {
      const count = Math.floor((isFrontend ? 40 : 0.4) * this.options.load * this.random());
      row.count += count;
      row.bytes += count * 7000;
    }
  }

  #redirects(node) {
    const count = Math.floor(20 * this.options.load * this.random());
    node.redirects += count;
    node.redirected_bytes += count * 250e3;
  }

  #moves(node, isFrontend, time_ms) {
    const count = Math.round(this.options.moves * (isFrontend ? 1 : 0.15) * (0.5 + this.random()));
    for (let done = 0; done < count && node.handed_off.length > 0; done += 1) {
      const peer = node.handed_off[Math.floor(this.random() * node.handed_off.length)];
      peer.count += 1;
      const n = (node.moves.at(-1)?.n ?? 0) + 1;
      const below = (limit) => Math.floor(limit * this.random());
      const client = `10.9.${below(4)}.${below(250)}:${32768 + below(28000)}`;
      node.moves.push({ n, at_ms: time_ms, client, to: peer.node });
    }
    node.moves = node.moves.slice(-RECENT_MOVES);
    for (const step of node.steps) {
      const isOwn =
        step.role === "source" ? isFrontend : step.role === "target" ? !isFrontend : false;
      for (let done = 0; done < (isOwn ? count : 0); done += 1) {
        const seconds =
          12e-6 * (1 + (step.step.length % 5)) * Math.exp(2.2 * (this.random() - 0.3));
        step.count += 1;
        step.sum_s += seconds;
        step.buckets[BOUNDS_S.findIndex((bound) => seconds <= bound)][1] += 1;
      }
    }
  }

  // Shares the connections among the nodes, backends first; their sum stays the same.
  #spread() {
    let left = this.options.connections;
    const shares = this.names.map(
      (name) => (this.frontends.includes(name) ? 0.2 : 1) * (0.8 + 0.4 * this.random()),
    );
    const all = shares.reduce((sum, share) => sum + share, 0);
    this.names.forEach((name, index) => {
      const own =
        index === this.names.length - 1
          ? left
          : Math.floor((this.options.connections * shares[index]) / all);
      this.nodes.get(name).connections = own;
      left -= own;
    });
  }

  /** The document of the next second. */
  next(time_ms) {
    this.#count(time_ms);
    for (const node of this.nodes.values())
      node.certificates[0].expires_s = Math.round(time_ms / 1000) + 60 * DAY_S;
    const nodes = [...this.nodes.values()];
    const { service, storeUrls, troubles } = this.options;
    const doc = {
      kind: "node",
      name: nodes[0].name,
      version: "0.1.0 (abc1234)",
      time_ms,
      service,
      store_urls: storeUrls,
      servers: null,
      nodes,
      cluster: this.#agreed(),
      switch: null,
      alerts: [],
    };
    if (service === "objects" && !troubles) return doc;
    const own = structuredClone(doc);
    if (service === "upstream") return withServers(withoutStores(own), troubles);
    const shown = troubles ? withTroubles(own) : own;
    return service === "combined" ? withServers(shown, troubles) : shown;
  }

  #agreed() {
    const backends = this.backends.map((name) => ({
      name,
      in_reach: true,
      open_changes: Math.floor(4 * this.random()),
      bytes_used: this.nodes.get(name).store.used_bytes,
      catching_up: {
        caught_up: 7,
        is_running: false,
        parts: 0,
        parts_done: 0,
        compared: 0,
        fetched: 0,
        fetched_bytes: 0,
        removed: 0,
        trimmed: 0,
        hindrance: "",
      },
      status: "in-sync",
      since: 3,
      lives: true,
      adopted: 7,
      caught_up: 7,
      fetches_since: null,
    }));
    return {
      cluster: "lab",
      asked: this.names[0],
      kept_in_etcd: true,
      epoch: 7,
      replicas: Math.min(2, backends.length),
      min_replicas: 1,
      members: this.backends,
      phase: "settled",
      to: null,
      wish: null,
      lease_ms: 2400,
      fault: null,
      backends,
    };
  }

  /** The document of the switch's agent for the same flows. */
  ofSwitch(time_ms) {
    this.#count(time_ms);
    const owners = this.names.map((owner) => ({ owner, flows: this.nodes.get(owner).connections }));
    const packets = [
      ["forward", "owner", 900],
      ["forward", "frontend", 40],
      ["drop", "blocked", 1],
      ["drop", "no_frontend", 0],
    ];
    return {
      kind: "switch",
      name: "switch",
      version: "0.1.0 (abc1234)",
      time_ms,
      store_urls: [],
      nodes: [],
      cluster: null,
      switch: {
        flows: this.options.connections,
        max_flows: 1048576,
        owners,
        packets: packets.map(([verdict, reason, each]) => ({
          verdict,
          reason,
          count: each * 1000 * this.seconds,
        })),
        nodes: this.names.map((name, index) => ({
          name,
          address: `10.0.0.${index + 2}`,
          up: true,
        })),
        error: null,
      },
      alerts: [],
    };
  }
}

// The same cluster without stores.
function withoutStores(doc) {
  const nodes = doc.nodes.map((node) => ({
    ...node,
    store: null,
    requests: node.requests.map((row) => ({
      ...row,
      operation: /Put|Upload/.test(row.operation) ? "PUT" : "GET",
    })),
    request_durations: [],
  }));
  return { ...doc, store_urls: [], nodes };
}

// The same cluster with an application and a server of files behind each backend. The troubles are
// a backend that does not answer, and dead applications: without stores all of them, else the
// first one.
function withServers(doc, hasTroubles) {
  const backends = doc.nodes.filter(({ roles }) => roles.includes("backend"));
  const names = backends.map(({ name }) => name);
  const silent = hasTroubles ? names.at(-1) : null;
  const isCombined = doc.service === "combined";
  const dead = hasTroubles ? names.slice(0, isCombined ? 1 : -1) : [];
  const server = (upstream, port, backend) => {
    const isDead = upstream === "/" && dead.includes(backend);
    return {
      upstream,
      address: `127.0.0.1:${port}`,
      backend,
      state: backend === silent ? "unknown" : isDead ? "unhealthy" : "healthy",
      gets_requests: backend !== silent && !isDead,
      under_way: isDead || backend === silent ? 0 : 3,
      errors: isDead ? { refused: 2, status_503: 1 } : {},
      ejections: isDead ? 1 : 0,
      last_fault: isDead ? { reason: "connection refused", by: "request", ago_s: 75 } : null,
    };
  };
  const servers = [
    ...names.map((name) => server("/static/", 9001, name)),
    ...names.map((name) => server("/", 9000, name)),
  ];
  const error = "no answer within 1 s";
  const nodes = doc.nodes.map(({ name, roles, address, ...figures }) =>
    name === silent ? { name, roles, address, error } : { name, roles, address, ...figures },
  );
  const unhealthy = servers.filter(({ state }) => state === "unhealthy");
  const critical =
    hasTroubles && !isCombined
      ? [
          alert("critical", "The upstream / has no healthy server"),
          alert("critical", `${silent} does not answer: ${error}`),
        ]
      : [];
  const warnings = unhealthy.map(({ address, backend, upstream }) =>
    alert("warning", `${address} at ${backend} is unhealthy (upstream ${upstream})`),
  );
  return { ...doc, nodes, servers, alerts: [...critical, ...doc.alerts, ...warnings] };
}

const alert = (level, text) => ({ level, text, remedy: "Look at it." });

// One of each trouble that the page warns of.
function withTroubles(doc) {
  const [first, second] = doc.nodes;
  const { name, roles, address } = doc.nodes.at(-1);
  doc.nodes[doc.nodes.length - 1] = { name, roles, address, error: "no answer within 1 s" };
  first.certificates[0].expires_s = Math.round(doc.time_ms / 1000) + 9 * DAY_S;
  first.suspects = [name];
  second.not_ready = "the node leaves";
  doc.nodes[2].store.free_bytes = 1e9;
  doc.nodes[3].store.scrub_faults = 2;
  const [lagging, out] = [doc.cluster.backends[1], doc.cluster.backends.at(-1)];
  Object.assign(lagging, { status: "lagging", fetches_since: 7, caught_up: 3 });
  Object.assign(lagging.catching_up, {
    is_running: true,
    parts: 24,
    parts_done: 9,
    compared: 183204,
    fetched: 1288,
    fetched_bytes: 2.1e9,
  });
  Object.assign(out, { name, status: "out", lives: false, in_reach: false });
  delete out.catching_up;
  doc.cluster.phase = "filling";
  const [third, fourth] = [doc.nodes[2].name, doc.nodes[3].name];
  doc.alerts = [
    alert("critical", `${name} does not answer: no answer within 1 s`),
    alert("critical", `The store of ${third} is nearly full; writes will be answered 507`),
    alert("critical", `${fourth} has found damaged blocks since it started`),
    alert("critical", `${name} is out; its keys have a replica less`),
    alert("critical", `${name} has no lease`),
    alert("warning", `${second.name} runs and may not serve: the node leaves`),
    alert("warning", `${name} leaves handshakes of ${first.name} unanswered`),
    alert("warning", `${lagging.name} is not in sync; its keys have a replica less`),
    alert("warning", `cert.pem of ${first.name} expires in 9 days`),
  ];
  return doc;
}
