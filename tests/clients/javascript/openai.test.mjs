// The openai JavaScript SDK: chat, streams and their helpers, pictures, tools, parse, errors, leaving.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { baseURL, CAPITAL, frees, model, Place, READ, Receipt, receiptURL } from "./server.mjs";

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const chat = client.chat.completions;

const says = (text, url) => [
  {
    role: "user",
    content: [...(url ? [{ type: "image_url", image_url: { url } }] : []), { type: "text", text }],
  },
];
const weather = zodFunction({ name: "get_weather", description: "The weather of a city.", parameters: Place });

test("lists and finds the model", async () => {
  const ids = [];
  for await (const found of client.models.list()) ids.push(found.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).owned_by, "kaminari");
});

test("a chat with usage", async () => {
  const answer = await chat.create({ model, messages: says(CAPITAL), temperature: 0, max_completion_tokens: 20 });
  assert.equal(answer.choices[0].message.content, "Paris");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.ok(answer._request_id);
});

test("a stream of a picture joins to the whole answer, with usage", async () => {
  const asked = { model, messages: says("Read the text.", receiptURL), temperature: 0 };
  const stream = await chat.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const whole = await chat.create(asked);
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(text.startsWith("FRESH MART\n"));
  assert.deepEqual(usage, whole.usage);
});

test("the stream helper", async () => {
  const stream = chat.stream({ model, messages: says(CAPITAL), temperature: 0 });
  const pieces = [];
  stream.on("content", (delta) => pieces.push(delta));
  assert.equal(await stream.finalContent(), "Paris");
  assert.equal(pieces.join(""), "Paris");
});

test("parse with a zod schema, whole and as a stream", async () => {
  const asked = {
    model,
    messages: says("Answer in JSON: total and date.", receiptURL),
    temperature: 0,
    response_format: zodResponseFormat(Receipt, "receipt"),
  };
  assert.deepEqual((await chat.parse(asked)).choices[0].message.parsed, READ);
  const final = await chat.stream(asked).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.parsed, READ);
});

for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
  test(`a forced tool and its result: ${tool_choice.type ?? tool_choice}`, async () => {
    const messages = says("What is the weather in Rome?");
    const asked = { model, messages, temperature: 0, tools: [weather], tool_choice, parallel_tool_calls: false };
    const answer = await chat.parse(asked);
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "get_weather");
    assert.ok(Place.safeParse(call.function.parsed_arguments).success);
    const streamed = await chat.stream(asked).finalChatCompletion();
    assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
    const history = [...messages, answer.choices[0].message, result];
    const after = await chat.create({ ...asked, messages: history, tool_choice: "none" });
    assert.equal(after.choices[0].message.tool_calls, undefined);
  });
}

test("runTools calls the function and sends its result", async () => {
  const cities = [];
  const run = zodFunction({
    name: "get_weather",
    parameters: Place,
    function: ({ city }) => {
      cities.push(city);
      return "sunny";
    },
  });
  const runner = chat.runTools(
    {
      model,
      messages: says("What is the weather in Rome?"),
      temperature: 0,
      tools: [run],
      tool_choice: { type: "function", function: { name: "get_weather" } },
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert.ok(cities.length >= 1);
  assert.ok(runner.messages.some((message) => message.role === "tool" && message.content === "sunny"));
});

test("leaving a stream frees its slot", async () => {
  const endless = { model, messages: says("hello"), stream: true, ignore_eos: true };
  await frees(async () => {
    const stream = await chat.create(endless);
    for await (const chunk of stream) if (chunk.choices[0]?.delta?.content) break;
  });
  await frees(async () => {
    const stream = await chat.create(endless);
    await stream[Symbol.asyncIterator]().next();
    stream.controller.abort();
  });
});

test("giving up on a whole answer frees its slot", async () => {
  await frees(async () => {
    const answer = chat.create({ model, messages: says("hello"), ignore_eos: true }, { signal: AbortSignal.timeout(300) });
    await assert.rejects(answer, OpenAI.APIUserAbortError);
  });
});

test("errors have the SDK's types", async () => {
  await assert.rejects(chat.create({ model, messages: says("hi"), temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(chat.create({ model: "gpt-4o", messages: says("hi"), stream: true }), OpenAI.NotFoundError);
  await assert.rejects(chat.create({ model, messages: says("hi ".repeat(3000)) }), (error) => {
    assert.equal(error.code, "context_length_exceeded");
    return error instanceof OpenAI.BadRequestError;
  });
  await assert.rejects(
    chat.parse({
      model,
      messages: says("hi"),
      max_completion_tokens: 2,
      response_format: zodResponseFormat(Receipt, "receipt"),
    }),
    OpenAI.LengthFinishReasonError,
  );
});
