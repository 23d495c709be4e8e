// A chat by Socket.IO: `chat.cjs serve PORT`, or `chat.cjs talk URL` as its client. The client begins
// with polling, and goes on by WebSocket. At /echo is a plain WebSocket.
const [, , role, where] = process.argv;

if (role === "serve") {
  const http = require("node:http");
  const answer = (_, response) => response.end("up");
  const server = http.createServer(answer).listen(Number(where), "127.0.0.1");
  new (require("socket.io").Server)(server).on("connection", (socket) => {
    socket.on("say", (text, done) => done(text.toUpperCase()));
  });
  const echo = new (require("ws").WebSocketServer)({ noServer: true });
  server.on("upgrade", (request, socket, head) => {
    if (request.url !== "/echo") return;
    echo.handleUpgrade(request, socket, head, (plain) => {
      plain.on("message", (data, isBinary) => plain.send(data, { binary: isBinary }));
    });
  });
} else {
  const options = { transports: ["polling", "websocket"], withCredentials: true, forceNew: true };
  const talk = (n) => new Promise((resolve, reject) => {
    const socket = require("socket.io-client").io(where, options);
    const limit = setTimeout(() => reject(new Error(`${n} does not end`)), 20000);
    const upgraded = new Promise((heard) => {
      socket.io.on("open", () => socket.io.engine.once("upgrade", heard));
    });
    socket.on("connect_error", reject);
    socket.emit("say", `hello ${n}`, async (first) => {
      await upgraded;
      socket.emit("say", "x".repeat(200000), (second) => {
        clearTimeout(limit);
        const isRight = first === `HELLO ${n}` && second === "X".repeat(200000);
        socket.close();
        return isRight ? resolve() : reject(new Error(first));
      });
    });
  });
  Promise.all(Array.from({ length: 20 }, (_, n) => talk(n))).then(
    () => process.exit(0),
    (error) => { console.error(error); process.exit(1); },
  );
}
