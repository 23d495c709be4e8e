// Signatures of AWS version 4 for S3, in headers and in URLs.
//
// Not here: hashes of bodies. Bodies are sent as UNSIGNED-PAYLOAD, so that a browser need not
// read a large file twice.

import { hex, hmac, sha256, utf8 } from "./sha256.js";

const ALGORITHM = "AWS4-HMAC-SHA256";
const UNSIGNED = "UNSIGNED-PAYLOAD";

/** A text as S3 wants it in URLs: all but letters, digits and -._~ in percent form. */
export const encode = (text) =>
  encodeURIComponent(text).replace(
    /[!'()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  );

/** The path of a bucket or an object. */
export const pathOf = (...names) =>
  `/${names.map((name) => name.split("/").map(encode).join("/")).join("/")}`;

/** A time as 20130524T000000Z. */
export const isoBasic = (date) => date.toISOString().replace(/[-:]|\.\d+/g, "");

/**
 * The URL and the headers of a signed request.
 *
 * `request` has `method`, `endpoint`, `path` (already encoded), `query` (an object), and maybe
 * `headers` and `payload` (the value of x-amz-content-sha256). `key` has `access`, `secret`
 * and `region`.
 */
export function signed(request, key, date) {
  const time = isoBasic(date);
  const url = new URL(request.endpoint);
  const payload = request.payload ?? UNSIGNED;
  const headers = { ...request.headers, "x-amz-content-sha256": payload, "x-amz-date": time };
  const query = canonicalQuery(request.query ?? {});
  const all = { ...headers, host: url.host };
  const { signature, names, scope } = sign({ ...request, query, headers: all, payload }, key, time);
  const credential = `Credential=${key.access}/${scope}`;
  headers.authorization = `${ALGORITHM} ${credential}, SignedHeaders=${names}, Signature=${signature}`;
  return { url: urlOf(url, request.path, query), headers };
}

/** A URL that is valid for `seconds` without further headers. */
export function presigned(request, key, date, seconds) {
  const time = isoBasic(date);
  const url = new URL(request.endpoint);
  const query = {
    ...request.query,
    "X-Amz-Algorithm": ALGORITHM,
    "X-Amz-Credential": `${key.access}/${scopeOf(time, key.region)}`,
    "X-Amz-Date": time,
    "X-Amz-Expires": String(seconds),
    "X-Amz-SignedHeaders": "host",
  };
  const text = canonicalQuery(query);
  const parts = { ...request, query: text, headers: { host: url.host }, payload: UNSIGNED };
  return urlOf(url, request.path, `${text}&X-Amz-Signature=${sign(parts, key, time).signature}`);
}

const urlOf = (url, path, query) => `${url.origin}${path}${query && `?${query}`}`;

const scopeOf = (time, region) => `${time.slice(0, 8)}/${region}/s3/aws4_request`;

function canonicalQuery(query) {
  const pairs = Object.entries(query).map(([name, value]) => `${encode(name)}=${encode(value)}`);
  return pairs.sort().join("&");
}

function sign(parts, key, time) {
  const lower = Object.entries(parts.headers).map(([name, value]) => [name.toLowerCase(), value]);
  lower.sort(([one], [other]) => (one < other ? -1 : 1));
  const names = lower.map(([name]) => name).join(";");
  const lines = lower.map(([name, value]) => `${name}:${value.trim().replace(/ +/g, " ")}\n`);
  const canonical = [parts.method, parts.path, parts.query, lines.join(""), names, parts.payload];
  const scope = scopeOf(time, key.region);
  const digest = hex(sha256(utf8(canonical.join("\n"))));
  const signing = [...scope.split("/")].reduce(
    (secret, part) => hmac(secret, utf8(part)),
    utf8(`AWS4${key.secret}`),
  );
  const signature = hex(hmac(signing, utf8([ALGORITHM, time, scope, digest].join("\n"))));
  return { signature, names, scope };
}
