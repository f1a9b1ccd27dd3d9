#!/usr/bin/env python3
"""What `quern eval` says of likelihoods: likelihood_test.py QUERN ROOT.

--ids against the reference's own logits (the cases of the golden file that store every row); --against itself; and the
formats: Q8_0 must be within 0.002 of BF16, Q4_K within 0.03, on text the model wrote itself.
"""
import json, math, os, re, struct, subprocess, sys, tempfile

quern, root = sys.argv[1:3]
model, sampled = f"{root}/models/quern-tiny", f"{root}/tests/golden/sampled.safetensors"
failed = []


def check(what, ok):
    print(("ok   " if ok else "FAIL ") + what, flush=True)
    if not ok:
        failed.append(what)


def run(*args):
    p = subprocess.run([quern, *args], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"quern {' '.join(args)}: exit {p.returncode}: {p.stderr}")
    return p.stdout


with open(f"{root}/tests/golden/golden.safetensors", "rb") as f:
    blob = f.read()
size = struct.unpack("<Q", blob[:8])[0]
header = json.loads(blob[8:8 + size])


def tensor(name):
    t = header[name]
    begin, end = t["data_offsets"]
    return t["shape"], struct.unpack(f"<{(end - begin) // 4}{'f' if t['dtype'] == 'F32' else 'i'}",
                                     blob[8 + size + begin:8 + size + end])


with tempfile.TemporaryDirectory() as folder:
    for case in ("prose", "chat", "eosmix"):
        [n], ids = tensor(f"{case}.input_ids")
        [rows, vocab], logits = tensor(f"{case}.logits")
        assert rows == n
        nll = 0.0
        for i in range(n - 1):
            row = logits[i * vocab:(i + 1) * vocab]
            top = max(row)
            nll += top + math.log(sum(math.exp(x - top) for x in row)) - row[ids[i + 1]]
        nll /= n - 1
        data = struct.pack(f"<{2 * n}q", *(ids * 2))  # two equal rows, as 64-bit integers
        head = json.dumps({"ids": {"dtype": "I64", "shape": [2, n], "data_offsets": [0, len(data)]}})
        with open(f"{folder}/{case}.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head.encode() + data)
        first = run("eval", model, "--ids", f"{folder}/{case}.safetensors").splitlines()[0]
        check(f"{case}: {first}, the reference {nll:.6f}",
              re.fullmatch(r"nll \d+\.\d+", first) and abs(float(first[4:]) - nll) < 2e-6)

    def against(path):
        out = run("eval", path, "--against", model, "--ids", sampled)
        own = float(re.match(r"nll ([\d.]+)\n", out)[1])
        theirs, difference = map(float, re.search(r"against .*: nll ([\d.]+), difference ([+-][\d.]+)", out).groups())
        mean, p99, worst = map(float, re.search(r"mean (\S+), p99 (\S+), max (\S+);", out).groups())
        same, n = map(int, re.search(r"the same first choice (\d+) of (\d+)", out).groups())
        check(f"{os.path.basename(path)}: nll {own}, difference {difference:+.6f}, KL mean {mean:.1e} p99 {p99:.1e} max {worst:.1e}, "
              f"same choice {same}/{n}: consistent",
              abs(own - theirs - difference) < 2e-6 and max(mean, p99) <= worst and n == 8 * 511)
        return difference, worst

    check("against itself: no difference at all", against(model) == (0.0, 0.0))
    for kind, limit in (("q8_0", 0.002), ("q4_k", 0.03)):
        run("convert", model, f"{folder}/{kind}.gguf", "--type", kind, "--no-draft")
        difference, _ = against(f"{folder}/{kind}.gguf")
        check(f"{kind}: |difference| <= {limit}", abs(difference) <= limit)
sys.exit(1 if failed else 0)
