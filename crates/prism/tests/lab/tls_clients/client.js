// Usage: client.js HOST PORT CA VERSION SUITE LIST DIRECTORY
// GETs the paths of LIST over one connection of Node's https, the n-th answer's
// body into DIRECTORY/n. Prints "VERSION SUITE" as negotiated.
"use strict";
const fs = require("fs");
const https = require("https");
const path = require("path");

const [host, port, ca, version, suite, list, directory] = process.argv.slice(2);
const agent = new https.Agent({
  keepAlive: true,
  maxSockets: 1,
  ca: fs.readFileSync(ca),
  minVersion: `TLSv${version}`,
  maxVersion: `TLSv${version}`,
  ciphers: suite,
});

function get(target) {
  return new Promise((resolve, reject) => {
    const request = https.get({ host, port, path: target, agent, timeout: 30000 }, (answer) => {
      // Given back to the agent at the end.
      const { socket } = answer;
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("error", reject);
      answer.on("end", () => {
        if (answer.statusCode !== 200) reject(new Error(`${target}: ${answer.statusCode}`));
        resolve({ body: Buffer.concat(pieces), socket });
      });
    });
    request.on("timeout", () => request.destroy(new Error(`${target}: timeout`)));
    request.on("error", reject);
  });
}

async function main() {
  const sockets = new Set();
  let said = "";
  const targets = fs.readFileSync(list, "utf8").split(/\s+/).filter(Boolean);
  for (const [n, target] of targets.entries()) {
    const { body, socket } = await get(target);
    sockets.add(socket.localPort);
    said = `${socket.getProtocol()} ${socket.getCipher().standardName}`;
    fs.writeFileSync(path.join(directory, String(n)), body);
  }
  if (sockets.size !== 1) throw new Error(`${sockets.size} connections`);
  console.log(said);
  agent.destroy();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
