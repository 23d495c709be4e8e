// Tests of the page in headless Chromium: `node --test tools/page/browser.test.mjs`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Browser, sleep } from "./browser.mjs";
import { check } from "./check_page.mjs";
import { outside, values } from "./probes.mjs";
import { BUCKET, KEY, start } from "./server.mjs";

/** Runs `use` with a server of the page. */
async function withServer(shape, use, options) {
  const server = await start(shape, options);
  try {
    await use(server);
  } finally {
    server.stop();
  }
}

/** Runs `use` with a tab of a browser that shows the page. */
const withTab = (shape, look, use) =>
  withServer(shape, async (server) => {
    const browser = await Browser.start();
    try {
      const tab = await browser.tab();
      await tab.open(server.url, look);
      await tab.wait("the first document", () => document.querySelector("#asked")?.textContent);
      await use(tab, server);
    } finally {
      await browser.close();
    }
  });

test("the page of a cluster, by mouse, keyboard and screen reader, and its store", () =>
  withServer({}, async ({ url, storeUrl }) => {
    const store = { endpoint: storeUrl, bucket: BUCKET, ...KEY };
    const report = await check({ url, seconds: 4, store });
    assert.deepEqual(report.problems, []);
    const { values: numbers } = report.last;
    assert.equal(numbers["totals.connections"].text, "10,000");
    assert.ok(
      report.updates.dots > 5 && report.updates.most_dots <= 40,
      JSON.stringify(report.updates),
    );
    assert.ok(report.updates.moves_listed > 30);
    for (const key of [
      "totals.bytes",
      "nodes.be0.connections",
      "requests.GetObject.200.count",
      "steps.source.save.count",
    ]) {
      assert.ok(report.changed.includes(key), `${key} has not changed`);
    }
    assert.equal(report.store.downloaded_bytes, 3 << 20);
    assert.ok(report.accessibility.row_headers > 40);
  }));

test("50 nodes and 10,000 flows: an update is cheap, and the page does not grow", () =>
  withServer({ frontends: 10, backends: 40, moves: 64 }, async ({ url }) => {
    const report = await check({ url, seconds: 8 });
    assert.deepEqual(report.problems, []);
    assert.equal(report.last.values["totals.connections"].raw, 10_000);
    assert.ok(report.last.elements < 9000, `${report.last.elements} elements`);
    assert.ok(
      report.last.elements - report.first.elements < 600,
      `${report.first.elements} elements became ${report.last.elements}`,
    );
    assert.ok(report.updates.mean_ms < 150, `${report.updates.mean_ms} ms for an update`);
    assert.ok(
      report.updates.task_ms_each < 700,
      `${report.updates.task_ms_each} ms for all that an update causes`,
    );
  }));

test("the size of the page does not depend on the number of flows", async () => {
  const sizes = [];
  for (const connections of [6, 10_000]) {
    await withTab({ connections, moves: 0 }, {}, async (tab) => {
      await sleep(1500);
      sizes.push((await tab.call(values)).elements);
    });
  }
  assert.equal(sizes[0], sizes[1]);
});

test("troubles are said, in dark colours and on a narrow page", () =>
  withServer({ troubles: true }, async ({ url }) => {
    const report = await check({ url, seconds: 3, scheme: "dark", width: 700 });
    assert.deepEqual(report.problems, []);
    assert.equal(report.last.alerts.length, 9);
    assert.ok(report.accessibility.live.some(({ name }) => name === "Alerts"));
    assert.ok(
      report.accessibility.others.some(
        ({ role, name }) => role === "progressbar" && name === "Catch-up of be1",
      ),
    );
  }));

test("the page of a service with servers has these first, and no store", async () => {
  const text = (tab) => tab.call(() => document.querySelector("#cluster-view").innerText);
  await withTab({ service: "upstream", troubles: true, backends: 3 }, {}, async (tab) => {
    await tab.call(() => (location.hash = "#store"));
    await sleep(1500);
    const shown = await text(tab);
    assert.match(shown, /127\.0\.0\.1:9000\s+be0\s+✕ unhealthy\s+0\s+3\s+connection refused/);
    assert.ok(shown.indexOf("Last fault") < shown.indexOf("did not pass a frontend"), shown);
    assert.doesNotMatch(shown, /\b(stores?|buckets?|replicas?|in[ -]sync|scrubs?|catch|epoch)\b/i);
    assert.doesNotMatch(await tab.call(() => document.querySelector("header").innerText), /store/i);
    const alerts = await tab.call(() => document.querySelector("#alerts").innerText);
    assert.match(alerts, /critical: The upstream \/ has no healthy server/i);
  });
  await withServer({ service: "upstream", troubles: true }, async ({ url }) => {
    const report = await check({ url, seconds: 3, width: 700 });
    assert.deepEqual(report.problems, []);
    assert.equal(report.last.values["servers./ 127.0.0.1:9000 be0.errors"].raw, 3);
  });
});

test("the page of a combined service has its servers, its store and its redirects", async () => {
  await withTab({ service: "combined", troubles: true }, {}, async (tab) => {
    await tab.wait("tiles of redirects", () =>
      document.querySelector('[data-value="totals.redirects"][data-raw]:not([data-raw=""])'),
    );
    const shown = await tab.call(() => ({
      panels: ["servers", "backends", "stores"].map((id) =>
        document.getElementById(id).checkVisibility(),
      ),
      servers: document.querySelector("#servers").innerText,
      phase: document.querySelector("#phase").textContent,
      replicas: document.querySelector("#replicas").textContent,
      hasStore: document.querySelector("#to-store").checkVisibility(),
      tiles: [...document.querySelectorAll(".tile[title]")].map(
        (tile) => tile.querySelector("span").textContent,
      ),
    }));
    assert.match(shown.servers, /127\.0\.0\.1:9000\s+be0\s+✕ unhealthy/);
    const { panels, phase, replicas, hasStore, tiles } = shown;
    assert.deepEqual([...panels, hasStore], [true, true, true, true]);
    assert.equal(phase, "epoch 7 · filling");
    assert.equal(replicas, "replicas: 2, at least 1 for a write");
    assert.deepEqual(tiles, ["Internal redirects", "did not pass the redirecting server"]);
  });
  await withServer({ service: "combined", troubles: true }, async ({ url }) => {
    const report = await check({ url, seconds: 4, width: 700 });
    assert.deepEqual(report.problems, []);
    // Those of its stores, and of a dead application.
    assert.equal(report.last.alerts.length, 10);
    const { values: numbers } = report.last;
    assert.equal(numbers["servers./ 127.0.0.1:9000 be0.errors"].raw, 3);
    assert.equal(numbers["stores.be1.damaged"].raw, 2);
    assert.ok(numbers["totals.redirects"].raw > 0);
    assert.ok(report.changed.includes("totals.redirected_bytes"));
  });
});

test("no text of the topology leaves its box, and pointing at a cut one shows all of it", async () => {
  const prefix = "application-host-of-the-first-room-";
  const shapes = [
    { service: "upstream", troubles: true, backends: 3, prefix },
    { frontends: 4, backends: 20, prefix, connections: 90e6 },
  ];
  for (const shape of shapes)
    for (const width of [500, 700, 1400])
      await withTab(shape, { width }, async (tab) => {
        await sleep(1500);
        assert.deepEqual(await tab.call(outside), [], `${width}`);
        const names = await tab.call(() =>
          [...document.querySelectorAll("#topology .name")].map((name) => [
            name.firstChild.data,
            name.querySelector("title")?.textContent,
          ]),
        );
        const [shown, whole] = names.find(([, all]) => all === `${prefix}be0`);
        assert.ok(shown.endsWith("…") && whole.startsWith(shown.slice(0, -1)), shown);
        assert.ok(names.some(([text, all]) => text === "clients" && !all));
      });
  // What is known beforehand is not cut.
  await withTab(
    { service: "upstream", troubles: true, backends: 3 },
    { width: 700 },
    async (tab) => {
      await sleep(1500);
      const cut = () => document.querySelectorAll("#topology text title").length;
      assert.equal(await tab.call(cut), 0);
      const shown = await tab.call(() => document.querySelector("#topology").textContent);
      assert.match(shown, /▲ 1 of 2 unhealthy.*✕ not reachable/s);
    },
  );
});

test("the page of a switch, and of a single node", async () => {
  await withServer({ kind: "switch" }, async ({ url }) => {
    const report = await check({ url, seconds: 3 });
    assert.deepEqual(report.problems, []);
    assert.equal(report.last.values["totals.flows"].raw, 10_000);
    assert.ok(report.changed.includes("packets.forward.owner.count"));
  });
  await withServer({ frontends: 0, backends: 1 }, async ({ url }) => {
    const report = await check({ url, seconds: 3 });
    assert.deepEqual(report.problems, []);
    assert.ok(!("totals.direct_share" in report.last.values), "there is no frontend");
  });
});

test("data that stops is called old, and data that returns is not", () =>
  withTab({}, {}, async (tab, { state }) => {
    const said = () => [
      document.querySelector("#freshness").textContent,
      document.querySelector("#announcer").textContent,
    ];
    await tab.wait("live data", () => document.querySelector("#freshness").textContent === "live");
    state.isSilent = true;
    await tab.wait("old data", () => document.body.classList.contains("stale"));
    const [text, heard] = await tab.call(said);
    assert.match(text, /^no data since [56] s$/);
    assert.equal(heard, "The page receives no data.");
    state.isSilent = false;
    await tab.wait("new data", () => !document.body.classList.contains("stale"));
    assert.deepEqual(await tab.call(said), ["live", "The page receives data again."]);
    // A node that restarts may first answer with an error.
    state.isRefusing = true;
    await tab.wait("old data again", () => document.body.classList.contains("stale"));
    state.isRefusing = false;
    await tab.wait("new data again", () => !document.body.classList.contains("stale"));
  }));

test("the store is browsed in pages, and names keep their characters", () =>
  withTab({}, {}, async (tab) => {
    const press = (label) =>
      tab.wait(
        label,
        (text) => {
          const found = [...document.querySelectorAll("#store-view button")].find(
            (one) => one.textContent === text && one.checkVisibility(),
          );
          found?.click();
          return Boolean(found);
        },
        label,
      );
    const names = (expected) =>
      tab.wait(
        `${expected}`,
        (wanted) => {
          const rows = [...document.querySelectorAll("#contents tbody th")].map(
            (cell) => cell.textContent,
          );
          const is = (one, other) => JSON.stringify(one) === JSON.stringify(other);
          return is(rows, wanted) || is([rows.length, rows[0], rows.at(-1)], wanted);
        },
        expected,
      );
    await tab.call(() => (location.hash = "#store"));
    await tab.wait("the endpoint", () => document.querySelector("#key option"));
    await tab.call(({ access, secret }) => {
      const form = document.querySelector("#key");
      form.elements.access.value = access;
      form.elements.secret.value = secret;
      form.requestSubmit();
    }, KEY);
    await press(BUCKET);
    await names(["2026/", "many/", "a+b &c.txt", "readme"]);
    await press("many/");
    await names([1000, "00000", "00999"]);
    await press("Next page");
    await names([200, "01000", "01199"]);
    await press("First page");
    await names([1000, "00000", "00999"]);
    await press(BUCKET);
    await press("2026/");
    await names(["11/", "12/"]);
    await press("11/");
    await names(["one.jpg", "two.jpg"]);
    assert.equal(
      await tab.call(() => document.querySelector("#crumbs").textContent),
      `buckets${BUCKET}202611`,
    );
    await press("Forget the key");
    assert.equal(await tab.call(() => document.querySelector("#browser").checkVisibility()), false);
    assert.deepEqual(tab.messages, []);
  }));

test("without motion there are no dots, and moves are listed", () =>
  withTab({}, { reducedMotion: true }, async (tab) => {
    await sleep(3200);
    assert.equal(await tab.call(() => document.querySelectorAll("#topology .dot").length), 0);
    assert.equal(await tab.call(() => document.querySelectorAll("#moves tbody tr").length), 40);
  }));

test("the check notices what it looks for", () => {
  const appended = {
    "style.css":
      "#asked { color: #bbb; } summary:focus-visible { outline: none; } header { min-width: 1600px; }",
    "main.js": `
      console.error("on purpose");
      document.body.setAttribute("style", "x: y");
      fetch("http://127.0.0.1:9/").catch(() => {});
      setTimeout(() => { throw new Error("thrown") });
      const lengthen = (name) => { name.textContent = "a name that is far too long for its box" };
      setTimeout(() => document.querySelectorAll("#topology .name").forEach(lengthen), 1500);`,
    "index.html": '<button type="button"></button>',
  };
  const expected = [
    /the console has a message: error: on purpose/,
    /an exception: Error: thrown/,
    /the policy was violated/,
    /has a contrast of/,
    /leaves its box/,
    /does not see the focus at summary/,
    /a button has no name/,
    /px too wide/,
  ];
  const use = async ({ url }) => {
    const { problems } = await check({ url, seconds: 2 });
    for (const pattern of expected)
      assert.ok(
        problems.some((text) => pattern.test(text)),
        `${pattern} of ${problems.join("\n")}`,
      );
  };
  return withServer({}, use, { appended });
});
