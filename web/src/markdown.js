// Markdown as models write it, to HTML. Everything is escaped before any tag is made, and links are limited to http, https
// and mailto, so that a reply cannot run anything. Repeats are bounded, so that no reply takes time out of proportion.

const escapes = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' }
export const escape = (s) => s.replace(/[&<>"']/g, (c) => escapes[c])

const keywords = new Set(
  ('and as async await auto break case catch class const continue def default del do elif else enum except export extends ' +
    'false False finally fn for from func function go if impl import in interface is lambda let loop match mod mut namespace new nil ' +
    'None not null nullptr of or override package pass private protected pub public raise return self static struct super ' +
    'switch template this throw trait true True try type typedef typename use using var virtual void where while with yield ' +
    'select insert update delete create table join group order by').split(' '),
)
const code = /(\/\/[^\n]*|#[^\n]*|\/\*[\s\S]*?\*\/|--[^\n]*)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\]){0,5000}`)|(\b\d[\w.]*\b)|([A-Za-z_]\w*)/g
const plain = new Set(['', 'text', 'txt', 'plain', 'console', 'output', 'md', 'markdown', 'diff'])

// Comments, strings, numbers and keywords, whatever the language.
export function highlight(source, language) {
  if (plain.has(language)) return escape(source)
  let out = ''
  let at = 0
  for (const m of source.matchAll(code)) {
    let kind = m[1] ? 'c' : m[2] ? 's' : m[3] ? 'n' : keywords.has(m[4]) ? 'k' : ''
    if (m[1]?.startsWith('#') && !/^(py|python|sh|bash|shell|zsh|ruby|rb|yaml|yml|toml|r|perl|make|dockerfile|cmake)$/.test(language)) kind = ''
    if (m[1]?.startsWith('--') && !/^(sql|lua|haskell|hs)$/.test(language)) kind = ''
    out += escape(source.slice(at, m.index))
    out += kind ? `<i class="${kind}">${escape(m[0])}</i>` : escape(m[0])
    at = m.index + m[0].length
  }
  return out + escape(source.slice(at))
}

function inline(text) {
  const kept = []
  const keep = (html) => `\u0000${kept.push(html) - 1}\u0000`
  let s = text.replace(/\u0000/g, '')
  s = s.replace(/(`+)([\s\S]*?[^`])\1(?!`)/g, (_, __, body) => keep(`<code>${escape(body.replace(/^ (.*) $/, '$1'))}</code>`))
  s = s.replace(/\\([\\`*_{}[\]()#+\-.!|~<>])/g, (_, c) => keep(escape(c)))
  s = s.replace(/!?\[([^\][]{0,500})\]\(\s*<?((?:https?:|mailto:)[^\s)>]{1,2000})>?(?:\s+"[^"]{0,500}")?\s*\)/g, (_, label, url) =>
    keep(`<a href="${escape(url)}" target="_blank" rel="noopener noreferrer">${escape(label) || escape(url)}</a>`))
  s = s.replace(/<?(https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?])>?/g, (_, url) =>
    keep(`<a href="${escape(url)}" target="_blank" rel="noopener noreferrer">${escape(url)}</a>`))
  s = escape(s)
  s = s.replace(/\*\*\*([^\s*](?:[^*]*[^\s*])?)\*\*\*/g, '<strong><em>$1</em></strong>')
  s = s.replace(/\*\*([^\s*](?:[\s\S]{0,2000}?[^\s])?)\*\*/g, '<strong>$1</strong>')
  s = s.replace(/\*([^\s*](?:[^*]*[^\s*])?)\*/g, '<em>$1</em>')
  s = s.replace(/(^|[^\w])_([^\s_](?:[^_]*[^\s_])?)_(?!\w)/g, '$1<em>$2</em>')
  s = s.replace(/~~([^~]+)~~/g, '<del>$1</del>')
  s = s.replace(/(?<! ) {2,}\n|\\\n/g, '<br>')
  while (/\u0000\d+\u0000/.test(s)) s = s.replace(/\u0000(\d+)\u0000/g, (_, i) => kept[i])
  return s
}

const fence = /^( {0,3})(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/
const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/
const rule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/
const divider = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/
const cells = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, '|'))

// Lists and quotes deeper than this are text: each level costs its whole inside, and models fall into loops.
const deepest = 16

function blocks(lines, depth = 0) {
  if (depth > deepest) return `<p>${inline(lines.join('\n'))}</p>`
  let out = ''
  let at = 0
  const starts = (line) => fence.test(line) || /^ {0,3}#{1,6}\s/.test(line) || item.test(line) || /^ {0,3}>/.test(line) || rule.test(line)
  while (at < lines.length) {
    const line = lines[at]
    if (!line.trim()) {
      at++
      continue
    }
    let m = fence.exec(line)
    if (m) {
      const body = []
      const close = new RegExp(`^ {0,3}${m[2][0] === '`' ? '`' : '~'}{${m[2].length},}\\s*$`)
      const indent = new RegExp(`^ {0,${m[1].length}}`)
      for (at++; at < lines.length && !close.test(lines[at]); at++) body.push(lines[at].replace(indent, ''))
      at++
      const language = m[3].toLowerCase()
      out += `<figure class="code"><figcaption><span>${escape(language || 'text')}</span><button type="button" data-copy>Copy</button></figcaption><pre><code>${highlight(body.join('\n'), language)}</code></pre></figure>`
      continue
    }
    m = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(line)
    if (m) {
      out += `<h${m[1].length}>${inline(m[2])}</h${m[1].length}>`
      at++
      continue
    }
    if (rule.test(line)) {
      out += '<hr>'
      at++
      continue
    }
    if (/^ {0,3}>/.test(line)) {
      const body = []
      for (; at < lines.length && (/^ {0,3}>/.test(lines[at]) || (lines[at].trim() && body.length && !starts(lines[at]))); at++) body.push(lines[at].replace(/^ {0,3}> ?/, ''))
      out += `<blockquote>${blocks(body, depth + 1)}</blockquote>`
      continue
    }
    m = item.exec(line)
    if (m) {
      const ordered = /\d/.test(m[2])
      const first = ordered ? parseInt(m[2]) : 1
      const base = m[1].length
      const items = []
      let loose = false
      while (at < lines.length) {
        const n = item.exec(lines[at])
        if (!n || n[1].length > base + 1 || n[1].length < base || /\d/.test(n[2]) !== ordered) break
        const inner = [n[3]]
        const width = n[1].length + n[2].length + 1
        for (at++; at < lines.length; at++) {
          const l = lines[at]
          const spaces = l.match(/^\s*/)[0].length
          if (!l.trim()) {
            const next = lines.slice(at + 1).find((x) => x.trim())
            const more = next !== undefined && next.match(/^\s*/)[0].length >= Math.min(width, base + 2)
            if (!more) {
              const sibling = next !== undefined && item.exec(next)
              if (sibling && sibling[1].length === base && /\d/.test(sibling[2]) === ordered) loose = true
              break
            }
            inner.push('')
            continue
          }
          if (spaces >= Math.min(width, base + 2)) inner.push(l.slice(Math.min(spaces, width)))
          else if (item.test(l) || starts(l)) break
          else inner.push(l)
        }
        while (at < lines.length && !lines[at].trim()) at++
        items.push(inner)
      }
      const tag = ordered ? 'ol' : 'ul'
      out += `<${tag}${ordered && first !== 1 ? ` start="${first}"` : ''}>`
      for (const inner of items) {
        const task = /^\[([ xX])\]\s+/.exec(inner[0])
        if (task) inner[0] = inner[0].slice(task[0].length)
        let html = blocks(inner, depth + 1)
        if (!loose) html = html.replace(/^<p>([\s\S]*?)<\/p>/, '$1')
        out += `<li>${task ? `<input type="checkbox" disabled${task[1] === ' ' ? '' : ' checked'}> ` : ''}${html}</li>`
      }
      out += `</${tag}>`
      continue
    }
    if (line.includes('|') && at + 1 < lines.length && lines[at + 1].includes('-') && divider.test(lines[at + 1])) {
      const sides = cells(lines[at + 1]).map((c) => (/^:.*:$/.test(c) ? ' class="mid"' : /:$/.test(c) ? ' class="end"' : ''))
      out += `<div class="table"><table><thead><tr>${cells(line).map((c, i) => `<th${sides[i] ?? ''}>${inline(c)}</th>`).join('')}</tr></thead><tbody>`
      for (at += 2; at < lines.length && lines[at].includes('|') && lines[at].trim(); at++) out += `<tr>${cells(lines[at]).map((c, i) => `<td${sides[i] ?? ''}>${inline(c)}</td>`).join('')}</tr>`
      out += '</tbody></table></div>'
      continue
    }
    const body = [line]
    for (at++; at < lines.length && lines[at].trim() && !starts(lines[at]); at++) body.push(lines[at])
    out += `<p>${inline(body.join('\n'))}</p>`
  }
  return out
}

export const markdown = (text) => blocks(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'))
