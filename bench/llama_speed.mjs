// Quern against llama.cpp (node-llama-cpp) on the same GGUF files, in one run: tokens a second of prefill and
// decode.
//
// It wants what scripts/test installs in tests/npm/llama, and a node of version 20 or later (tests/npm/node holds one).
//
//   node bench/llama_speed.mjs QUERN [--rounds N] [--threads N] [--prompt N] [--tokens N] FILE.gguf…
//
// The two take turns, one prefill of the prompt and one run of decoded tokens each, both from an empty
// context, so that what else the machine does meets both; the first turns warm up, and a file's ratios are
// those of the medians. llama.cpp keeps its defaults (float16 keys and values, its own choice of kernels and
// of repacked weights); its decode includes taking the likeliest id, ours (quern bench) does not: a scan of
// the vocabulary, under 1 % of these steps.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name, value) => {
  const at = args.indexOf(name);
  return at < 0 ? value : Number(args.splice(at, 2)[1]);
};
const rounds = option("--rounds", 3), threads = option("--threads", 2);
const prompt = option("--prompt", 512), tokens = option("--tokens", 16);
const [quern, ...files] = args;
if (!files.length) {
  console.error("usage: llama_speed.mjs QUERN [--rounds N] [--threads N] [--prompt N] [--tokens N] FILE.gguf…");
  process.exit(2);
}
const here = dirname(fileURLToPath(import.meta.url));
const packages = createRequire(resolve(here, "../tests/npm/llama/package.json"));
let llama_cpp;
try {
  llama_cpp = await import(pathToFileURL(packages.resolve("node-llama-cpp")));
} catch (e) {
  console.error(`llama_speed: node-llama-cpp: expected in tests/npm/llama (scripts/test installs it): ${e.message.split("\n")[0]}`);
  process.exit(1);
}
const { getLlama } = llama_cpp;
const median = (v) => v.sort((a, b) => a - b)[v.length >> 1];

function ours(file) {
  const run = spawnSync(quern, ["bench", file, "--threads", threads, "--kv", "f16", "--prompt", prompt, "--context", 0,
    "--steps", tokens, "--repeats", 1, "--json"].map(String), { encoding: "utf8", maxBuffer: 1 << 26 });
  if (run.status !== 0) throw new Error(`quern bench: ${run.stderr}`);
  const { prefill, decode } = JSON.parse(run.stdout);
  return { prefill: prefill[0].tokens_per_second, decode: decode[0].rows_per_second };
}

async function theirs(model) {
  const next = (token) => [token, { generateNext: { token: true, options: { temperature: 0 } } }];
  let random = 1;
  const id = () => (random = (random * 48271) % 2147483647) % 200000;
  const timed = async (sequence, input) => {
    const begin = performance.now();
    await sequence.controlledEvaluate(input);
    return performance.now() - begin;
  };
  const context = await model.createContext({ contextSize: prompt + 64, batchSize: prompt, sequences: 1, threads });
  const sequence = context.getSequence();
  const steps = [];
  for (let i = 0; i <= tokens; ++i) steps.push(await timed(sequence, [next(id())]));  // the first warms up
  await sequence.clearHistory();
  const ids = Array.from({ length: prompt }, id);
  const whole = await timed(sequence, [...ids.slice(0, -1), next(ids.at(-1))]);
  await context.dispose();
  return { prefill: (prompt * 1000) / whole, decode: 1000 / median(steps.slice(1)) };
}

const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: threads });
for (const file of files) {
  const model = await llama.loadModel({ modelPath: file });
  const all = { prefill: [[], []], decode: [[], []] };
  for (let i = 0; i <= rounds; ++i) {
    const pair = i % 2 ? [ours(file), await theirs(model)] : [await theirs(model), ours(file)].reverse();
    const both = (what) => pair.map((p) => p[what].toFixed(2)).join(" and ");
    console.error(`${file} round ${i}: prefill ${both("prefill")}, decode ${both("decode")} (quern and llama.cpp)`);
    if (i > 0) for (const what of ["prefill", "decode"]) for (const who of [0, 1]) all[what][who].push(pair[who][what]);
  }
  await model.dispose();
  for (const what of ["prefill", "decode"]) {
    const [q, l] = all[what].map(median);
    const rates = `quern ${q.toFixed(1)}, llama.cpp ${l.toFixed(1)} tokens/s, ratio ${(q / l).toFixed(2)}`;
    console.log(`${file.split("/").at(-1)} ${what}: ${rates} (${rounds} rounds, ${threads} threads)`);
  }
}
process.exit(0);
