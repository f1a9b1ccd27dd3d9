// What grammars generate, checked by ajv: check.mjs GENERATOR, a program that prints {"schema": i, "text": "…"} for
// schema i of schemas.json, a line a document (tests/text/random_answers.cpp). Every text must be JSON that fits its
// schema, and every schema must have its documents. Prints the first misfits and exits 1 where there is one.
import { spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const here = (name) => fileURLToPath(new URL(name, import.meta.url))
if (!existsSync(here('node_modules'))) {
  console.log('skipped: tests/npm/schemas/node_modules is absent: run npm ci there')
  process.exit(77)
}
const { default: Ajv } = await import('ajv/dist/2020.js')
const { default: addFormats } = await import('ajv-formats')

const wanted = 50
const ajv = new Ajv({ strict: false, allErrors: true, ownProperties: true })
addFormats(ajv, { mode: 'full' })
const schemas = JSON.parse(readFileSync(here('schemas.json'), 'utf8'))
const validators = schemas.map(({ schema }) => ajv.compile(schema))
const counts = schemas.map(() => 0)
const distinct = schemas.map(() => new Set())

let misfits = 0
const misfit = (line) => { if (++misfits <= 20) console.error('MISFIT ' + line) }
const generator = spawn(process.argv[2], [here('schemas.json'), String(wanted), ...process.argv.slice(3)],
  { stdio: ['ignore', 'pipe', 'inherit'] })
const ended = new Promise((resolve) => generator.once('close', resolve))
for await (const line of createInterface({ input: generator.stdout })) {
  const { schema: i, text } = JSON.parse(line)
  ++counts[i]
  distinct[i].add(text)
  let value
  try {
    value = JSON.parse(text)
  } catch (error) {
    misfit(`${schemas[i].name}: ${error.message}: ${text}`)
    continue
  }
  if (!validators[i](value)) misfit(`${schemas[i].name}: ${ajv.errorsText(validators[i].errors)}: ${text}`)
}
if (await ended !== 0) misfit(`the generator ended with ${await ended}`)
schemas.forEach(({ name }, i) => { if (counts[i] < wanted) misfit(`${name}: ${counts[i]} documents of ${wanted}`) })
const total = counts.reduce((a, b) => a + b)
console.log(`${schemas.length} schemas, ${total} documents (${distinct.reduce((a, s) => a + s.size, 0)} distinct), ${misfits} misfits`)
process.exit(misfits ? 1 : 0)
