#!/usr/bin/env python3
"""Holds the tree to its layers: a file under src/ includes only its own layer and those to the left, CUDA headers
appear only in .cu and .cuh, and every op has its four files and its test. Run by ctest; prints each offence."""
import pathlib
import re
import sys

LAYERS = ["base", "tensor", "ops", "checkpoint", "text", "cache", "model", "engine", "server"]
root = pathlib.Path(__file__).resolve().parent.parent
src = root / "src"
offences = []

for f in sorted(src.rglob("*")):
    if f.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
        continue
    layer = f.relative_to(src).parts[0]
    if layer not in LAYERS:
        offences.append(f"{f}: {layer} is no layer")
        continue
    for n, line in enumerate(f.read_text().splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+[<"]([^>"]+)[>"]', line)
        if not m:
            continue
        path = m.group(1)
        top = path.split("/")[0]
        if "/" in path and top in LAYERS and LAYERS.index(top) > LAYERS.index(layer):
            offences.append(f"{f}:{n}: {layer} may not include {top}")
        if re.match(r"(cuda|cub/|cublas|mma\.h|cooperative_groups|nvtx)", path) and f.suffix not in {".cu", ".cuh"}:
            offences.append(f"{f}:{n}: CUDA headers belong in .cu and .cuh files")

# Host-only headers of ops/: formulas, formats, planners and the table of contents.
NOT_OPS = {"ops", "scalar", "quant_formats"}
for h in sorted((src / "ops").glob("*.h")) if (src / "ops" / "linear_decode_cuda.cu").exists() else []:
    if h.stem in NOT_OPS or "// Not an op:" in h.read_text():
        continue
    for other in (src / "ops" / f"{h.stem}.cpp", src / "ops" / f"{h.stem}_cpu.cpp",
                  root / "tests" / "ops" / f"{h.stem}_test.cpp"):
        if not other.exists():
            offences.append(f"{h}: {other.relative_to(root)} is missing")
    if not list((src / "ops").glob(f"{h.stem}*_cuda.cu")) and "// CPU only:" not in h.read_text():
        offences.append(f"{h}: no {h.stem}*_cuda.cu beside it")

for o in offences:
    print(o)
print(f"{len(offences)} offences")
sys.exit(1 if offences else 0)
