// Conversations and settings, in the browser's own storage.

const chats = 'quern.chats'
const prefs = 'quern.settings'

export const defaults = {
  theme: 'auto', key: '', model: '', system: '', thinking: true, effort: '', temperature: '', top_p: '', top_k: '', max_tokens: '', seed: '', stop: '', tools: '', panel: false,
}

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise
  } catch {
    return otherwise
  }
}

export const id = () => crypto.randomUUID?.() ?? Math.random().toString(36).slice(2) + Date.now().toString(36)

export const loadChats = () => read(chats, []).filter(isChat)
export const loadSettings = () => ({ ...defaults, ...read(prefs, {}) })
// Throws where the browser's storage is full.
export const saveChats = (list) => localStorage.setItem(chats, JSON.stringify(list))
export const saveSettings = (s) => localStorage.setItem(prefs, JSON.stringify(s))

const isMessage = (m) => m && typeof m === 'object' && ['user', 'assistant', 'tool', 'system'].includes(m.role)
export const isChat = (c) => c && typeof c === 'object' && typeof c.title === 'string' && Array.isArray(c.messages) && c.messages.every(isMessage)

export function exportFile(list) {
  const url = URL.createObjectURL(new Blob([JSON.stringify({ quern: 1, chats: list }, null, 1)], { type: 'application/json' }))
  const a = document.createElement('a')
  a.href = url
  a.download = `quern-${new Date().toISOString().slice(0, 10)}.json`
  a.click()
  URL.revokeObjectURL(url)
}

// The conversations of a file that exportFile wrote, with new ids. Throws where it holds none.
export async function importFile(file) {
  const data = JSON.parse(await file.text())
  const list = (Array.isArray(data) ? data : data.chats ?? []).filter(isChat)
  if (!list.length) throw new Error(`${file.name}: no conversations in it`)
  return list.map((c) => ({ ...c, id: id(), time: c.time ?? Date.now() }))
}
