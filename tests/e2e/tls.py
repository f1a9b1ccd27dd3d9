#!/usr/bin/env python3
"""TLS as its users meet it: tls.py QUERN MODEL. Certificates are made here by openssl; curl and Python's ssl are the clients.

A chat, streamed and not, over a chain that curl checks; keys that are missing, damaged or another certificate's are refused
in one line; what speaks no TLS, stops in mid-handshake or offers TLS 1.1 is cut off, and nobody else notices."""
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

quern, model = sys.argv[1:3]
for tool in ("openssl", "curl"):
    if not shutil.which(tool):
        print(f"skipped: {tool} is not installed")
        sys.exit(77)
folder = tempfile.mkdtemp(prefix="quern-tls-")
failures = 0


def expect(fact, holds, found=""):
    global failures
    print(f"{'ok  ' if holds else 'FAIL'} {fact}" + ("" if holds else f"\n     found: {found}"), flush=True)
    failures += not holds


def path(name):
    return os.path.join(folder, name)


def certificate(name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", path(name + ".key"), "-out", path(name + ".pem")], check=True, capture_output=True)


certificate("good")
certificate("other")
with open(path("script.json"), "w") as f:
    json.dump({"replies": [{"match": "", "text": "Short.</think>\n\nHello over TLS."}]}, f)
with open(path("damaged.key"), "w") as f:
    f.write("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
serve = [quern, "serve", model, "--script", path("script.json"), "--port", "0"]

for what, flags in [("no key", ["--tls-cert", path("good.pem")]),
                    ("no certificate", ["--tls-key", path("good.key")]),
                    ("a key that is not there", ["--tls-cert", path("good.pem"), "--tls-key", path("none.key")]),
                    ("a damaged key", ["--tls-cert", path("good.pem"), "--tls-key", path("damaged.key")]),
                    ("a certificate as the key", ["--tls-cert", path("good.pem"), "--tls-key", path("good.pem")]),
                    ("a key as the certificate", ["--tls-cert", path("good.key"), "--tls-key", path("good.key")]),
                    ("another certificate's key", ["--tls-cert", path("good.pem"), "--tls-key", path("other.key")])]:
    run = subprocess.run(serve + flags, capture_output=True, text=True, timeout=60)
    lines = run.stderr.strip().splitlines()
    expect(f"{what}: refused in one line that says TLS", run.returncode in (1, 2) and len(lines) == 1 and "TLS" in lines[0],
           f"{run.returncode} {run.stderr}")

server = subprocess.Popen(serve + ["--tls-cert", path("good.pem"), "--tls-key", path("good.key"), "--header-timeout", "1"],
                          stderr=subprocess.PIPE, text=True)
line = server.stderr.readline()
expect("it says https", " on https://127.0.0.1:" in line, line)
port = int(line.rsplit(":", 1)[1])
url = f"https://localhost:{port}"


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", "20", "--resolve", f"localhost:{port}:127.0.0.1", *arguments],
                          capture_output=True, text=True)


trust = ["--cacert", path("good.pem")]
chat = ["-H", "Content-Type: application/json", "-d", '{"messages":[{"role":"user","content":"hi"}]}', url + "/v1/chat/completions"]
health = curl(*trust, url + "/health")
expect("curl --cacert: health", json.loads(health.stdout or "{}").get("status") == "ok", health)
whole = curl(*trust, *chat)
expect("curl --cacert: a chat", "Hello over TLS." in whole.stdout, whole)
chat[3] = chat[3][:-1] + ',"stream":true}'
stream = curl(*trust, "-N", *chat)
expect("curl --cacert: a streamed chat", stream.stdout.rstrip().endswith("data: [DONE]"), stream)
expect("a certificate nobody trusts is not accepted", curl("--cacert", path("other.pem"), url + "/health").returncode == 60)
page = curl(*trust, "-H", f"Origin: https://localhost:{port}", url + "/v1/models")
expect("the page's own origin is https", "quern-tiny" in page.stdout or '"data"' in page.stdout, page)

context = ssl.create_default_context(cafile=path("good.pem"))
with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as two:
    for _ in range(2):
        two.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b'"ok"' not in answer:
            answer += two.recv(4096) or b'"ok" ended'
    expect("one connection takes several requests", b"200 OK" in answer, answer)
    expect("TLS 1.2 or later", two.version() in ("TLSv1.2", "TLSv1.3"), two.version())


def closed_within(s, seconds):
    s.settimeout(seconds)
    began = time.time()
    try:
        while s.recv(4096):
            pass
    except ConnectionError:
        pass
    except socket.timeout:
        return None
    return time.time() - began


for what, opening in [("plain HTTP", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), ("noise", bytes(range(256)) * 8),
                      ("half a handshake", b"\x16\x03\x01\x02\x00\x01\x00"), ("silence", b"")]:
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(opening)
    took = closed_within(s, 10)
    expect(f"{what} on the TLS port is cut off, by the header timeout of 1 s at the latest", took is not None and took < 3, took)
    s.close()
old = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], input="",
                     capture_output=True, text=True, timeout=30)
expect("TLS 1.1 is refused", "Cipher is (NONE)" in old.stdout or old.returncode != 0, old.stdout)
silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
began = time.time()
beside = curl(*trust, url + "/health")
expect("100 silent connections keep nobody waiting", '"ok"' in beside.stdout and time.time() - began < 5, beside)
for s in silent:
    s.close()

server.terminate()
expect("SIGTERM ends it with 0", server.wait(30) == 0, server.returncode)
shutil.rmtree(folder)
sys.exit(1 if failures else 0)
