// The few S3 requests of the page: lists, HEAD, PUT and links for downloads.

import { encode, pathOf, presigned, signed } from "./sign.js";

/** Time in which a download has to begin. */
const DOWNLOAD_S = 300;
const PAGE_KEYS = 1000;

/** An answer that is an error, or a request without an answer. */
export class S3Error extends Error {
  constructor(status, code, message, requestId) {
    super(`${code}: ${message}${requestId ? ` (request ${requestId}, status ${status})` : ""}`);
    Object.assign(this, { status, code, requestId });
  }
}

const text = (parent, name) => parent.getElementsByTagName(name)[0]?.textContent ?? "";
const all = (document, name) => [...document.getElementsByTagName(name)];

function parse(body) {
  const document = new DOMParser().parseFromString(body, "application/xml");
  return document.getElementsByTagName("parsererror").length > 0 ? null : document;
}

function errorOf(status, body, requestId) {
  const document = body ? parse(body) : null;
  const code = (document && text(document, "Code")) || `Status ${status}`;
  const message = (document && text(document, "Message")) || "The answer has no further text";
  return new S3Error(status, code, message, (document && text(document, "RequestId")) || requestId);
}

// A browser does not tell pages why a request had no answer.
const unanswered = (endpoint) =>
  new S3Error(
    0,
    "No answer",
    `${endpoint} is out of reach, or does not allow this page's origin (CORS)`,
    "",
  );

/** One user at one endpoint. The secret key is in this object only. */
export class Client {
  #endpoint;
  #key;

  constructor(endpoint, key) {
    this.#endpoint = endpoint;
    this.#key = key;
  }

  async #send(method, path, query) {
    const request = { method, endpoint: this.#endpoint, path, query };
    const { url, headers } = signed(request, this.#key, new Date());
    const answer = await fetch(url, {
      method,
      headers,
      cache: "no-store",
      credentials: "omit",
    }).catch(() => {
      throw unanswered(this.#endpoint);
    });
    const body = method === "HEAD" ? "" : await answer.text();
    if (!answer.ok) throw errorOf(answer.status, body, answer.headers.get("x-amz-request-id"));
    return body;
  }

  /** The buckets that the key may see, with their names and times. */
  async buckets() {
    const document = parse(await this.#send("GET", "/", {}));
    return all(document, "Bucket").map((bucket) => ({
      name: text(bucket, "Name"),
      time: text(bucket, "CreationDate"),
    }));
  }

  /** A page of a bucket: prefixes and objects, and the token of the next page. */
  async list(bucket, prefix, token) {
    const query = {
      "list-type": "2",
      delimiter: "/",
      prefix,
      "max-keys": String(PAGE_KEYS),
      "encoding-type": "url",
    };
    if (token) query["continuation-token"] = token;
    const document = parse(await this.#send("GET", pathOf(bucket), query));
    const isEncoded = text(document, "EncodingType") === "url";
    // In S3's encoding of names a + is a space.
    const name = (encoded) =>
      isEncoded ? decodeURIComponent(encoded.replaceAll("+", "%20")) : encoded;
    const prefixes = all(document, "CommonPrefixes").map((element) =>
      name(text(element, "Prefix")),
    );
    const objects = all(document, "Contents").map((element) => ({
      key: name(text(element, "Key")),
      size: Number(text(element, "Size")),
      time: text(element, "LastModified"),
      etag: text(element, "ETag").replaceAll('"', ""),
    }));
    return { prefixes, objects, next: text(document, "NextContinuationToken") };
  }

  /** Sends a file. `onProgress` gets the share that was sent. */
  upload(bucket, key, file, onProgress) {
    const type = file.type || "application/octet-stream";
    const request = {
      method: "PUT",
      endpoint: this.#endpoint,
      path: pathOf(bucket, key),
      headers: { "content-type": type },
    };
    const { url, headers } = signed(request, this.#key, new Date());
    return new Promise((resolve, reject) => {
      // fetch() does not tell how much of a body was sent.
      const call = new XMLHttpRequest();
      call.open("PUT", url);
      for (const [name, value] of Object.entries(headers)) call.setRequestHeader(name, value);
      call.upload.onprogress = ({ loaded, total }) => onProgress(total > 0 ? loaded / total : 1);
      call.onerror = () => reject(unanswered(this.#endpoint));
      call.onload = () => {
        if (call.status === 200) resolve();
        else
          reject(
            errorOf(call.status, call.responseText, call.getResponseHeader("x-amz-request-id")),
          );
      };
      call.send(file);
    });
  }

  /**
   * A link to an object that a browser stores as a file. It is checked first, because a browser
   * would leave this page for the text of an error.
   */
  async link(bucket, key) {
    if (key.split("/").some((part) => part === "." || part === "..")) {
      throw new S3Error(
        0,
        "No link",
        "Browsers change paths with parts . or ..; use another client",
        "",
      );
    }
    await this.#send("HEAD", pathOf(bucket, key), {});
    const name = key.split("/").filter(Boolean).at(-1) ?? "object";
    const query = {
      "response-content-disposition": `attachment; filename*=UTF-8''${encode(name)}`,
    };
    const request = { method: "GET", endpoint: this.#endpoint, path: pathOf(bucket, key), query };
    return { url: presigned(request, this.#key, new Date(), DOWNLOAD_S), name };
  }
}
