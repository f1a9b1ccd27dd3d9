import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// One HTML file with scripts and styles inside it: the server embeds it and needs no other route.
function singleFile() {
  return {
    name: 'single-file',
    enforce: 'post',
    generateBundle(_, bundle) {
      const html = bundle['index.html']
      for (const [name, part] of Object.entries(bundle)) {
        if (name === 'index.html') continue
        const file = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
        if (part.type === 'chunk') {
          const code = part.code.replace(/<\/script/g, '<\\/script')
          html.source = html.source.replace(new RegExp(`<script[^>]*src="[^"]*${file}"[^>]*></script>`), '')
          html.source = html.source.replace('</body>', () => `<script type="module">${code}</script></body>`)
        } else if (name.endsWith('.css')) {
          html.source = html.source.replace(new RegExp(`<link[^>]*href="[^"]*${file}"[^>]*>`), () => `<style>${part.source}</style>`)
        } else {
          this.error(`${name} cannot be put into the page`)
        }
        delete bundle[name]
      }
    },
  }
}

export default defineConfig({
  plugins: [svelte(), singleFile()],
  build: { assetsInlineLimit: Infinity, cssCodeSplit: false, modulePreload: false, reportCompressedSize: false },
})
