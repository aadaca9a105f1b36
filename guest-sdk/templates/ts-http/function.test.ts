// Run with `npm test`; needs no node.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Request } from "weir/http";
import { handle } from "./function.ts";

test("shouting is in capitals", async () => {
  assert.equal(await handle(new Request("/shout", { method: "POST", body: "grüezi" })), "GRÜEZI");
});
