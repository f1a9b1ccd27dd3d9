// Next-token distributions of llama.cpp (node-llama-cpp) against the reference's, on GGUF files of one model.
//
//   node compare.mjs [--limit KL] GOLDEN.safetensors FILE.gguf…    exit 1 where a case is further away than KL
//
// For every case of the golden file: llama.cpp reads its ids, and the distribution after the last one is compared with
// the softmax of the reference's last logits. Prints one line a file and case, and KL(reference ‖ llama.cpp).
import { readFileSync } from "node:fs";
import { getLlama } from "node-llama-cpp";

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

const args = process.argv.slice(2);
const limit = args[0] === "--limit" ? Number(args.splice(0, 2)[1]) : Infinity;
const [golden, ...files] = args;
const tensor = readSafetensors(golden);
const cases = ["prose", "chat", "needle", "tool", "eosmix"];
const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: 1 });

let worst = 0;
for (const file of files) {
  const model = await llama.loadModel({ modelPath: file });
  let sum = 0, worstOfFile = 0, agree = 0;
  for (const name of cases) {
    const ids = [...tensor(`${name}.input_ids`).values];
    const { shape, values } = tensor(`${name}.logits`);
    const last = values.subarray((shape[0] - 1) * shape[1]);
    const top = last.reduce((a, b) => Math.max(a, b), -Infinity);
    const z = last.reduce((a, b) => a + Math.exp(b - top), 0);
    const context = await model.createContext({ contextSize: 1024, batchSize: 512, sequences: 1 });
    const sequence = context.getSequence();
    const input = ids.map((id, i) => (i + 1 === ids.length ? [id, { generateNext: { probabilities: true } }] : id));
    const output = await sequence.controlledEvaluate(input);
    const got = output[ids.length - 1].next.probabilities;
    let all = 0;
    for (const p of got.values()) all += p;  // theirs sum to 1 only to float32's rounding
    let kl = 0;
    for (let id = 0; id < last.length; ++id) {
      const p = Math.exp(last[id] - top) / z;
      if (p > 1e-12) kl += p * Math.log(p / Math.max((got.get(id) ?? 0) / all, 1e-12));
    }
    const best = last.indexOf(top);
    const theirs = [...got.entries()].reduce((a, b) => (b[1] > a[1] ? b : a));
    agree += theirs[0] === best;
    sum += kl;
    worstOfFile = Math.max(worstOfFile, kl);
    await context.dispose();
    console.log(`${file} ${name}: ${ids.length} ids, KL ${kl.toExponential(2)}, argmax ${theirs[0] === best ? "same" : "differs"}`);
  }
  console.log(`${file}: mean KL ${(sum / cases.length).toExponential(2)}, worst ${worstOfFile.toExponential(2)}, argmax ${agree}/${cases.length}`);
  worst = Math.max(worst, worstOfFile);
  await model.dispose();
}
if (worst > limit) {
  console.error(`worst KL ${worst.toExponential(2)} is beyond ${limit}`);
  process.exit(1);
}
process.exit(0);
