#!/usr/bin/env node
// Clients as users have them: node, and pages in headless Chromium. Until their standard input
// ends they ask, upload, and hold WebSockets and streams of events. Then they print what they saw.
//
// Usage: clients.mjs HTTP_ORIGIN HTTPS_ORIGIN
//
// The document has for `node`, and for the pages `http` and `https`:
//
//   sockets     each WebSocket: the backend `at` which it was, its `messages`, when it `ended` in
//               ms since 1970 (0: at the end of the test), and its `code` of then
//   answered    the numbers of answers, by the kind of client
//   ids         the identifiers of requests that were answered with 200
//   returns     how often a stream of events was continued
//   failures    requests without a right answer: `at` in ms since 1970, the `kind` of client, and
//               the `status`, or 0 and the `reason`

import { createHash } from "node:crypto";
import http from "node:http";

import { Browser } from "../../../../../tools/page/browser.mjs";

const [plain, encrypted] = process.argv.slice(2);

/** Begins to work. It runs in the page and in node, and sees nothing but its arguments. */
function begin(name, origin, sockets, streams) {
  const seen = { sockets: [], answered: {}, ids: [], returns: 0, failures: [] };
  let [goes, count] = [true, 0];
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const fail = (kind, status, reason) =>
    seen.failures.push({ at: Date.now(), kind, status, reason: String(reason) });
  const nextId = (kind) => `${name}-${kind}-${count++}`;
  const succeed = (kind, id) => {
    seen.answered[kind] = (seen.answered[kind] ?? 0) + 1;
    if (id) seen.ids.push(id);
  };

  const socket = () =>
    new Promise((ended) => {
      const life = { at: "", messages: 0, ended: 0, code: 0 };
      seen.sockets.push(life);
      const socket = new WebSocket(`${origin.replace("http", "ws")}/websocket`);
      let sent = "";
      const send = () => {
        if (!goes) return socket.close(1000);
        if (socket.readyState !== 1) return;
        sent = String(life.messages).padEnd([10, 200, 3000, 70000][life.messages % 4], ".");
        socket.send(sent);
      };
      socket.onmessage = ({ data }) => {
        if (!life.at) life.at = data;
        else if (data !== sent) fail("socket", 0, "another message");
        else life.messages++;
        setTimeout(send, 10);
      };
      socket.onclose = ({ code }) => {
        if (goes) life.ended = Date.now();
        life.code = code;
        if (!life.at) fail("socket", 0, `not opened: ${code}`);
        ended();
      };
    });

  const ask = async (kind, path, expected, options = {}) => {
    const id = nextId(kind);
    try {
      const answer = await fetch(origin + path, { ...options, headers: { "X-Id": id } });
      const text = await answer.text();
      if (!answer.ok) fail(kind, answer.status, text);
      else if (text !== expected && text.length !== expected) fail(kind, 0, "another body");
      else succeed(kind, id);
    } catch (error) {
      fail(kind, 0, error.cause ?? error);
    }
    await sleep(5);
  };
  const body = "body".repeat(700);

  const events = () => {
    const stream = new EventSource(`${origin}/ticks`);
    let last = 0;
    stream.onmessage = ({ lastEventId }) => {
      if (Number(lastEventId) !== last + 1) fail("events", 0, `${lastEventId} after ${last}`);
      else succeed("events");
      last = Number(lastEventId);
    };
    stream.onerror = () => {
      if (stream.readyState === EventSource.CLOSED) fail("events", 0, "given up");
      seen.returns++;
    };
    return stream;
  };

  const always = async (work) => {
    while (goes) await work();
  };
  const open = Array.from({ length: streams }, events);
  const works = Array.from({ length: sockets }, () => always(socket));
  works.push(always(() => ask("get", "/bytes?n=2000", 2000)));
  works.push(always(() => ask("post", "/echo", body, { method: "POST", body })));
  return {
    seen,
    fail,
    nextId,
    succeed,
    always: (work) => works.push(always(work)),
    end: async () => {
      goes = false;
      open.forEach((stream) => stream.close());
      await Promise.all(works);
      return seen;
    },
  };
}

/** Uploads of unknown length, whose trailer the application has to get. */
const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
function upload(of) {
  const id = of.nextId("upload");
  const piece = Buffer.alloc(20_000, id);
  const digest = createHash("sha256");
  return new Promise((ended) => {
    const fail = (status, reason) => ended(of.fail("upload", status, reason));
    const headers = { "Transfer-Encoding": "chunked", Trailer: "X-Sum", "X-Id": id };
    const request = http.request(`${plain}/digest`, { method: "POST", agent, headers });
    request.on("error", (error) => fail(0, error));
    request.on("response", (answer) => {
      let text = "";
      answer.on("error", (error) => fail(0, error));
      answer.setEncoding("utf8").on("data", (more) => (text += more));
      answer.on("end", () => {
        if (answer.statusCode !== 200) return fail(answer.statusCode, text);
        if (text !== `200000 ${digest.digest("hex")} ${id}\n`) return fail(0, text);
        ended(of.succeed("upload", id));
      });
    });
    let left = 10;
    const send = () => {
      if (left-- === 0) {
        request.addTrailers({ "X-Sum": id });
        return request.end();
      }
      digest.update(piece);
      request.write(piece);
      setTimeout(send, 15);
    };
    send();
  });
}

// By itself Chromium asks for names of its maker, and slows pages down that are not in front.
const browser = await Browser.start([
  "--host-resolver-rules=MAP *.com ~NOTFOUND",
  "--disable-background-timer-throttling",
  "--disable-renderer-backgrounding",
  "--disable-backgrounding-occluded-windows",
]);

/** A page that works. */
async function open(name, origin) {
  const tab = await browser.tab();
  await tab.send("Security.setIgnoreCertificateErrors", { ignore: true });
  await tab.open(`${origin}/page`);
  await tab.wait("the page", () => document.title === "page" && document.readyState === "complete");
  await tab.value(`window.work = (${begin})("${name}", location.origin, 5, 1); 0`);
  return tab;
}

try {
  const pages = { http: await open("http", plain), https: await open("https", encrypted) };
  const work = begin("node", plain, 0, 0);
  work.always(() => upload(work));
  console.log("ready");
  await new Promise((resolve) => process.stdin.on("end", resolve).resume());
  const seen = { node: await work.end() };
  for (const name in pages) seen[name] = await pages[name].value("window.work.end()");
  console.log(JSON.stringify(seen));
} finally {
  agent.destroy();
  await browser.close();
}
