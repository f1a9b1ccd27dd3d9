#!/bin/sh
# gguf.sh QUERN MODEL: what convert writes answers as the folder does, with another model's files beside it.
set -eu
quern=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ids() { "$quern" run "$1" --greedy --json -n 60 -p "What is the capital of France?" | grep -o '"ids":[^]]*]'; }

"$quern" convert "$model" "$work/a.gguf" --type bf16 2>/dev/null
"$quern" convert "$model" "$work/b.gguf" --type q8_0 2>/dev/null
echo '{"eos_token_id": 301}' > "$work/generation_config.json"
echo '{{ "of another model" }}' > "$work/chat_template.jinja"
expected=$(ids "$model")
found=$(ids "$work/a.gguf")
[ "$found" = "$expected" ] || { echo "expected $expected, found $found"; exit 1; }

# What no tensor takes, and no path at all, are refused before anything is written.
for bad in "--tensor nosuch=q8_0" "--tensor *norm*=q8_0"; do
  set -f
  if said=$("$quern" convert "$model" "$work/c.gguf" --type bf16 $bad 2>&1); then echo "$bad: taken"; exit 1; fi
  set +f
  echo "$said" | grep -q 'no tensor of this name takes this type' || { echo "$said"; exit 1; }
  [ "$(ls "$work" | grep -c '^c')" = 1 ] || { ls "$work"; exit 1; }
done
mkdir "$work/hf"
cp "$model"/* "$work/hf"
rm "$work/hf/chat_template.jinja" "$work/hf/generation_config.json"  # a turn's end is known without it
found=$(ids "$work/hf")
[ "$found" = "$expected" ] || { echo "expected $expected, found $found"; exit 1; }
echo '{' > "$work/hf/tokenizer_config.json"
if said=$("$quern" run "$work/hf" -p Hi 2>&1); then exit 1; fi
echo "$said" | grep -q 'tokenizer_config.json: JSON' || { echo "$said"; exit 1; }
if said=$("$quern" convert "$model" "" --type bf16 2>&1); then exit 1; fi
echo "$said" | grep -q 'expected a path' || { echo "$said"; exit 1; }
if said=$("$quern" run "$model" -n 1 --seed -1 -p Hi 2>&1); then echo "--seed -1: taken"; exit 1; fi
echo "$said" | grep -q 'expected a number from 0 on' || { echo "$said"; exit 1; }
if said=$("$quern" eval "$model" --reference "$work/a.gguf" 2>&1); then echo "a GGUF as a reference: taken"; exit 1; fi
echo "$said" | grep -q 'expected a safetensors file' || { echo "$said"; exit 1; }
