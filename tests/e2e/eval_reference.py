"""eval --reference: files of the schema that are not the golden ones, and outputs that are not the model's.

Usage: eval_reference.py QUERN SOURCE_DIR
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

quern, source = sys.argv[1:3]
with open(f"{source}/tests/golden/golden.safetensors", "rb") as f:
    length = struct.unpack("<Q", f.read(8))[0]
    header = json.loads(f.read(length))
    data = f.read()
chat = {}  # name without the case: dtype, shape, bytes
for name, t in header.items():
    if name.startswith("chat."):
        begin, end = t["data_offsets"]
        chat[name[5:]] = (t["dtype"], t["shape"], data[begin:end])
failed = False


def check(what, code, text, tensors, case="chat"):
    global failed
    entries, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        entries[f"{case}.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(entries).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "reference.safetensors")
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + b"".join(t[2] for t in tensors.values()))
        r = subprocess.run([quern, "eval", f"{source}/models/quern-tiny", "--reference", path],
                           capture_output=True, text=True)
    if r.returncode != code or text not in r.stdout + r.stderr:
        print(f"{what}: expected exit code {code} and '{text}', found {r.returncode} and {r.stdout}{r.stderr}")
        failed = True


def with_ids(name, change):
    dtype, shape, raw = chat[name]
    ids = change(list(struct.unpack(f"<{len(raw) // 4}i", raw)))
    return {**chat, name: (dtype, [len(ids)], struct.pack(f"<{len(ids)}i", *ids))}


n = chat["greedy"][1][0]
check("a case by a name with dots", 0, "len.2052-1: 19 ids", chat, "len.2052-1")
check("another greedy id", 1, f"greedy 3/{n} (the next leads by", with_ids("greedy", lambda g: g[:3] + [17] + g[4:]))
check("a greedy text that goes on behind the end", 1, f"greedy {n}/{n + 1} (the next leads by inf",
      with_ids("greedy", lambda g: g + [17]))
check("a greedy text that ends before", 0, "greedy 5/5", with_ids("greedy", lambda g: g[:5]))
check("no outputs", 1, "case 'chat' has ids, and no outputs to compare", {"input_ids": chat["input_ids"]})
check("no cases", 1, "no tensor named 'CASE.input_ids'", {"logits": chat["logits"]})
dtype, shape, raw = chat["gdn0"]
floats = [1.0001 * x for x in struct.unpack(f"<{len(raw) // 4}f", raw)]
check("one output of all, a little off", 1, "(gdn0)",
      {**chat, "gdn0": (dtype, shape, struct.pack(f"<{len(floats)}f", *floats))})
sys.exit(failed)
