// A page that uploads: the AWS SDK for JavaScript presigns URLs in node, as a web application
// does, and a page in Chromium uses them. Rules of CORS alone let it. The page is not from the
// bucket's host, and Chromium asks by OPTIONS before each PUT.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

import { Browser, sleep } from "../../../../../tools/page/browser.mjs";

const { AWS_DEFAULT_REGION: region, AWS_ENDPOINT_URL: endpoint, BUCKET: Bucket } = process.env;
const { CLIENTS, SHARED } = process.env;
const require = createRequire(join(CLIENTS, "applications", "index.js"));
const sdk = require("@aws-sdk/client-s3");
const { getSignedUrl } = require("@aws-sdk/s3-request-presigner");

const PART_BYTES = 8 << 20;
const CONTENT_TYPE = "image/x-portrait";
const large = readFileSync(join(SHARED, "large")).subarray(0, 20 << 20);
const slice = readFileSync(join(SHARED, "slice"));
const options = { region, endpoint, forcePathStyle: true, maxAttempts: 1 };
// By default the SDK begins an upload with a checksum algorithm, and the page sends no checksums.
const s3 = new sdk.S3Client({ ...options, requestChecksumCalculation: "WHEN_REQUIRED" });
const usual = new sdk.S3Client(options);
const sign = (command, client = s3) => getSignedUrl(client, command, { expiresIn: 600 });

/** The page has these files beside it. */
function serve() {
  const server = createServer((request, response) => {
    const body = { "/large": large, "/slice": slice }[request.url];
    response.setHeader("Content-Type", body ? "application/octet-stream" : "text/html");
    response.end(body ?? "<title>uploads</title>");
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

// These run in the page. fetch() throws if CORS does not let the page see the answer.
const put = async (url, file, from, to, headers) => {
  const body = (await (await fetch(file)).blob()).slice(from, to);
  const answer = await fetch(url, { method: "PUT", body, headers });
  return { status: answer.status, tag: answer.headers.get("ETag"), text: await answer.text() };
};
const isSame = async (url, file) => {
  const bodies = [url, file].map(async (one) => new Uint8Array(await (await fetch(one)).arrayBuffer()));
  const [one, other] = await Promise.all(bodies);
  return one.length === other.length && one.every((byte, n) => byte === other[n]);
};

async function uploadWhole(tab) {
  const command = new sdk.PutObjectCommand({ Bucket, Key: "whole", ContentType: CONTENT_TYPE });
  const url = await sign(command, usual);
  // The checksum is that of an empty body. S3 takes checksums from headers only.
  assert.match(url, /x-amz-checksum-crc32=AAAAAA/);
  const done = await tab.call(put, url, "/slice", 0, slice.length, { "Content-Type": CONTENT_TYPE });
  const tag = `"${createHash("md5").update(slice).digest("hex")}"`;
  assert.deepEqual(done, { status: 200, tag, text: "" });
  const head = await s3.send(new sdk.HeadObjectCommand({ Bucket, Key: "whole" }));
  assert.equal(head.ContentType, CONTENT_TYPE);
  const back = await sign(new sdk.GetObjectCommand({ Bucket, Key: "whole" }));
  assert.ok(await tab.call(isSame, back, "/slice"));
}

async function uploadParts(tab) {
  const { UploadId } = await s3.send(new sdk.CreateMultipartUploadCommand({ Bucket, Key: "parts" }));
  const Parts = [];
  for (let from = 0; from < large.length; from += PART_BYTES) {
    const PartNumber = Parts.length + 1;
    const url = await sign(new sdk.UploadPartCommand({ Bucket, Key: "parts", UploadId, PartNumber }));
    const done = await tab.call(put, url, "/large", from, from + PART_BYTES, {});
    assert.equal(done.status, 200, done.text);
    Parts.push({ PartNumber, ETag: done.tag });
  }
  const whole = { Bucket, Key: "parts", UploadId, MultipartUpload: { Parts } };
  await s3.send(new sdk.CompleteMultipartUploadCommand(whole));
  const back = await sign(new sdk.GetObjectCommand({ Bucket, Key: "parts" }));
  assert.ok(await tab.call(isSame, back, "/large"));
}

/** A page of an origin that no rule names. */
async function uploadFromElsewhere(tab) {
  const url = await sign(new sdk.PutObjectCommand({ Bucket, Key: "elsewhere" }));
  await assert.rejects(tab.call(put, url, "/slice", 0, 10, {}), /Failed to fetch/);
  const head = s3.send(new sdk.HeadObjectCommand({ Bucket, Key: "elsewhere" }));
  await assert.rejects(head, { name: "NotFound" });
}

const server = await serve();
const { port } = server.address();
const browser = await Browser.start([
  // Chromium does not take the lab's authority from its environment.
  "--ignore-certificate-errors",
  // It asks for hosts of its maker, which the lab's client cannot reach.
  "--host-resolver-rules=MAP *.com ~NOTFOUND",
]);
const open = async (url) => {
  const tab = await browser.tab();
  await tab.open(url);
  await tab.wait("the page", () => document.title === "uploads");
  return tab;
};
try {
  await s3.send(new sdk.CreateBucketCommand({ Bucket }));
  const origin = `http://127.0.0.1:${port}`;
  const rule = { AllowedOrigins: [origin], AllowedMethods: ["GET", "PUT"], AllowedHeaders: ["*"], ExposeHeaders: ["ETag"] };
  const rules = { Bucket, CORSConfiguration: { CORSRules: [rule] } };
  await s3.send(new sdk.PutBucketCorsCommand(rules));
  // All nodes have the rules within a second.
  await sleep(1500);
  const tab = await open(origin);
  await uploadWhole(tab);
  await uploadParts(tab);
  await uploadFromElsewhere(await open(`http://localhost:${port}`));
  const Objects = ["whole", "parts"].map((Key) => ({ Key }));
  const deleted = await s3.send(new sdk.DeleteObjectsCommand({ Bucket, Delete: { Objects } }));
  assert.equal(deleted.Deleted.length, Objects.length);
  await s3.send(new sdk.DeleteBucketCommand({ Bucket }));
} finally {
  await browser.close();
  server.close();
}
