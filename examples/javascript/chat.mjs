// The openai JavaScript SDK against kaminari: a question about a picture, whole and as a stream.
// `npm install`, then `node chat.mjs`, in this folder; Node.js 20 or newer.
import { readFile } from "node:fs/promises";
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "not-needed",
});
const model = (await client.models.list()).data[0].id;
const picture = await readFile(new URL("../receipt.png", import.meta.url));
const url = `data:image/png;base64,${picture.toString("base64")}`;
const ask = (text) => ({
  model,
  messages: [{ role: "user", content: [{ type: "image_url", image_url: { url } }, { type: "text", text }] }],
  temperature: 0,
});

const answer = await client.chat.completions.create(ask("What is the total?"));
console.log("total:", answer.choices[0].message.content);

const stream = await client.chat.completions.create({ ...ask("Read the text."), stream: true });
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
console.log();
