/** Serves WebSockets, for tests, like ../echo-socket: the path selects how. */

import { StatusError } from "weir";
import { type Answer, httpFunction, type Request } from "weir/http";
import { protocols, type SocketHandler, upgradeWebSocket } from "weir/websocket";

const HANDLERS: Record<string, SocketHandler> = {
  async "/echo"(socket) {
    for await (const message of socket) await socket.send(message);
    console.log(`closed with ${socket.closed?.code} ${socket.closed?.reason}`);
  },
  async "/ticks"(socket) {
    const message = socket.receive().then((text) => (stopped = text ?? ""));
    let stopped: string | Uint8Array | undefined;
    for (let tick = 0; stopped === undefined; tick++) {
      await socket.send(String(tick));
      await slept(50);
    }
    await socket.send(await message);
  },
  async "/flood"(socket) {
    for (let sent = 1; ; sent++) {
      await socket.send(new Uint8Array(65_536));
      console.log(`sent ${sent}`);
    }
  },
  async "/close"(socket) {
    const [code, ...reason] = String(await socket.receive()).split(" ");
    await socket.close(Number(code), reason.join(" "));
  },
  "/fail"() {
    throw new Error("as asked");
  },
};

function handle(request: Request): Answer {
  if (request.path === "/refuse") throw new StatusError(403, "not you");
  const serve = HANDLERS[request.path];
  if (serve === undefined) throw new StatusError(404, `there is nothing at ${request.path}`);
  return upgradeWebSocket(request, serve, protocols(request).includes("echo") ? { protocol: "echo" } : {});
}

function slept(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

export const handler = httpFunction(handle);
