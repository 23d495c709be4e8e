#!/usr/bin/env node
// Opens the operator's page in headless Chromium, uses it, and prints what it saw as JSON.
//
// Usage: check_page.mjs --url URL [--seconds 6] [--scheme light|dark] [--width 1400]
//          [--screenshot FILE] [--store-endpoint URL --access-key KEY --secret-key KEY --bucket NAME]
//
// It ends with status 1 if `problems` has any: a message in the console, an exception, a
// violation of the policy, too little contrast, a text that leaves its box, a control without a
// name, a focus that one does not see, a page without updates. The document has:
//
//   first, last     the page after the first document and `seconds` later: `values` by the name
//                   of the number (`raw` and `text`), `alerts`, `connection`, `title`
//   changed         the names of the numbers that differ between both
//   updates         their number, the time of the page's code for each (mean_ms, max_ms), the
//                   whole time of the browser for each (task_ms_each), dots of moves and
//                   the most at a time (dots, most_dots), moves that were listed (moves_listed)
//   outside         texts of the topology that leave their box
//   accessibility   roles and names of landmarks, controls and others; counts of headers
//   contrast        for light and dark: texts, the worst ones, and failures
//   tab_stops       the elements in the order of the Tab key, and whether one sees the focus
//   keyboard        what was done by keys only, and whether it worked
//   store           buckets, objects, what was uploaded and downloaded, the error for a wrong key
//   console, exceptions, csp_violations, origins (of all requests), dom_nodes, heap_bytes

import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";

import { accessibility, problemsOf } from "./judge.mjs";
import { Browser, sleep } from "./browser.mjs";
import { contrasts, counted, focused, outside, values, watch } from "./probes.mjs";
import { useStore } from "./use_store.mjs";

const SCHEMES = ["light", "dark"];
const MOST_STOPS = 80;

/** Uses the page at `url`, and returns what it saw. */
export async function check(options) {
  const browser = await Browser.start();
  try {
    return await checkIn(browser, options);
  } finally {
    await browser.close();
  }
}

async function checkIn(
  browser,
  { url, seconds = 6, scheme = "light", width = 1400, screenshot, store },
) {
  const tab = await browser.tab();
  const origins = new Set();
  browser.on("Network.requestWillBeSent", ({ request }) =>
    origins.add(new URL(request.url).origin),
  );
  await tab.send("Network.enable");
  await tab.send("Page.enable");
  await tab.send("Page.addScriptToEvaluateOnNewDocument", { source: `(${watch})()` });
  await tab.open(url, { scheme, width });
  await tab.wait("the first document", () => document.querySelector("#asked")?.textContent);
  const first = await tab.call(values);
  const before = await tab.metrics();
  await sleep(1000 * seconds);
  const last = await tab.call(values);
  const after = await tab.metrics();
  const updates = await tab.call(counted);
  updates.task_ms_each =
    (1000 * (after.TaskDuration - before.TaskDuration)) / Math.max(1, updates.updates);
  if (screenshot) await writeFile(screenshot, await tab.picture());

  const report = {
    browser: (await browser.send("Browser.getVersion")).product,
    first,
    last,
    changed: Object.keys(last.values).filter(
      (key) => last.values[key].raw !== first.values[key]?.raw,
    ),
    updates,
    dom_nodes: after.Nodes,
    heap_bytes: after.JSHeapUsedSize,
    outside: await tab.call(outside),
    accessibility: await accessibility(tab),
    contrast: {},
  };
  for (const one of SCHEMES) {
    await tab.look({ scheme: one });
    report.contrast[one] = await tab.call(contrasts, 3);
  }
  await tab.look({ scheme });
  report.tab_stops = await walk(tab);
  report.keyboard = await useKeyboard(tab);
  // Later steps provoke errors, which a browser notes in its console.
  if (store) report.store = await useStore(browser, tab, store);
  report.console = report.store?.console_before_errors ?? [...tab.messages];
  report.exceptions = tab.exceptions;
  report.csp_violations = tab.failures;
  report.origins = [...origins].filter((origin) => origin !== "null");
  report.problems = problemsOf(report, { url, store });
  return report;
}

// Presses Tab until the focus is at an element for the second time.
async function walk(tab) {
  const stops = [];
  await tab.call(() => document.activeElement?.blur());
  while (stops.length < MOST_STOPS) {
    await tab.press("Tab");
    const stop = await tab.call(focused);
    if (!stop || stops.some((known) => known.stop === stop.stop)) break;
    stops.push(stop);
  }
  return stops.map(({ stop: _, ...shown }) => shown);
}

// Stops the updates, changes the view and comes back, by keys only.
async function useKeyboard(tab) {
  const press = async (selector, key) => {
    await tab.call((to) => document.querySelector(to).focus(), selector);
    await tab.press(key);
  };
  await press("#pause", " ");
  const pauses = await tab.becomes(() => document.querySelector("#pause").ariaPressed === "true");
  await press("#pause", " ");
  const continues = await tab.becomes(
    () => document.querySelector("#pause").ariaPressed === "false",
  );
  const hasStore = await tab.call(() => !document.querySelector("#to-store").hidden);
  if (hasStore) await press("#to-store", "Enter");
  const opens =
    hasStore && (await tab.becomes(() => !document.querySelector("#store-view").hidden));
  await press("#to-cluster", "Enter");
  const returns = await tab.becomes(() => !document.querySelector("#cluster-view").hidden);
  return { pauses, continues, opens_store: opens || !hasStore, returns };
}

async function main() {
  const names = [
    "url",
    "seconds",
    "scheme",
    "width",
    "screenshot",
    "store-endpoint",
    "access-key",
    "secret-key",
    "bucket",
    "upload-bytes",
  ];
  const { values: given } = parseArgs({
    options: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
  });
  if (!given.url) {
    console.error("check_page: --url is missing");
    process.exit(2);
  }
  const number = (text) => (text === undefined ? undefined : Number(text));
  const store = given["store-endpoint"] && {
    endpoint: given["store-endpoint"],
    access: given["access-key"],
    secret: given["secret-key"],
    bucket: given.bucket,
    bytes: number(given["upload-bytes"]),
  };
  const { url, scheme, screenshot } = given;
  const report = await check({
    url,
    scheme,
    screenshot,
    store,
    seconds: number(given.seconds),
    width: number(given.width),
  });
  console.log(JSON.stringify(report, null, 2));
  process.exitCode = report.problems.length > 0 ? 1 : 0;
}

if (process.argv[1] === new URL(import.meta.url).pathname) await main();
