// Next-token distributions of llama.cpp (node-llama-cpp) on a GGUF file, against the reference's and against Quern's own.
//
//   node compare.mjs REFERENCE.safetensors FILE.gguf OURS.safetensors LIMIT
//
// REFERENCE holds what the reference implementation computes, OURS what `quern eval FILE.gguf --reference REFERENCE
// --write OURS` says of the same cases. llama.cpp reads each case's ids, with its keys and values in float16; its
// distribution at every stored row is compared with the other two. Exit 1 where KL(ours | llama.cpp) of a row is beyond
// LIMIT, a number, or where with LIMIT "own" its mean is beyond llama.cpp's own distance to the reference.
import { readFileSync } from "node:fs";
import { basename } from "node:path";

let getLlama;
try {
  ({ getLlama } = await import("node-llama-cpp"));
} catch (e) {
  console.error(`node-llama-cpp cannot be loaded (npm ci in tests/npm/llama installs it): ${e.message}`);
  process.exit(1);
}

function readSafetensors(path) {
  const bytes = readFileSync(path);
  const headerSize = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + headerSize).toString());
  const types = { F32: Float32Array, I32: Int32Array, U8: Uint8Array };
  return (name) => {
    const { dtype, shape, data_offsets: [begin, end] } = header[name];
    const data = bytes.buffer.slice(bytes.byteOffset + 8 + headerSize + begin, bytes.byteOffset + 8 + headerSize + end);
    return { shape, values: new types[dtype](data) };
  };
}

// KL(softmax(logits) | q), q a map from id to probability that sums to 1 only to float32's rounding.
function divergence(logits, q) {
  const top = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const z = logits.reduce((a, b) => a + Math.exp(b - top), 0);
  let all = 0, kl = 0;
  for (const p of q.values()) all += p;
  for (let id = 0; id < logits.length; ++id) {
    const p = Math.exp(logits[id] - top) / z;
    if (p > 1e-12) kl += p * Math.log(p / Math.max((q.get(id) ?? 0) / all, 1e-12));
  }
  return Math.max(kl, 0);
}

const [referencePath, file, oursPath, limit] = process.argv.slice(2);
const reference = readSafetensors(referencePath), ours = readSafetensors(oursPath);
const cases = ["prose", "chat", "needle", "tool", "eosmix"];
const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: 2 });
const model = await llama.loadModel({ modelPath: file });

let rows = 0, toReference = 0, toOurs = 0, worst = 0, same = 0;
for (const name of cases) {
  const ids = [...reference(`${name}.input_ids`).values];
  const { shape: [n, vocab], values: expected } = reference(`${name}.logits`);
  const { values: own } = ours(`${name}.logits`);
  const context = await model.createContext({ contextSize: 1024, batchSize: 512, sequences: 1 });
  const first = ids.length - n;
  const input = ids.map((id, i) => (i < first ? id : [id, { generateNext: { probabilities: true } }]));
  const output = await context.getSequence().controlledEvaluate(input);
  for (let i = 0; i < n; ++i) {
    const got = output[first + i].next.probabilities;
    const row = own.subarray(i * vocab, (i + 1) * vocab);
    const kl = divergence(row, got);
    toReference += divergence(expected.subarray(i * vocab, (i + 1) * vocab), got);
    toOurs += kl;
    worst = Math.max(worst, kl);
    const best = row.reduce((a, b) => Math.max(a, b), -Infinity);
    const theirs = [...got.entries()].reduce((a, b) => (b[1] > a[1] ? b : a));
    same += row[theirs[0]] === best;
    ++rows;
  }
  await context.dispose();
}
toReference /= rows;
toOurs /= rows;
const passes = limit === "own" ? toOurs <= toReference : worst <= Number(limit);
console.log(`${passes ? "ok  " : "FAIL"} ${basename(file)}: ${rows} rows; KL of ours to llama.cpp's mean ${toOurs.toExponential(2)}, worst ` +
  `${worst.toExponential(2)}; of the reference's to llama.cpp's mean ${toReference.toExponential(2)}; same first choice ${same}/${rows}; ` +
  (limit === "own" ? "limit: llama.cpp's own distance" : `limit ${limit} a row`));
process.exit(passes ? 0 : 1);
