// Uses the view of the store as a user does: signs in, looks at a bucket, uploads, downloads.

import { randomBytes } from "node:crypto";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

const UPLOAD_BYTES = 3 << 20;
const DOWNLOAD_MS = 15000;
const FILE = "from the page (1) & 2+ü's.bin";

const errorText = () => document.querySelector("#store-error").textContent;
const rows = () =>
  [...document.querySelectorAll("#contents tbody tr")].map((row) =>
    [...row.cells].map((cell) => cell.textContent),
  );

/** Returns what it saw, with a list of problems. */
export async function useStore(
  browser,
  tab,
  { endpoint, access, secret, bucket, bytes = UPLOAD_BYTES },
) {
  const seen = { problems: [] };
  const expect = (isGood, text) => isGood || seen.problems.push(text);
  try {
    await tab.call(() => (location.hash = "#store"));
    await signIn(tab, { endpoint, access, secret });
    await answer(tab, "the list of buckets", () =>
      document.querySelector("#contents tbody button"),
    );
    seen.buckets = (await tab.call(rows)).map(([name]) => name);
    await click(tab, "#contents tbody button", bucket);
    await answer(tab, "the bucket", () => !document.querySelector("#upload").hidden);
    expect(
      await tab.call(() => document.activeElement.id === "browser-heading"),
      "the focus is lost in the store",
    );
    seen.objects = (await tab.call(rows)).length;
    await upload(browser, tab, bytes, seen, expect);
    seen.key_in_storage = await tab.call(
      () => localStorage.length + sessionStorage.length + document.cookie.length,
    );
    expect(seen.key_in_storage === 0, "the page has stored something");
    seen.console_before_errors = [...tab.messages];
    await signIn(tab, { endpoint, access, secret: `${secret}x` });
    seen.error = await tab.wait("an error for a wrong key", errorText);
    expect(/SignatureDoesNotMatch/.test(seen.error), `a wrong key gives: ${seen.error}`);
  } catch (error) {
    seen.problems.push(`the store: ${error.message}; ${await tab.call(errorText)}`);
  }
  seen.console_before_errors ??= [...tab.messages];
  return seen;
}

// Waits for an answer of the store; an error that the page shows ends the wait.
async function answer(tab, what, isThere) {
  await tab.wait(
    what,
    new Function(`return document.querySelector("#store-error").textContent || (${isThere})()`),
  );
  const error = await tab.call(errorText);
  if (error) throw new Error(`${what}: the page shows ${error}`);
}

const click = (tab, selector, text) =>
  tab.call(
    (all, wanted) =>
      [...document.querySelectorAll(all)]
        .find((one) => one.textContent === wanted || one.ariaLabel === wanted)
        .click(),
    selector,
    text,
  );

// Types the key, as a user does, and presses Enter.
async function signIn(tab, { endpoint, access, secret }) {
  await tab.wait(
    "the endpoint",
    (url) => [...document.querySelectorAll("#key option")].some((one) => one.value === url),
    endpoint,
  );
  await tab.call((url) => (document.querySelector("#key select").value = url), endpoint);
  for (const [name, text] of [
    ["access", access],
    ["secret", secret],
  ]) {
    await tab.call((field) => document.querySelector("#key").elements[field].select(), name);
    await tab.send("Input.insertText", { text });
  }
  await tab.press("Enter");
}

async function upload(browser, tab, bytes, seen, expect) {
  const directory = join(browser.directory, "downloads");
  await mkdir(directory);
  const source = join(browser.directory, FILE);
  const content = randomBytes(bytes);
  await writeFile(source, content);
  const { result } = await tab.send("Runtime.evaluate", {
    expression: 'document.querySelector("#upload input")',
  });
  await tab.send("DOM.setFileInputFiles", { files: [source], objectId: result.objectId });
  await tab.call(() => document.querySelector("#upload button").click());
  await answer(tab, "the upload", () =>
    document.querySelector("#store-status").textContent.includes("uploaded"),
  );
  const row = (await tab.call(rows)).find(([name]) => name === FILE);
  expect(row, "the uploaded file is not listed");
  seen.uploaded = row?.[0];

  await browser.send("Browser.setDownloadBehavior", {
    behavior: "allow",
    downloadPath: directory,
    eventsEnabled: true,
  });
  const done = new Promise((resolve) =>
    browser.on(
      "Browser.downloadProgress",
      ({ state }) => ["completed", "canceled"].includes(state) && resolve(state),
    ),
  );
  await click(tab, "#contents tbody button", `Download ${FILE}`);
  await answer(tab, "the download", () =>
    document.querySelector("#store-status").textContent.includes("downloads"),
  );
  const late = new Promise((resolve) => setTimeout(resolve, DOWNLOAD_MS, "late").unref());
  seen.download = await Promise.race([done, late]);
  const [name] = await readdir(directory);
  seen.downloaded = name;
  const received = name ? await readFile(join(directory, name)) : Buffer.alloc(0);
  seen.downloaded_bytes = received.length;
  expect(
    received.equals(content),
    `the download has ${received.length} bytes that differ from the ${bytes} of the upload`,
  );
}
