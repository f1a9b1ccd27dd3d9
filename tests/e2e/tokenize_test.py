#!/usr/bin/env python3
"""quern tokenize as a program: tokenize_test.py QUERN ROOT. Ids of the reference tokenizer, both ways, files, control tokens
as text, and one line and an exit code for what is wrong."""
import json, subprocess, sys, tempfile

quern, root = sys.argv[1:3]
model = f"{root}/models/quern-tiny"
failed = 0


def check(what, ok, found=""):
    global failed
    if not ok:
        failed += 1
        print(f"FAIL {what}: {found!r}")


def run(*args, text=b""):
    p = subprocess.run([quern, "tokenize", *args], input=text, capture_output=True)
    return p.returncode, p.stdout, p.stderr.decode()


with open(f"{root}/tests/golden/tokenizer.json") as f:
    cases = json.load(f)["tiny"]
print(f"{len(cases)} texts")
for case in cases:
    code, out, _ = run(model, text=case["text"].encode())
    check(f"ids of {case['text'][:40]!r}", code == 0 and json.loads(out) == case["ids"], out)
    code, out, _ = run(model, "--decode", text=json.dumps(case["ids"]).encode())
    check(f"text of the ids of {case['text'][:40]!r}", code == 0 and json.loads(out) == case["decoded"], out)

with tempfile.NamedTemporaryFile() as f:
    f.write(b"What is 7 + 5?<|im_end|>")
    f.flush()
    code, from_file, _ = run(f"{model}/tokenizer.json", "-f", f.name)
    _, from_stdin, _ = run(model, text=b"What is 7 + 5?<|im_end|>")
    check("a file is as standard input, a tokenizer.json as its folder", code == 0 and from_file == from_stdin, from_file)
    _, plain, _ = run(model, "--plain", "-f", f.name)
    check("a control token is one id, or text", json.loads(from_file)[-1] == 4002 and 4002 not in json.loads(plain), plain)
    _, text, _ = run(model, "--decode", text=b" " + plain.replace(b",", b" ").strip(b"[]\n") + b"\n")
    check("ids without commas; plain text comes back", json.loads(text) == "What is 7 + 5?<|im_end|>", text)
check("nothing is no ids", run(model)[1] == b"[]\n")
check("no ids are no text", run(model, "--decode", text=b"[]")[1] == b'""\n')
for what, args, text, expected, complaint in (
    ("an id that is none", ["--decode"], b"[1, 99999]", 1, "item 1: \"99999\" is no token id"),
    ("a word for an id", ["--decode"], b"[1, two]", 1, "\"two\" is no token id"),
    ("a bracket", ["--decode"], b"[1", 1, "a bracket without its partner"),
    ("a file that is not there", ["-f", "/nonexistent"], b"", 1, "/nonexistent"),
    ("two wishes at once", ["--plain", "--decode"], b"", 2, "--plain"),
    ("an option it has not", ["--frobnicate"], b"", 2, "--frobnicate"),
):
    code, out, err = run(model, *args, text=text)
    check(what, code == expected and complaint in err and err.count("\n") == 1 and out == b"", (code, err))
code, _, err = run("/nonexistent", text=b"x")
check("a model that is not there", code == 1 and err.count("\n") == 1, (code, err))
sys.exit(1 if failed else 0)
