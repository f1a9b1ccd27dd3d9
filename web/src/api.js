// The server's routes that the page uses, all on its own origin.

function headers(key) {
  const h = { 'Content-Type': 'application/json' }
  if (key) h.Authorization = `Bearer ${key}`
  return h
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`
  try {
    const body = await response.json()
    message = body.error?.message ?? body.message ?? message
  } catch {
    // no JSON in it: the status line has to do
  }
  return new Error(message)
}

// The data of each event of an event stream.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  try {
    while (true) {
      const { value, done } = await reader.read()
      if (done) return
      rest += value
      const parts = rest.split(/\r?\n\r?\n/)
      rest = parts.pop()
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((l) => l.startsWith('data:')).map((l) => l.slice(5).trimStart()).join('\n')
        if (data) yield data
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

// Streams a chat completion's chunks.
export async function* chat(request, key, signal) {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST',
    headers: headers(key),
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  })
  if (!response.ok) throw await failure(response)
  for await (const data of events(response.body)) {
    if (data === '[DONE]') return
    const chunk = JSON.parse(data)
    if (chunk.error) throw new Error(chunk.error.message ?? 'the server reported an error')
    yield chunk
  }
}

export async function models(key) {
  const response = await fetch('/v1/models', { headers: headers(key) })
  if (!response.ok) throw await failure(response)
  return (await response.json()).data
}

export async function health() {
  const response = await fetch('/health')
  return response.json()
}

// Prometheus text → name → value, summed over labels.
export async function metrics(key) {
  const response = await fetch('/metrics', { headers: headers(key) })
  if (!response.ok) throw await failure(response)
  const values = {}
  for (const line of (await response.text()).split('\n')) {
    const m = /^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)/.exec(line)
    if (m) values[m[1]] = (values[m[1]] ?? 0) + Number(m[2])
  }
  return values
}
