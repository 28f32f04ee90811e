// One call with OpenAI's library for Node; prints what became of it as one line of JSON.
import OpenAI from "openai";

const [baseURL, apiKey, what] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const ask = { model: "sim", max_tokens: 5, messages: [{ role: "user", content: "hello" }] };

async function tell() {
  if (what === "answer") {
    const answer = await client.chat.completions.create(ask);
    return { tokens: answer.usage.completion_tokens };
  }
  if (what === "stream") {
    let pieces = 0;
    for await (const chunk of await client.chat.completions.create({ ...ask, stream: true }))
      pieces += chunk.choices[0]?.delta?.content ? 1 : 0;
    return { pieces };
  }
  if (what === "leave") {
    const stream = await client.chat.completions.create({ ...ask, max_tokens: 4000, stream: true });
    for await (const _ of stream) break;
    return { left: stream.controller.signal.aborted };
  }
  if (what === "tools") {
    const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
    const runner = client.chat.completions.stream({ ...ask, tools });
    const message = await runner.finalMessage();
    return message.tool_calls[0].function;
  }
  return { tokens: (await client.chat.completions.create({ ...ask, model: "none" })).usage };
}

try {
  console.log(JSON.stringify(await tell()));
} catch (error) {
  console.log(
    JSON.stringify({
      error: error.constructor.name,
      status: error.status,
      code: error.code,
      retryAfter: error.headers?.get?.("retry-after"),
    }),
  );
}
