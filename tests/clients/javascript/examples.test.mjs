// The JavaScript example runs as it stands, in a copy that has these packages beside it.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));

test("examples/javascript/chat.mjs", () => {
  const folder = mkdtempSync(join(tmpdir(), "kaminari-example-"));
  try {
    const skip = (source) => !source.endsWith("node_modules");
    cpSync(path("../../../examples/javascript"), join(folder, "javascript"), { recursive: true, filter: skip });
    cpSync(path("../../../examples/receipt.png"), join(folder, "receipt.png"));
    symlinkSync(path("node_modules"), join(folder, "javascript", "node_modules"));
    const done = spawnSync(process.execPath, [join(folder, "javascript", "chat.mjs")], { encoding: "utf8" });
    assert.equal(done.status, 0, done.stderr);
    assert.match(done.stdout, /^total: 10\.85\nFRESH MART\n(.*\n)*TOTAL 10\.85\n$/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
