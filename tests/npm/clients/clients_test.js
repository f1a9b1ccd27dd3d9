// Real clients against `quern serve MODEL --script`: usage clients_test.js QUERN MODEL. Each check says what it checks;
// the first that fails ends the run.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import path from 'node:path'
import OpenAI from 'openai'
import Anthropic from '@anthropic-ai/sdk'
import { generateText, streamText, tool, stepCountIs, Output } from 'ai'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { createAnthropic } from '@ai-sdk/anthropic'
import { ChatOpenAI } from '@langchain/openai'
import { ChatAnthropic } from '@langchain/anthropic'
import { createAgent, tool as langchainTool } from 'langchain'
import { z } from 'zod'

const [quern, model] = process.argv.slice(2)
const key = 'test-key'
const here = path.dirname(fileURLToPath(import.meta.url))
const greeting = 'Hello, world! \u{1F600}'
const answer = 'It is 21 degrees in Oslo.'
const weather = 'What is the weather in Oslo?'

const server = spawn(quern, ['serve', model, '--script', path.join(here, 'script.json'), '--port', '0',
  '--api-key', key], { stdio: ['ignore', 'inherit', 'pipe'] })
const exited = new Promise((resolve) => server.once('exit', resolve))
const base = await new Promise((resolve, reject) => {
  let log = ''
  server.stderr.on('data', (text) => {
    log += text
    const found = log.match(/ on (http:\S+)/)
    if (found) resolve(found[1])
  })
  exited.then((code) => reject(new Error(`quern ended with ${code}: ${log}`)))
})
const openaiUrl = base + '/v1'

let checks = 0
async function check(name, body) {
  try {
    await body()
  } catch (error) {
    console.error(`FAILED ${name}\n`, error)
    server.kill('SIGKILL')
    process.exit(1)
  }
  console.log(`ok ${++checks} ${name}`)
}

// ---- openai
const openai = new OpenAI({ baseURL: openaiUrl, apiKey: key, maxRetries: 0 })
const user = (content) => [{ role: 'user', content }]
const functions = [{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object',
  properties: { city: { type: 'string' } }, required: ['city'] } } }]

await check('openai: models', async () => {
  const ids = []
  for await (const m of openai.models.list()) ids.push(m.id)
  assert.ok(ids.length === 1 && ids[0].length > 0)
})
await check('openai: a wrong key is an AuthenticationError', async () => {
  const other = new OpenAI({ baseURL: openaiUrl, apiKey: 'wrong', maxRetries: 0 })
  await assert.rejects(async () => { await other.models.list() }, OpenAI.AuthenticationError)
})
await check('openai: a bad field is a BadRequestError with its name', async () => {
  await assert.rejects(openai.chat.completions.create({ model: 'm', messages: user('hi'), temperature: 9 }),
    (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature')
})
await check('openai: chat', async () => {
  const r = await openai.chat.completions.create({ model: 'm', messages: user('hi') })
  assert.equal(r.choices[0].message.content, greeting)
  assert.equal(r.choices[0].message.reasoning_content, 'A greeting.')
  assert.equal(r.usage.prompt_tokens_details.cached_tokens, 4)
})
await check('openai: chat, streamed with usage', async () => {
  let text = '', usage
  for await (const c of await openai.chat.completions.create({ model: 'm', messages: user('hi'), stream: true,
    stream_options: { include_usage: true } })) {
    text += c.choices[0]?.delta?.content ?? ''
    usage = c.usage ?? usage
  }
  assert.equal(text, greeting)
  assert.ok(usage.completion_tokens > 0)
})
for (const streamed of [false, true])
  await check(`openai: a tool loop, ${streamed ? 'streamed' : 'whole'}`, async () => {
    const messages = user(weather)
    const ask = async () => streamed
      ? openai.chat.completions.stream({ model: 'm', messages, tools: functions }).finalMessage()
      : (await openai.chat.completions.create({ model: 'm', messages, tools: functions })).choices[0].message
    const call = await ask()
    assert.equal(call.tool_calls.length, 1)
    assert.deepEqual(JSON.parse(call.tool_calls[0].function.arguments), { city: 'Oslo' })
    messages.push(call, { role: 'tool', tool_call_id: call.tool_calls[0].id, content: '21 degrees' })
    assert.equal((await ask()).content, answer)
  })
await check('openai: a stream can be aborted', async () => {
  const controller = new AbortController()
  const stream = await openai.chat.completions.create({ model: 'm', messages: user('count slowly'), stream: true },
    { signal: controller.signal })
  for await (const c of stream) if (c.choices[0]?.delta?.content) controller.abort()
})
await check('openai: completions', async () => {
  const r = await openai.completions.create({ model: 'm', prompt: 'hi', max_tokens: 100 })
  assert.ok(r.choices[0].text.endsWith(greeting))
})
for (const streamed of [false, true])
  await check(`openai: responses, a tool loop, ${streamed ? 'streamed' : 'whole'}`, async () => {
    const tools = [{ type: 'function', name: 'get_weather', parameters: functions[0].function.parameters, strict: false }]
    const ask = async (body) => streamed
      ? openai.responses.stream({ model: 'm', tools, ...body }).finalResponse()
      : openai.responses.create({ model: 'm', tools, ...body })
    const first = await ask({ input: weather })
    const call = first.output.find((item) => item.type === 'function_call')
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Oslo' })
    const second = await ask({ previous_response_id: first.id,
      input: [{ type: 'function_call_output', call_id: call.call_id, output: '21 degrees' }] })
    assert.equal(second.output_text, answer)
    assert.equal((await openai.responses.retrieve(second.id)).status, 'completed')
  })

// ---- anthropic
const anthropic = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 })
const anthropicTools = [{ name: 'get_weather', input_schema: functions[0].function.parameters }]
await check('anthropic: messages and count_tokens', async () => {
  const body = { model: 'm', messages: user('hi'), thinking: { type: 'enabled', budget_tokens: 1024 } }
  const m = await anthropic.messages.create({ ...body, max_tokens: 2000 })
  assert.deepEqual(m.content.map((b) => b.type), ['thinking', 'text'])
  assert.equal(m.content[1].text, greeting)
  const counted = await anthropic.messages.countTokens(body)
  assert.equal(counted.input_tokens, m.usage.input_tokens + m.usage.cache_read_input_tokens)
})
for (const streamed of [false, true])
  await check(`anthropic: a tool loop, ${streamed ? 'streamed' : 'whole'}`, async () => {
    const messages = user(weather)
    const ask = async () => {
      const body = { model: 'm', max_tokens: 2000, messages, tools: anthropicTools, thinking: { type: 'adaptive' } }
      return streamed ? anthropic.messages.stream(body).finalMessage() : anthropic.messages.create(body)
    }
    const call = await ask()
    assert.equal(call.stop_reason, 'tool_use')
    const use = call.content.find((b) => b.type === 'tool_use')
    assert.deepEqual(use.input, { city: 'Oslo' })
    messages.push({ role: 'assistant', content: call.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: '21 degrees' }] })
    const last = await ask()
    assert.equal(last.content.find((b) => b.type === 'text').text, answer)
    assert.equal(last.stop_reason, 'end_turn')
  })
await check('anthropic: a bad field is a BadRequestError', async () => {
  await assert.rejects(anthropic.messages.create({ model: 'm', max_tokens: 0, messages: user('hi') }),
    Anthropic.BadRequestError)
})

// ---- ai
const thinking = { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } }
const providers = {
  'ai openai (responses)': createOpenAI({ baseURL: openaiUrl, apiKey: key })('m'),
  'ai openai (chat)': createOpenAI({ baseURL: openaiUrl, apiKey: key }).chat('m'),
  'ai openai-compatible': createOpenAICompatible({ name: 'quern', baseURL: openaiUrl, apiKey: key })('m'),
  'ai anthropic': createAnthropic({ baseURL: openaiUrl, apiKey: key })('m')
}
for (const [name, provider] of Object.entries(providers)) {
  const tools = { get_weather: tool({ inputSchema: z.object({ city: z.string() }), execute: async () => '21 degrees' }) }
  const common = { model: provider, maxRetries: 0, providerOptions: thinking, maxOutputTokens: 4000 }
  await check(`${name}: text`, async () => assert.equal((await generateText({ ...common, prompt: 'hi' })).text.trim(), greeting))
  await check(`${name}: streamed text`, async () => {
    let text = ''
    for await (const part of streamText({ ...common, prompt: 'hi' }).textStream) text += part
    assert.equal(text.trim(), greeting)
  })
  await check(`${name}: a second turn knows what the first answered`, async () => {
    const turns = user('hi')
    turns.push(...(await generateText({ ...common, messages: turns })).response.messages, ...user('hi'))
    assert.equal((await generateText({ ...common, messages: turns })).text.trim(), 'Hello again.')
  })
  await check(`${name}: a tool loop`, async () => {
    const r = await generateText({ ...common, prompt: weather, tools, stopWhen: stepCountIs(3) })
    assert.equal(r.text.trim(), answer)
    assert.equal(r.steps.length, 2)
  })
  await check(`${name}: a streamed tool loop`, async () => {
    const r = streamText({ ...common, prompt: weather, tools, stopWhen: stepCountIs(3) })
    assert.equal((await r.text).trim(), answer)
  })
}
await check('ai openai (chat): an object by schema', async () => {
  const r = await generateText({ model: providers['ai openai (chat)'], maxRetries: 0, prompt: 'a person',
    output: Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) }) })
  assert.deepEqual(r.output, { name: 'Ada', age: 36 })
})

// ---- langchain
const models = {
  'langchain openai': new ChatOpenAI({ model: 'm', apiKey: key, maxRetries: 0, configuration: { baseURL: openaiUrl } }),
  'langchain anthropic': new ChatAnthropic({ model: 'm', apiKey: key, maxRetries: 0, maxTokens: 4000, anthropicApiUrl: base,
    thinking: { type: 'enabled', budget_tokens: 1024 } })
}
for (const [name, chat] of Object.entries(models)) {
  await check(`${name}: invoke`, async () => assert.ok((await chat.invoke('hi')).text.includes(greeting)))
  await check(`${name}: stream`, async () => {
    let text = ''
    for await (const part of await chat.stream('hi')) text += part.text
    assert.ok(text.includes(greeting))
  })
  await check(`${name}: an agent with a tool`, async () => {
    const agent = createAgent({ model: chat, tools: [langchainTool(async () => '21 degrees', { name: 'get_weather',
      description: 'The weather.', schema: z.object({ city: z.string() }) })] })
    const state = await agent.invoke({ messages: user(weather) })
    assert.ok(state.messages.at(-1).text.includes(answer))
  })
}

server.kill('SIGTERM')
assert.equal(await exited, 0, 'SIGTERM drains and ends with 0')
console.log(`${checks} checks passed`)
