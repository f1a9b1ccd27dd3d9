// The page as its user meets it, in Chromium, against `quern serve MODEL --script script.json`.
//   node page_test.js QUERN MODEL [FOLDER for screenshots]
// Ends with 77, which ctest counts as skipped, where Chromium, the node modules or the page itself are missing.
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const [quern, model, shots] = process.argv.slice(2)
const here = dirname(fileURLToPath(import.meta.url))
function skip(why) {
  console.log(`skipped: ${why}`)
  process.exit(77)
}
const browserPath = '/usr/bin/chromium'
if (!existsSync(browserPath)) skip(`${browserPath} is missing; scripts/setup installs it`)
const { chromium } = await import('playwright-core').catch(() => skip('playwright-core is missing: run `npm ci` in tests/npm/page'))
let failures = 0
function expect(fact, holds, found = '') {
  console.log(`${holds ? 'ok  ' : 'FAIL'} ${fact}${holds ? '' : `\n     found: ${found}`}`)
  if (!holds) failures++
}

// The script, and replies that would stop a page that shows every token, or takes each for a level.
const script = JSON.parse(readFileSync(join(here, 'script.json'), 'utf8'))
const hard = { long: 'word '.repeat(12000), quotes: '> '.repeat(20000) + 'x', lists: '- '.repeat(20000) + 'x', brackets: '!['.repeat(20000) }
for (const [name, text] of Object.entries(hard)) script.replies.unshift({ match: `hard ${name}`, text: `</think>${text}`, step: 50 })
const scriptFile = join(mkdtempSync(join(tmpdir(), 'quern-page-')), 'script.json')
writeFileSync(scriptFile, JSON.stringify(script))
const server = spawn(quern, ['serve', model, '--script', scriptFile, '--port', '0', '--response-store', ':memory:'], { stdio: ['ignore', 'inherit', 'pipe'] })
const url = await new Promise((resolve, reject) => {
  let text = ''
  server.stderr.on('data', (data) => {
    text += data
    const m = /serving .* on (http:\/\/\S+)/.exec(text)
    if (m) resolve(m[1])
  })
  server.on('exit', (code) => reject(new Error(`quern serve ended with ${code}:\n${text}`)))
  setTimeout(() => reject(new Error(`quern serve did not start:\n${text}`)), 30000)
})

if (!(await (await fetch(url)).text()).startsWith('<')) {
  server.removeAllListeners('exit')
  server.kill('SIGTERM')
  skip('this build has no page: scripts/setup fills web/node_modules')
}
const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox', '--disable-gpu'] })
try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, acceptDownloads: true })
  const page = await context.newPage()
  const strangers = []
  const errors = []
  page.on('request', (r) => !r.url().startsWith(url) && !/^(data|blob):/.test(r.url()) && strangers.push(r.url()))
  page.on('pageerror', (e) => errors.push(e.message))
  page.on('dialog', (d) => d.accept())
  page.setDefaultTimeout(15000)
  const shot = async (name) => shots && (await page.screenshot({ path: join(shots, `${name}.png`) }))
  const box = page.getByRole('textbox', { name: 'Message' })
  const last = () => page.locator('article.assistant').last()
  const finished = () => page.getByRole('button', { name: 'Stop', exact: true }).waitFor({ state: 'detached' })
  async function ask(text) {
    await box.fill(text)
    await box.press('Enter')
    await page.getByRole('button', { name: 'Stop', exact: true }).waitFor()
  }

  await page.goto(url)
  expect('the page opens', (await page.title()) === 'Quern', await page.title())
  await page.keyboard.press('/')
  expect('a slash goes to the text box', await box.evaluate((e) => e === document.activeElement))

  // Send and stream.
  await ask('Show me some code')
  const seen = new Set()
  while (await page.getByRole('button', { name: 'Stop', exact: true }).isVisible()) {
    seen.add((await last().innerText()).length)
    await page.waitForTimeout(40)
  }
  expect('the reply streams', seen.size >= 4, [...seen].join(' '))
  expect('Markdown is shown', (await last().locator('h1').innerText()) === 'Title' && (await last().locator('ol > li').count()) === 2 && (await last().locator('ol ul li').count()) === 1 && (await last().locator('td').count()) === 2, await last().innerHTML())
  expect('code is shown as it was written', (await last().locator('pre code').innerText()).includes('return "<b>" + str(42)'), await last().locator('pre').innerText())
  expect('code is highlighted', (await last().locator('pre .k').first().innerText()) === 'def')
  const fold = last().locator('details.reasoning')
  expect('reasoning is folded', (await fold.count()) === 1 && !(await fold.evaluate((e) => e.open)))
  await fold.locator('summary').click()
  expect('and unfolds', await last().getByText('The user wants code.').isVisible())
  expect('figures are shown', /tokens · .*first after/.test(await last().locator('.stats').innerText()), await last().locator('.stats').innerText())
  await shot('reply')

  // Markup in a reply does nothing.
  await ask('Write markup')
  await finished()
  expect('markup in a reply is text', (await last().innerText()).includes('<img src=x') && (await last().locator('img, script, a').count()) === 0 && (await page.evaluate(() => window.pwned)) === undefined, await last().innerHTML())

  // Long replies, and such as a model in a loop writes: the page goes on.
  for (const name of Object.keys(hard)) {
    await page.getByRole('button', { name: 'New conversation' }).first().click()
    await page.evaluate(() => {
      let last = performance.now()
      window.gap = 0
      clearInterval(window.beat)
      window.beat = setInterval(() => {
        window.gap = Math.max(window.gap, performance.now() - last)
        last = performance.now()
      }, 20)
    })
    await box.fill(`hard ${name}`)
    await box.press('Enter')
    await last().locator('.stats').waitFor({ timeout: 60000 }).catch(() => {})
    const gap = await page.evaluate(() => window.gap)
    const shown = (await last().innerText()).length
    expect(`the page goes on beside a hard reply: ${name}`, gap < 1500 && shown > 10000, `stood still for ${gap} ms, ${shown} characters`)
  }

  // Stop, by button and by key.
  await page.getByRole('button', { name: 'New conversation' }).first().click()
  await page.getByRole('checkbox', { name: 'Think' }).uncheck()
  await ask('count without end')
  await last().getByText('one two').waitFor()
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  await finished()
  const stopped = await last().locator('.markdown').innerText()
  await page.waitForTimeout(300)
  expect('stop stops', (await last().locator('.markdown').innerText()) === stopped && (await last().locator('.stats').innerText()).includes('stopped'), await last().innerText())
  expect('thinking off gives no reasoning', (await last().locator('details').count()) === 0)
  await last().getByRole('button', { name: 'Regenerate' }).click()
  await last().getByText('one two').waitFor()
  await page.keyboard.press('Escape')
  await finished()
  expect('regenerate replaces the reply', (await page.locator('article').count()) === 2, await page.locator('article').count())
  await page.getByRole('checkbox', { name: 'Think' }).check()

  // Edit.
  await page.getByRole('button', { name: 'Edit', exact: true }).click()
  await page.getByRole('textbox', { name: 'Edit the message' }).fill('edited question')
  await page.getByRole('textbox', { name: 'Edit the message' }).press('Enter')
  await page.getByText('The edited answer.').waitFor()
  await finished()
  expect('an edited message is asked again', (await page.locator('article').count()) === 2 && (await page.locator('.bubble').innerText()) === 'edited question')

  // Tools.
  await page.getByRole('button', { name: 'Settings' }).click()
  await page.getByLabel('Tools (OpenAI').fill(JSON.stringify([{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }]))
  await shot('settings')
  await page.getByRole('button', { name: 'Done' }).click()
  await page.getByRole('button', { name: 'New conversation' }).first().click()
  await ask('What is the weather in Paris?')
  await finished()
  const call = last().locator('section.call')
  expect('a tool call is shown', (await call.count()) === 1 && (await call.locator('b').innerText()) === 'get_weather' && (await call.locator('pre').innerText()).includes('"city": "Paris"'), await last().innerText())
  expect('no tag is in the answer', (await last().locator('.markdown').innerText()).trim() === 'Let me look.', await last().locator('.markdown').innerText())
  await call.getByRole('textbox').fill('21 degrees and rain')
  await call.getByRole('button', { name: 'Send result' }).click()
  await page.getByText('21 degrees', { exact: true }).waitFor()
  await finished()
  expect('the model uses the result', (await last().locator('strong').innerText()) === '21 degrees')

  // The panel.
  await page.getByRole('button', { name: 'Server', exact: true }).click()
  await page.locator('.panel .status', { hasText: 'ok' }).waitFor()
  await page.locator('.panel dd').first().waitFor()
  expect('the panel shows the server', (await page.locator('.panel dt').allInnerTexts()).includes('Generating'))
  await shot('tools')

  // History.
  const titles = await page.locator('.side .title').allInnerTexts()
  const before = await page.locator('article').allInnerTexts()
  await page.reload()
  await page.locator('article').first().waitFor()
  expect('a reload keeps the conversations', JSON.stringify(await page.locator('.side .title').allInnerTexts()) === JSON.stringify(titles) && (await page.locator('article').count()) === before.length, titles.join('|'))
  expect('and the settings', (await page.evaluate(() => JSON.parse(localStorage.getItem('quern.settings')).tools)).includes('get_weather'))
  await page.getByRole('button', { name: 'Settings' }).click()
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export conversations' }).click()])
  const file = join(mkdtempSync(join(tmpdir(), 'quern-page-')), 'chats.json')
  await download.saveAs(file)
  expect('export writes all conversations', JSON.parse(readFileSync(file, 'utf8')).chats.length === titles.length)
  await page.getByRole('button', { name: 'Delete all' }).click()
  await page.locator('input[type=file]').setInputFiles(file)
  await page.locator('article').first().waitFor()
  expect('import brings them back', (await page.locator('.side .title').count()) === titles.length)

  // Dark, and on a phone.
  await page.emulateMedia({ colorScheme: 'dark' })
  const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  expect('dark follows the system', paper === 'rgb(26, 25, 23)', paper)
  await page.setViewportSize({ width: 390, height: 844 })
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
  expect('a phone shows no sideways scroll', overflow <= 0, overflow)
  await page.locator('.panel').getByRole('button', { name: 'Close the server panel' }).click()
  await page.locator('.bar').getByRole('button', { name: 'Conversations' }).click()
  await page.locator('.side .title').last().click()
  await page.getByText('Title').first().waitFor()
  await page.waitForTimeout(300)
  await shot('phone-dark')

  expect('nothing is asked of another origin', strangers.length === 0, strangers.join(' '))
  expect('no script failed', errors.length === 0, errors.join('\n'))
} finally {
  await browser.close()
  server.removeAllListeners('exit')
  server.kill('SIGTERM')
}
console.log(failures ? `${failures} failed` : 'all passed')
process.exit(failures ? 1 : 0)
