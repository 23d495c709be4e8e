// A server of the page for tests: the page's own files under the policy that Prism sends,
// documents of an invented cluster, and a small store that checks signatures by itself.

import { createHash, createHmac } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

import { Cluster } from "./cluster.mjs";

export const PAGE = new URL("../../crates/prism-figures/src/page/", import.meta.url);
export const KEY = { access: "TESTACCESSKEY", secret: "test/secret+key", region: "us-east-1" };
export const BUCKET = "photos";
const TYPES = {
  html: "text/html; charset=utf-8",
  css: "text/css",
  js: "text/javascript",
  svg: "image/svg+xml",
};

const policy = (urls) =>
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; " +
  `connect-src 'self' ${urls.join(" ")}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;

const listen = (handler) =>
  new Promise((resolve) => {
    const server = createServer(handler);
    server.listen(0, "127.0.0.1", () => resolve(server));
  });

const urlOf = (server) => `http://127.0.0.1:${server.address().port}`;

/**
 * Starts both servers. `shape` is that of the cluster; `shape.kind` may be "switch". Without
 * `storeUrl` the store is a small one of this process. `appended` are texts that files of the
 * page end with, by their names.
 */
export async function start(shape = {}, { storeUrl = null, appended = {} } = {}) {
  const store = storeUrl ? null : await listen(new SmallStore().handler());
  const storeUrls = [storeUrl ?? urlOf(store)];
  const cluster = new Cluster({ ...shape, storeUrls });
  const streams = new Set();
  const next = () =>
    shape.kind === "switch" ? cluster.ofSwitch(Date.now()) : cluster.next(Date.now());
  const eventOf = (doc) => `data: ${JSON.stringify(doc)}\n\n`;
  // Faults of the server: it sends nothing, or answers with an error.
  const state = { isSilent: false, isRefusing: false };
  let last = next();
  const page = await listen(async (request, response) => {
    const path = new URL(request.url, "http://page").pathname;
    if (path === "/events" && state.isRefusing) {
      response.writeHead(503).end();
      return;
    }
    if (path === "/events") {
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      response.write(eventOf(last));
      streams.add(response);
      response.on("close", () => streams.delete(response));
      return;
    }
    const name = path === "/" ? "index.html" : path.slice(1);
    await serveFile(name, appended[name] ?? "", storeUrls, response);
  });
  const timer = setInterval(() => {
    if (state.isRefusing) streams.forEach((stream) => stream.destroy());
    if (state.isSilent) return;
    last = next();
    const event = eventOf(last);
    streams.forEach((stream) => stream.write(event));
  }, 1000);
  const stop = () => {
    clearInterval(timer);
    for (const server of [page, store]) {
      server?.close();
      server?.closeAllConnections();
    }
  };
  return { url: urlOf(page), storeUrl: storeUrls[0], state, stop };
}

async function serveFile(name, appended, storeUrls, response) {
  const type = TYPES[name.split(".").at(-1)];
  const body =
    type && /^[\w.]+$/.test(name) && (await readFile(new URL(name, PAGE)).catch(() => null));
  if (!body) {
    response.writeHead(404).end();
    return;
  }
  const headers = {
    "content-type": type,
    "content-security-policy": policy(storeUrls),
    "x-content-type-options": "nosniff",
  };
  response.writeHead(200, headers).end(Buffer.concat([body, Buffer.from(appended)]));
}

const escape = (text) =>
  text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);

/** One bucket in memory, for pages of other origins. */
class SmallStore {
  #objects = new Map();

  constructor() {
    const names = [
      "a+b &c.txt",
      "2026/11/one.jpg",
      "2026/11/two.jpg",
      "2026/12/three.jpg",
      "readme",
    ];
    for (const name of names) this.#objects.set(name, Buffer.from(`the object ${name}\n`));
    // More than a page.
    for (let n = 0; n < 1200; n += 1)
      this.#objects.set(`many/${String(n).padStart(5, "0")}`, Buffer.from(`${n}`));
  }

  handler() {
    return async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      response.setHeader("access-control-allow-origin", request.headers.origin ?? "*");
      response.setHeader("access-control-expose-headers", "etag, x-amz-request-id");
      response.setHeader("x-amz-request-id", "REQ1");
      if (request.method === "OPTIONS") {
        response.setHeader("access-control-allow-methods", "GET, HEAD, PUT");
        response.setHeader(
          "access-control-allow-headers",
          request.headers["access-control-request-headers"] ?? "",
        );
        response.writeHead(200).end();
        return;
      }
      const url = new URL(request.url, `http://${request.headers.host}`);
      if (!isSigned(request, url))
        this.#error(response, 403, "SignatureDoesNotMatch", "The signature is another one.");
      else this.#answer(request.method, url, Buffer.concat(chunks), response);
    };
  }

  #error(response, status, code, message) {
    const body = `<Error><Code>${code}</Code><Message>${message}</Message><RequestId>REQ1</RequestId></Error>`;
    response.writeHead(status, { "content-type": "application/xml" }).end(body);
  }

  #answer(method, url, body, response) {
    const [, bucket, ...rest] = url.pathname.split("/").map(decodeURIComponent);
    const key = rest.join("/");
    if (!bucket) {
      const one = `<Bucket><Name>${BUCKET}</Name><CreationDate>2026-01-02T03:04:05.000Z</CreationDate></Bucket>`;
      response.end(`<ListAllMyBucketsResult><Buckets>${one}</Buckets></ListAllMyBucketsResult>`);
    } else if (bucket !== BUCKET) {
      this.#error(response, 404, "NoSuchBucket", "The bucket does not exist.");
    } else if (!key) {
      response.end(this.#list(url.searchParams));
    } else if (method === "PUT") {
      this.#objects.set(key, body);
      response.writeHead(200, { etag: `"${createHash("md5").update(body).digest("hex")}"` }).end();
    } else if (!this.#objects.has(key)) {
      this.#error(response, 404, "NoSuchKey", "The key does not exist.");
    } else {
      const disposition = url.searchParams.get("response-content-disposition");
      if (disposition) response.setHeader("content-disposition", disposition);
      const object = this.#objects.get(key);
      response.setHeader("content-length", object.length);
      response.end(method === "HEAD" ? undefined : object);
    }
  }

  #list(query) {
    const prefix = query.get("prefix");
    const after = query.get("continuation-token") ?? "";
    const lines = new Map();
    for (const key of [...this.#objects.keys()].sort()) {
      if (!key.startsWith(prefix)) continue;
      const cut = key.indexOf("/", prefix.length);
      const name = cut < 0 ? key : key.slice(0, cut + 1);
      if (name > after) lines.set(name, cut < 0);
    }
    const max = Number(query.get("max-keys"));
    const page = [...lines].slice(0, max);
    const name = (text) =>
      escape(encodeURIComponent(text).replaceAll("%20", "+").replaceAll("%2F", "/"));
    const items = page.map(([key, isObject]) =>
      isObject
        ? `<Contents><Key>${name(key)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>` +
          `<ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag><Size>${this.#objects.get(key).length}</Size></Contents>`
        : `<CommonPrefixes><Prefix>${name(key)}</Prefix></CommonPrefixes>`,
    );
    const token =
      lines.size > max
        ? `<NextContinuationToken>${name(page.at(-1)[0])}</NextContinuationToken>`
        : "";
    return `<ListBucketResult><EncodingType>url</EncodingType>${token}${items.join("")}</ListBucketResult>`;
  }
}

// Checks a signature with node's own cryptography, so that the page's code is not its own judge.
function isSigned(request, url) {
  const query = new Map([...url.searchParams]);
  const header = Object.fromEntries(
    (request.headers.authorization ?? "").split(/[ ,]+/).map((part) => part.split(/=(.*)/)),
  );
  const of = (name) => header[name] ?? query.get(`X-Amz-${name}`);
  const [, date, region] = (of("Credential") ?? "").split("/");
  if (region !== KEY.region || !of("Credential").startsWith(`${KEY.access}/`)) return false;
  const time = request.headers["x-amz-date"] ?? query.get("X-Amz-Date");
  const encode = (text) =>
    encodeURIComponent(text).replace(
      /[!'()*]/g,
      (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
    );
  const pairs = [...query].filter(([name]) => name !== "X-Amz-Signature");
  const canonical = [
    request.method,
    url.pathname,
    pairs
      .map(([name, value]) => `${encode(name)}=${encode(value)}`)
      .sort()
      .join("&"),
    ...of("SignedHeaders")
      .split(";")
      .map((name) => `${name}:${request.headers[name]}`),
    "",
    of("SignedHeaders"),
    request.headers["x-amz-content-sha256"] ?? "UNSIGNED-PAYLOAD",
  ].join("\n");
  const digest = createHash("sha256").update(canonical).digest("hex");
  const hmac = (key, text) => createHmac("sha256", key).update(text).digest();
  const key = [date, region, "s3", "aws4_request"].reduce(hmac, `AWS4${KEY.secret}`);
  const text = ["AWS4-HMAC-SHA256", time, `${date}/${region}/s3/aws4_request`, digest].join("\n");
  return hmac(key, text).toString("hex") === of("Signature");
}

// `node server.mjs [JSON]` serves until it is ended, to look at the page by hand.
if (process.argv[1] === new URL(import.meta.url).pathname) {
  const server = await start(JSON.parse(process.argv[2] ?? "{}"));
  console.log(`${server.url}/ (store: access key ${KEY.access}, secret key ${KEY.secret})`);
}
