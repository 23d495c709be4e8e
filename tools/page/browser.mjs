// Headless Chromium by the DevTools protocol, over pipes: no port is opened, and the browser
// ends with its pipes.

import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const ARGUMENTS = [
  // Tests run as root, in which Chromium has no sandbox of its own.
  "--headless=new",
  "--no-sandbox",
  "--remote-debugging-pipe",
  "--disable-gpu",
  "--disable-dev-shm-usage",
  "--no-first-run",
  "--no-default-browser-check",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-extensions",
  "--metrics-recording-only",
  "--hide-scrollbars",
];
const ANSWER_MS = 30000;

export class Browser {
  #next = 1;
  #waiting = new Map();
  #handlers = new Map();
  #buffer = "";

  /** Starts a browser with a profile of its own, which `close` removes, and `more` arguments. */
  static async start(more = []) {
    const program = process.env.CHROMIUM ?? "chromium";
    const browser = new Browser();
    browser.directory = await mkdtemp(join(tmpdir(), "prism-page-"));
    const profile = `--user-data-dir=${join(browser.directory, "profile")}`;
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    browser.process = spawn(program, [...ARGUMENTS, ...more, profile, "about:blank"], {
      stdio,
      detached: true,
    });
    browser.ended = new Promise((resolve) => {
      browser.process.on("exit", resolve);
      browser.process.on("error", resolve);
    });
    browser.ended.then(() => browser.#fail("the browser has ended"));
    browser.process.stdio[3].on("error", () => {});
    browser.process.stdio[4].setEncoding("utf8").on("data", (text) => browser.#receive(text));
    process.once("exit", () => browser.#kill());
    return browser;
  }

  #kill() {
    // Chromium's helpers are in its own group of processes.
    try {
      process.kill(-this.process.pid, "SIGKILL");
    } catch {
      // It has ended already.
    }
  }

  async close() {
    this.#kill();
    await this.ended;
    await rm(this.directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }

  #fail(why) {
    for (const { reject } of this.#waiting.values()) reject(new Error(why));
    this.#waiting.clear();
  }

  #receive(text) {
    const messages = (this.#buffer + text).split("\0");
    this.#buffer = messages.pop();
    for (const message of messages.map((one) => JSON.parse(one))) {
      const call = this.#waiting.get(message.id);
      this.#waiting.delete(message.id);
      if (call && message.error) call.reject(new Error(`${call.method}: ${message.error.message}`));
      else if (call) call.resolve(message.result);
      else if (message.method)
        this.#handlers.get(message.method)?.forEach((handler) => handler(message.params));
    }
  }

  /** Calls `handler` at each event of a kind. */
  on(method, handler) {
    this.#handlers.set(method, [...(this.#handlers.get(method) ?? []), handler]);
  }

  /** Sends a command and returns its result. */
  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => {
        this.#waiting.delete(id);
        reject(new Error(`${method}: no answer within ${ANSWER_MS} ms`));
      }, ANSWER_MS);
      const done = (then) => (value) => {
        clearTimeout(late);
        then(value);
      };
      this.#waiting.set(id, { method, resolve: done(resolve), reject: done(reject) });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  /** Opens a tab. */
  async tab() {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    return new Tab(this, sessionId);
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A page in the browser, with all that its console said. */
export class Tab {
  messages = [];
  exceptions = [];
  failures = [];

  constructor(browser, sessionId) {
    Object.assign(this, { browser, sessionId });
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId);
  }

  /** Opens a page. */
  async open(url, { width = 1400, height = 1000, scheme = "light", reducedMotion = false } = {}) {
    this.browser.on("Runtime.consoleAPICalled", ({ type, args }) =>
      this.messages.push({ type, text: args.map((one) => one.value ?? one.description).join(" ") }),
    );
    // Errors of the browser about the page: files that are missing, and violations of the CSP.
    this.browser.on("Log.entryAdded", ({ entry }) =>
      this.messages.push({
        type: entry.level,
        source: entry.source,
        text: entry.text,
        url: entry.url,
      }),
    );
    this.browser.on("Runtime.exceptionThrown", ({ exceptionDetails: details }) =>
      this.exceptions.push(details.exception?.description ?? details.text),
    );
    this.browser.on("Audits.issueAdded", ({ issue }) => {
      if (issue.code === "ContentSecurityPolicyIssue")
        this.failures.push(issue.details.contentSecurityPolicyIssueDetails);
    });
    for (const domain of ["Page", "Runtime", "Log", "Audits", "Accessibility"])
      await this.send(`${domain}.enable`);
    // Times are those of the processor, so that other programs do not change them.
    await this.send("Performance.enable", { timeDomain: "threadTicks" });
    await this.look({ width, height, scheme, reducedMotion });
    await this.send("Page.navigate", { url });
  }

  /** Changes the size, the colours, and whether things may move. */
  async look({ width, height, scheme, reducedMotion = false }) {
    if (width)
      await this.send("Emulation.setDeviceMetricsOverride", {
        width,
        height,
        deviceScaleFactor: 1,
        mobile: false,
      });
    const features = [
      { name: "prefers-color-scheme", value: scheme },
      { name: "prefers-reduced-motion", value: reducedMotion ? "reduce" : "no-preference" },
    ];
    await this.send("Emulation.setEmulatedMedia", { features });
  }

  /** The value of an expression in the page. It may be a promise. */
  async value(expression) {
    const answer = await this.send("Runtime.evaluate", {
      expression,
      returnByValue: true,
      awaitPromise: true,
      userGesture: true,
    });
    if (answer.exceptionDetails)
      throw new Error(
        answer.exceptionDetails.exception?.description ?? answer.exceptionDetails.text,
      );
    return answer.result.value;
  }

  /** Calls a function in the page. It sees nothing but its arguments. */
  call(run, ...parameters) {
    return this.value(`(${run})(${parameters.map((one) => JSON.stringify(one)).join(", ")})`);
  }

  /** Waits until a function in the page returns something true, and returns it. */
  async wait(why, run, ...parameters) {
    const end = Date.now() + 15000;
    for (;;) {
      const found = await this.call(run, ...parameters).catch(() => null);
      if (found) return found;
      if (Date.now() > end) throw new Error(`waited in vain: ${why}`);
      await sleep(50);
    }
  }

  /** Whether a function in the page returns something true within 3 s. */
  async becomes(run) {
    for (const end = Date.now() + 3000; Date.now() < end; await sleep(50)) {
      if (await this.call(run)) return true;
    }
    return false;
  }

  /** A key of the keyboard. */
  async press(key, modifiers = 0) {
    const codes = { Tab: 9, Enter: 13, " ": 32 };
    const text = { Enter: "\r", " ": " " }[key];
    const event = {
      key,
      code: key === " " ? "Space" : key,
      windowsVirtualKeyCode: codes[key],
      modifiers,
    };
    await this.send("Input.dispatchKeyEvent", {
      type: text ? "keyDown" : "rawKeyDown",
      text,
      ...event,
    });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  /** The browser's own figures about the page. */
  async metrics() {
    const { metrics } = await this.send("Performance.getMetrics");
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  }

  /** A picture of the whole page as PNG. */
  async picture() {
    const { cssContentSize: size } = await this.send("Page.getLayoutMetrics");
    const clip = { x: 0, y: 0, width: size.width, height: size.height, scale: 1 };
    const { data } = await this.send("Page.captureScreenshot", {
      format: "png",
      captureBeyondViewport: true,
      clip,
    });
    return Buffer.from(data, "base64");
  }
}

export { sleep };
