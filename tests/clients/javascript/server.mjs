// What the tests share: the server's address, pictures, a tool, and a look at the server's slots.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { z } from "zod";

export const baseURL = process.env.OPENAI_BASE_URL;
export const model = "kaminari-demo";
export const CAPITAL = "What is the capital of France?";
export const RECEIPT_FILE = new URL("../../../examples/receipt.png", import.meta.url);
export const receipt = readFileSync(RECEIPT_FILE);
export const receiptURL = `data:image/png;base64,${receipt.toString("base64")}`;
export const READ = { total: "10.85", date: "2026-03-14" };

// closed, with few answers: the demo model would lose its way in anything more open
export const Receipt = z.strictObject({
  total: z.string().regex(/^\d{1,3}\.\d{2}$/),
  date: z.string().regex(/^\d{4}-\d{2}-\d{2}$/),
});
export const Place = z.strictObject({ city: z.enum(["Paris", "Rome"]) });

// far less than the 2,000 tokens of an answer that nobody stops take
const SOON_MS = 1000;

// how many requests run or wait, and how many choices came to an end by themselves
async function figures() {
  const text = await (await fetch(baseURL.replace(/\/v1$/, "/metrics"))).text();
  const sum = (pattern) => [...text.matchAll(pattern)].reduce((total, found) => total + Number(found[1]), 0);
  return {
    running: sum(/^kaminari_requests_(?:running|waiting) (\S+)/gm),
    finished: sum(/^kaminari_choices_finished_total\{.*\} (\S+)/gm),
  };
}

// `leave` leaves a stream: its slot must be free at once, its answer never having come to an end
export async function frees(leave) {
  const before = await figures();
  await leave();
  const deadline = Date.now() + SOON_MS;
  let now;
  while ((now = await figures()).running > 0) {
    assert.ok(Date.now() < deadline, "the slot was not freed");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.equal(now.finished, before.finished, "the answer ended by itself, so that nothing was shown");
}
