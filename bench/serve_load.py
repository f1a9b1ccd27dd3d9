#!/usr/bin/env python3
"""What the server does under load, on the scripted engine: usage serve_load.py QUERN MODEL [SECONDS].

1. 64 parallel streams at 500 tokens/s each, replies of 10 000 tokens, asked again until SECONDS (120) have passed: the
   clients' inter-arrival times against the script's 2 ms, and the growth of the server's memory after warm-up.
2. 1000 streaming clients dropped at once: how long until the server has freed all.
3. A client that never reads, beside one that does: what it costs in memory, and what the other sees.
Prints a line a measurement; exit code 1 where a bound of the design is missed."""
import json
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

if len(sys.argv) < 3:
    sys.exit(__doc__.splitlines()[0])
quern, model = sys.argv[1:3]
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 120
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

script = {"replies": [
    {"match": "[drop]", "text": "</think>" + "a b " * 4000, "delay_ms": 20, "end": False},
    {"match": "[flood]", "text": "</think>" + "a b c d " * 100, "delay_ms": 2, "end": False},
    {"match": "", "text": "</think>" + " word" * 9999, "delay_ms": 2}]}
with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
    json.dump(script, f)
server = subprocess.Popen([quern, "serve", model, "--script", f.name, "--port", "0", "--max-running", "1100",
                           "--log-level", "info"], stderr=subprocess.PIPE, text=True)
port = int(server.stderr.readline().rsplit(":", 1)[1])
threading.Thread(target=server.stderr.read, daemon=True).start()
bad = []


def rss():
    with open(f"/proc/{server.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def metric(name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return next(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(name + " "))


def ask(text, max_tokens=200000):
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": max_tokens}).encode()
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return s


def expect(ok, text):
    print(("ok  " if ok else "BAD ") + text, flush=True)
    if not ok:
        bad.append(text)


# 1
memory = []
load = subprocess.Popen([quern, "bench", "--url", f"http://127.0.0.1:{port}", "--concurrency", "64", "--duration",
                         str(max(1, seconds - 20)), "--max-tokens", "10000", "--prompt", "load", "--json"],
                        stdout=subprocess.PIPE, text=True)
began = time.time()
while load.poll() is None:
    time.sleep(1)
    memory.append((time.time() - began, rss()))
result = json.loads(load.stdout.read())
gap = result["inter_token"]
print(f"64 streams x 500 tokens/s, {result['seconds']:.0f} s: {result['tokens_per_second']:.0f} tokens/s, "
      f"{result['requests']} replies; inter-arrival p50 {gap['p50_ms']:.2f}, p99 {gap['p99_ms']:.2f}, max {gap['max_ms']:.2f} ms")
expect(result["failed"] == 0, f"{result['failed']} requests failed")
expect(gap["p99_ms"] - 2 < 5, f"99th percentile minus the script's interval: {gap['p99_ms'] - 2:.2f} ms (bound 5)")
half = [m for t, m in memory if t > memory[-1][0] / 2] or [0]
quarter = [m for t, m in memory if memory[-1][0] / 4 < t < memory[-1][0] / 2] or [0]
expect(max(half) - max(quarter) < 4, f"memory after warm-up: {max(quarter):.1f} then {max(half):.1f} MiB")

# 2
clients = [ask("[drop]") for _ in range(1000)]
for s in clients:
    s.recv(100)
while metric("quern_num_requests_running") < 1000:
    time.sleep(0.05)
began = time.time()
for s in clients:
    s.close()
while metric("quern_num_requests_running") > 0 and time.time() - began < 10:
    time.sleep(0.01)
expect(metric("quern_num_requests_running") == 0, f"1000 clients dropped at once: all freed after {time.time() - began:.2f} s")

# 3
time.sleep(1)
before = rss()
stuck = ask("[flood]")
other = subprocess.run([quern, "bench", "--url", f"http://127.0.0.1:{port}", "--concurrency", "1", "--requests", "1",
                        "--max-tokens", "5000", "--prompt", "load", "--json"], capture_output=True, text=True)
beside = json.loads(other.stdout)["inter_token"]
time.sleep(20)
expect(rss() - before < 1, f"a client that never reads for 30 s: {rss() - before:+.2f} MiB (bound 1)")
expect(beside["p99_ms"] - 2 < 5, f"the one beside it: p99 inter-arrival {beside['p99_ms']:.2f} ms")
stuck.close()

server.terminate()
expect(server.wait(60) == 0, "SIGTERM drains and ends with 0")
sys.exit(1 if bad else 0)
