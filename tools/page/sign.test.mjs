// Tests of the page's signatures without a browser: `node --test tools/page/sign.test.mjs`.

import assert from "node:assert/strict";
import { createHash, createHmac } from "node:crypto";
import { test } from "node:test";

import { hex, hmac, sha256, utf8 } from "../../crates/prism-figures/src/page/sha256.js";
import { pathOf, presigned, signed } from "../../crates/prism-figures/src/page/sign.js";
import { random } from "./cluster.mjs";

test("SHA-256 of the examples of RFC 6234 and of all lengths around a block", () => {
  const examples = [
    ["abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"],
    [
      "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ],
    ["01234567".repeat(80), "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5"],
    ["a".repeat(1e6), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"],
  ];
  for (const [text, digest] of examples) assert.equal(hex(sha256(utf8(text))), digest);
  const next = random(1);
  for (let length = 0; length < 200; length += 1) {
    const bytes = Uint8Array.from({ length }, () => 256 * next());
    assert.equal(
      hex(sha256(bytes)),
      createHash("sha256").update(bytes).digest("hex"),
      `${length} bytes`,
    );
  }
});

test("HMAC-SHA-256 of the examples of RFC 4231", () => {
  const fill = (byte, count) => new Uint8Array(count).fill(byte);
  const examples = [
    [
      fill(0x0b, 20),
      "Hi There",
      "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
    ],
    [
      utf8("Jefe"),
      "what do ya want for nothing?",
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ],
    [
      fill(0xaa, 20),
      fill(0xdd, 50),
      "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
    ],
    [
      fill(0xaa, 131),
      "Test Using Larger Than Block-Size Key - Hash Key First",
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ],
  ];
  for (const [key, message, code] of examples) {
    const bytes = typeof message === "string" ? utf8(message) : message;
    assert.equal(hex(hmac(key, bytes)), code);
  }
  for (let length = 1; length < 140; length += 1) {
    const key = fill(length, length);
    assert.equal(hex(hmac(key, utf8("x"))), createHmac("sha256", key).update("x").digest("hex"));
  }
});

// The examples of "Signature Calculations for the Authorization Header" and "Authenticating
// Requests: Using Query Parameters" in Amazon's S3 API reference.
const EXAMPLE_KEY = {
  access: "AKIAIOSFODNN7EXAMPLE",
  secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
  region: "us-east-1",
};
const EXAMPLE_TIME = new Date("2013-05-24T00:00:00Z");
const EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const endpoint = "https://examplebucket.s3.amazonaws.com";

test("signatures in headers are those of Amazon's examples", () => {
  const examples = [
    [
      { method: "GET", path: "/test.txt", headers: { Range: "bytes=0-9" } },
      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ],
    [
      { method: "GET", path: "/", query: { lifecycle: "" } },
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ],
    [
      { method: "GET", path: "/", query: { prefix: "J", "max-keys": "2" } },
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ],
    [
      {
        method: "PUT",
        path: pathOf("test$file.text"),
        payload: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        headers: {
          Date: "Fri, 24 May 2013 00:00:00 GMT",
          "x-amz-storage-class": "REDUCED_REDUNDANCY",
        },
      },
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ],
  ];
  for (const [request, signature] of examples) {
    const { headers } = signed({ payload: EMPTY, endpoint, ...request }, EXAMPLE_KEY, EXAMPLE_TIME);
    assert.equal(headers.authorization.split("Signature=")[1], signature, JSON.stringify(request));
  }
});

test("the signature of a link is that of Amazon's example", () => {
  const url = presigned(
    { method: "GET", endpoint, path: "/test.txt" },
    EXAMPLE_KEY,
    EXAMPLE_TIME,
    86400,
  );
  assert.match(
    url,
    /X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404$/,
  );
  assert.match(url, /^https:\/\/examplebucket.s3.amazonaws.com\/test.txt\?X-Amz-Algorithm=/);
});

test("paths and queries keep every character of a name", () => {
  assert.equal(pathOf("b", "a b+c/ü!'()*&?#%"), "/b/a%20b%2Bc/%C3%BC%21%27%28%29%2A%26%3F%23%25");
  const { url } = signed(
    { method: "GET", endpoint, path: "/", query: { prefix: "a b/+" } },
    EXAMPLE_KEY,
    EXAMPLE_TIME,
  );
  assert.equal(url, `${endpoint}/?prefix=a%20b%2F%2B`);
});
