// The Vercel AI SDK with @ai-sdk/openai-compatible: text, streams, objects, tools, pictures, errors, leaving.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { baseURL, CAPITAL, frees, model as name, Place, READ, Receipt, receipt } from "./server.mjs";

const kaminari = createOpenAICompatible({
  name: "kaminari",
  baseURL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = kaminari(name);
const common = { model, temperature: 0, maxRetries: 0 };

const about = (text) => [
  { role: "user", content: [{ type: "image", image: receipt }, { type: "text", text }] },
];
const weather = (execute) => tool({ description: "The weather of a city.", inputSchema: Place, execute });

test("generateText with usage", async () => {
  const answer = await generateText({ ...common, system: "Be brief.", prompt: CAPITAL, maxOutputTokens: 20 });
  assert.ok(answer.text.length > 0);
  assert.equal(answer.finishReason, "stop");
  assert.ok(answer.usage.inputTokens > 0);
  assert.ok(answer.usage.outputTokens > 0);
  assert.equal((await generateText({ ...common, prompt: CAPITAL })).text, "Paris");
});

test("streamText of a picture joins to the whole answer, with usage", async () => {
  const messages = about("Read the text.");
  const stream = streamText({ ...common, messages });
  const pieces = [];
  for await (const piece of stream.textStream) pieces.push(piece);
  const whole = await generateText({ ...common, messages });
  assert.ok(pieces.length > 10);
  assert.equal(pieces.join(""), whole.text);
  assert.ok(whole.text.startsWith("FRESH MART\n"));
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test("generateObject and streamObject", async () => {
  const asked = { ...common, schema: Receipt, messages: about("Answer in JSON: total and date.") };
  assert.deepEqual((await generateObject(asked)).object, READ);
  const stream = streamObject(asked);
  const partial = [];
  for await (const object of stream.partialObjectStream) partial.push(object);
  assert.deepEqual(partial.at(-1), READ);
  assert.deepEqual(await stream.object, READ);
});

test("Output.object and Output.choice of generateText", async () => {
  const messages = about("Answer in JSON: total and date.");
  const { output } = await generateText({ ...common, messages, output: Output.object({ schema: Receipt }) });
  assert.deepEqual(output, READ);
  const options = ["cat", "dog"];
  const chosen = await generateText({ ...common, prompt: "Which?", output: Output.choice({ options }) });
  assert.ok(options.includes(chosen.output));
});

for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
  test(`a forced tool, whole and as a stream: ${toolChoice.type ?? toolChoice}`, async () => {
    const asked = { ...common, prompt: "What is the weather in Rome?", tools: { get_weather: weather() }, toolChoice };
    const answer = await generateText(asked);
    assert.equal(answer.finishReason, "tool-calls");
    assert.equal(answer.toolCalls[0].toolName, "get_weather");
    assert.ok(Place.safeParse(answer.toolCalls[0].input).success);
    const streamed = await streamText(asked).toolCalls;
    assert.deepEqual(streamed.map((call) => call.input), answer.toolCalls.map((call) => call.input));
  });
}

test("a tool is run and its result goes back", async () => {
  const cities = [];
  const answer = await generateText({
    ...common,
    prompt: "What is the weather in Rome?",
    tools: { get_weather: weather(({ city }) => (cities.push(city), "sunny")) },
    toolChoice: { type: "tool", toolName: "get_weather" },
    stopWhen: stepCountIs(2),
  });
  assert.ok(cities.length >= 1);
  assert.equal(answer.steps[0].toolResults[0].output, "sunny");
  assert.ok(answer.steps.length >= 2);
});

test("leaving a stream frees its slot", async () => {
  const endless = { ...common, prompt: "hello", providerOptions: { kaminari: { ignore_eos: true } } };
  await frees(async () => {
    const stop = new AbortController();
    const stream = streamText({ ...endless, abortSignal: stop.signal });
    for await (const piece of stream.textStream) {
      if (piece) break;
    }
    stop.abort();
  });
  await frees(async () => {
    await assert.rejects(generateText({ ...endless, abortSignal: AbortSignal.timeout(300) }));
  });
});

test("errors are APICallErrors with the server's words", async () => {
  await assert.rejects(generateText({ ...common, prompt: "hi", temperature: 9 }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.equal(error.isRetryable, false);
    assert.match(error.message, /temperature/);
    return true;
  });
  await assert.rejects(generateText({ ...common, model: kaminari("gpt-4o"), prompt: "hi" }), (error) => {
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /kaminari-demo/);
    return APICallError.isInstance(error);
  });
});
