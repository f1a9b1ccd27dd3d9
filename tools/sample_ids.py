#!/usr/bin/env python3
"""Writes ids that a model said itself at temperature 1, for `quern eval --ids`: sample_ids.py QUERN MODEL OUT [ROWS LENGTH].

Text that a model knows, for comparing its formats. Documents begin with <|endoftext|> or with a user's turn, in turns,
and are laid end to end: each is scored behind the ones before it, which it did not see when it was written, so a format
may predict it a little better than the model itself.
tests/golden/sampled.safetensors is sample_ids.py build/release/quern models/quern-tiny OUT 8 512.
"""
import json, struct, subprocess, sys

quern, model, out = sys.argv[1:4]
rows, length = (int(a) for a in sys.argv[4:6]) if len(sys.argv) > 4 else (8, 512)
ids, seed = [], 0
while len(ids) < rows * length:
    prompt = "<|endoftext|>" if seed % 2 == 0 else "<|endoftext|><|im_start|>user\n"
    reply = subprocess.run(
        [quern, "run", model, "--raw", "--json", "-p", prompt, "--temperature", "1", "--top-k", "0", "--top-p", "1",
         "--seed", str(seed), "-n", str(length)], check=True, capture_output=True, text=True)
    said = json.loads(reply.stdout)
    ids += said["prompt_ids"] + said["ids"]
    seed += 1
data = struct.pack(f"<{rows * length}i", *ids[:rows * length])
header = json.dumps({"ids": {"dtype": "I32", "shape": [rows, length], "data_offsets": [0, len(data)]}})
header += " " * (-len(header) % 8)
with open(out, "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header.encode() + data)
print(f"{rows} rows of {length} ids from {seed} documents")
