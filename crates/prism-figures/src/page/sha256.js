// SHA-256 (FIPS 180-4) and HMAC (RFC 2104).
//
// `crypto.subtle` does not exist in pages that were opened by http at an address, and the page
// has to sign requests there. It hashes only short texts, so speed does not matter.

const ROUNDS = 64;
const BLOCK_BYTES = 64;

const primes = [];
for (let number = 2; primes.length < ROUNDS; number += 1) {
  if (primes.every((prime) => number % prime !== 0)) primes.push(number);
}

// The first 32 bits of the fraction of a number.
const fraction = (number) => ((number - Math.floor(number)) * 2 ** 32) >>> 0;
const CONSTANTS = primes.map((prime) => fraction(Math.cbrt(prime)));
const START = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));

const rotate = (word, bits) => (word >>> bits) | (word << (32 - bits));

/** The bytes of a text in UTF-8. */
export const utf8 = (text) => new TextEncoder().encode(text);

/** Bytes in lower-case hexadecimal. */
export const hex = (bytes) =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The SHA-256 of bytes, as 32 bytes. */
export function sha256(bytes) {
  const padded = pad(bytes);
  const state = Uint32Array.from(START);
  for (let at = 0; at < padded.byteLength; at += BLOCK_BYTES) compress(state, padded, at);
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, index) => digest.setUint32(4 * index, word));
  return new Uint8Array(digest.buffer);
}

/** The HMAC-SHA-256 of a message, as 32 bytes. */
export function hmac(key, message) {
  const block = new Uint8Array(BLOCK_BYTES);
  block.set(key.length > BLOCK_BYTES ? sha256(key) : key);
  const inner = sha256(
    joined(
      block.map((byte) => byte ^ 0x36),
      message,
    ),
  );
  return sha256(
    joined(
      block.map((byte) => byte ^ 0x5c),
      inner,
    ),
  );
}

function joined(first, second) {
  const all = new Uint8Array(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}

// The message, a 1 bit, zeros, and the length in bits, in whole blocks.
function pad(bytes) {
  const blocks = Math.ceil((bytes.length + 9) / BLOCK_BYTES);
  const padded = new Uint8Array(blocks * BLOCK_BYTES);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setBigUint64(padded.length - 8, 8n * BigInt(bytes.length));
  return view;
}

function compress(state, message, at) {
  const words = new Uint32Array(ROUNDS);
  for (let i = 0; i < 16; i += 1) words[i] = message.getUint32(at + 4 * i);
  for (let i = 16; i < ROUNDS; i += 1) {
    const early = words[i - 15];
    const late = words[i - 2];
    const s0 = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
    const s1 = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < ROUNDS; i += 1) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const choice = (e & f) ^ (~e & g);
    const t1 = (h + s1 + choice + CONSTANTS[i] + words[i]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const t2 = (s0 + majority) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, index) => {
    state[index] += word;
  });
}
