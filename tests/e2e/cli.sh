#!/bin/sh
# cli.sh QUERN MODEL: what the program says and returns to who uses it wrongly, or whose disk is full.
set -u
quern=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# check CODE TEXT ARGUMENTS…: exit code, and a fixed text in what is said; standard input is empty.
check() {
  code=$1 text=$2
  shift 2
  said=$("$quern" "$@" 2>&1 < /dev/null)
  found=$?
  if [ $found != "$code" ] || ! printf '%s\n' "$said" | grep -qF -e "$text"; then
    echo "quern $*: expected exit code $code and '$text', found $found and '$(printf %s "$said" | tail -3)'"
    failed=1
  fi
}
# Output that is lost is no success.
lost() {
  said=$("$quern" "$@" 2>&1 > /dev/full < "$work/text")
  found=$?
  if [ $found != 1 ] || [ "$said" != "quern: standard output: write failed" ]; then
    echo "quern $* > /dev/full: expected exit code 1, found $found and '$said'"
    failed=1
  fi
}
printf 'Hi there' > "$work/text"
: > "$work/empty"
lost run "$model" -n 2 --greedy
lost run "$model" -n 2 --greedy --json
lost chat "$model" -n 2 --greedy
lost eval "$model" --text "$work/text"
lost inspect "$model"
lost inspect "$model" --plan
lost tokenize "$model"
lost bench "$model" --context 0 --prompt 8 --steps 1 --repeats 1 --json
lost run --help
lost --help
lost --version

check 1 'the prompt is empty' run "$model" -p ''
check 1 'the prompt is empty' run "$model"
check 1 'the prompt is empty' run "$model" -f "$work/empty"
check 1 'the prompt is empty' run "$model" --raw -p ''

# A text may come by a pipe.
said=$(printf 'Hi there' | "$quern" tokenize "$model" -f /dev/stdin)
"$quern" tokenize "$model" < "$work" > /dev/null 2> "$work/said"
grep -q '^quern: standard input: Is a directory$' "$work/said" || { echo "a folder as standard input: $(cat "$work/said")"; failed=1; }
[ -n "$said" ] && [ "$said" = "$("$quern" tokenize "$model" -f "$work/text")" ] || { echo "tokenize -f /dev/stdin: $said"; failed=1; }
mkfifo "$work/fifo"
printf 'What is the capital of France?' > "$work/fifo" &
said=$("$quern" run "$model" -f "$work/fifo" --greedy --no-think)
[ "$said" = 'The capital of France is Paris.' ] || { echo "run -f FIFO: $said"; failed=1; }
check 1 "quern: $work: not a regular file" tokenize "$model" -f "$work"
check 1 'expected at most' tokenize "$model" -f /dev/zero

for n in 0 abc 0.5 -3; do
  check 2 "--max-tokens: expected a whole number from 1 on, found $n" run "$model" -p Hi -n "$n"
  check 2 "--prompt: expected a whole number from 1 on, found $n" bench "$model" --prompt "$n"
  check 2 "--steps: expected a whole number from 1 on, found $n" bench "$model" --steps "$n"
  check 2 "--repeats: expected a whole number from 1 on, found $n" bench "$model" --repeats "$n"
done
check 2 '--ctx: expected a whole number from 0 on, found -1' run "$model" -p Hi --ctx -1
check 2 '--width: expected a whole number from 1 to 1024, found 1025' bench "$model" --width 1025
check 2 '--temperature: expected a number from 0 to 100, found abc' run "$model" -p Hi --temperature abc
check 2 '--tolerance: expected a number from 0 on, found -1' eval "$model" --reference "$work/text" --tolerance -1

# convert: wrong types are wrong use; nothing is overwritten, and no two write one file.
check 2 "--type: type 'q4_k_m': expected one of f32, " convert "$model" "$work/x.gguf" --type q4_k_m
check 2 '--tensor: expected PATTERN=TYPE, found blk' convert "$model" "$work/x.gguf" --type bf16 --tensor blk
check 2 "--type: type 'int4': expected one of" synth "$work/x.gguf" --geometry tiny --type int4
check 1 'type Q8_0: a Hugging Face folder holds' convert "$model" "$work/x" --type q8_0
check 1 'type fp8: GGUF has no such type' convert "$model" "$work/x.gguf" --type fp8
check 1 'no tensor of this name takes this type' convert "$model" "$work/x.gguf" --type bf16 --tensor 'blk.99.*=q8_0'
check 1 'exists already' convert "$model" "$model" --type bf16
check 1 'exists already' convert "$model" "$work/text" --type bf16
check 1 'cannot write' convert "$model" "$work/none/x.gguf" --type bf16
for out in x.gguf x; do
  : > "$work/ready"
  if [ $out = x ]; then mkdir "$work/$out.partial"; else : > "$work/$out.partial"; fi
  flock "$work/$out.partial" sh -c "
    \"$quern\" convert \"$model\" \"$work/$out\" --type bf16 2>&1 | grep -qF 'another process writes it' || echo no > \"$work/ready\""
  [ -s "$work/ready" ] && { echo "convert to $out beside another process was not refused"; failed=1; }
  # What a killed process left is no obstacle.
  check 0 '' convert "$model" "$work/$out" --type bf16
  [ -e "$work/$out.partial" ] && { echo "convert left $out.partial"; failed=1; }
done
# A source by the name that is written under is not its own victim.
cp -r "$model" "$work/m.partial"
check 1 'm is written under this one until it is whole' convert "$work/m.partial" "$work/m" --type bf16
[ -s "$work/m.partial/config.json" ] || { echo "convert removed its source"; failed=1; }

# Interrupted, it leaves nothing behind. (A shell's background jobs ignore SIGINT; it takes the same way.)
for out in y.gguf y; do
  "$quern" synth "$work/$out" --geometry tiny --ngram-base 4000000 --threads 1 2> "$work/said" &
  pid=$!
  n=0
  while [ ! -e "$work/$out.partial" ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
  kill -TERM $pid
  wait $pid
  found=$?
  if [ $found != 1 ] || ! grep -qF "interrupted: $work/$out is not written" "$work/said"; then
    echo "synth $out and SIGTERM: exit code $found, '$(cat "$work/said")'"
    failed=1
  fi
  ls -d "$work/$out"* 2> /dev/null && { echo "synth $out and SIGTERM: left this"; failed=1; }
done

check 0 'quern 0.' --version
check 0 '--max-tokens' help run
check 2 "'nope' is no command" help nope
[ "$("$quern" help run)" = "$("$quern" run --help)" ] || { echo 'help run: not run --help'; failed=1; }

# What one sequence lacks is not mended by fewer, nor is more than the model's limit advised.
check 1 'short; not even one sequence of 64 tokens fits' inspect "$model" --plan --ram 1MiB
check 1 'short; fewer sequences fit' inspect "$model" --plan --ram 20MiB --sequences 1000
check 1 'short; --ctx 32768 fits' inspect "$model" --plan --ctx 2000000000 --ram 16GiB
# A row says how many tensors of what size each.
check 0 '8 ×    64.0 KiB  BF16     [32, 1024]' inspect "$model"

for seed in abc 1.5; do
  check 2 "--seed: expected a whole number from 0 on, found $seed" run "$model" -p Hi --seed $seed
done
check 2 '--seed: expected a number of 64 bits' run "$model" -p Hi --seed 18446744073709551616
check 2 '--max-tokens: expected a number of 64 bits' run "$model" -p Hi -n 9223372036854775808
check 2 '--seed: expected a value' run "$model" -p Hi --seed
check 2 '--prompt: given more than once' run "$model" -p Hi -p Ho
check 0 '--synthetic full|tiny' bench --help
check 0 's; first token of 8 after ' bench "$model" --context 0 --prompt 8 --steps 1 --repeats 1 --width 1
check 0 'peak memory: ' bench --synthetic tiny --device cpu --layers 4 --contexts 64 --streams 1 --prefill 8 --steps 1
check 1 'quern: --synthetic full: the weights take' bench --synthetic full --layers 4096
check 0 '--url http://HOST:PORT' bench --help

# A pipe gets the reasoning between both of its marks.
said=$("$quern" run "$model" -p 'What is the capital of France?' --greedy)
case $said in
  '<think>
'*'
</think>

The capital of France is Paris.') ;;
  *) echo "reasoning in a pipe: $said"; failed=1 ;;
esac
said=$("$quern" run "$model" -p 'What is the capital of France?' --greedy --no-think)
[ "$said" = 'The capital of France is Paris.' ] || { echo "an answer without reasoning: $said"; failed=1; }

# An options file: faults by file and line; what is right in it is taken (no model: an end).
options="$work/options.toml"
config() {  # LINE TEXT CONTENT
  printf '%b' "$3" > "$options"
  check 2 "$options:$1: $2" serve --config "$options"
}
config 2 "'prot' is no option" '# c\nprot = 1\n'
config 1 "'config' is no option" 'config = "x"'
config 3 "'port' stands in line 1 already" 'port=1\n\nport=2'
config 2 '--port: expected a whole number from 0 to 65535, found 99999' '\nport = 99999\n'
config 1 "expected '=' after 'port'" 'port'
config 1 'expected a value' 'port ='
config 1 'a string without its closing quote' 'host = "a'
config 1 'expected a value; text stands in quotes' 'api-key = secret'
config 1 'no-prefix-cache: expected true or false' 'no-prefix-cache = 7'
config 1 'host: expected one value, found 2' 'host = ["a", "b"]'
config 1 'sections are not known' '[server]\nport = 1'
config 1 'expected a new line' 'port = 1 2'
config 1 'expected a key' '\0\0\0 = 1'
printf '%s' 'model = "/nope, with a # and \u00e9" # comment
alias = ["a,b",  # one
  '"'c d'"']
port = 0' > "$options"
check 1 'quern: /nope, with a # and é: no such file or folder' serve --config "$options"
check 1 "quern: $work/nope: no such file or folder" serve "$work/nope" --config "$options"

check 2 '--effort: expected none, minimal, low, medium, high, xhigh or max, found huge' \
  run "$model" -p Hi --effort huge
check 2 '--effort: expected none' chat "$model" --effort ''
# A template that says which effort it was given.
mkdir "$work/effort"
cp "$model"/* "$work/effort"
echo '{{ reasoning_effort | default("absent") }} {{ enable_thinking | default("absent") }}' \
  > "$work/effort/chat_template.jinja"
ids() { "$quern" run "$work/effort" --greedy --json -n 1 -p Hi "$@" | grep -o '"prompt_ids":[^]]*]'; }
[ "$(ids --effort high)" = "$(ids --effort xhigh)" ] || { echo 'effort high: not xhigh'; failed=1; }
[ "$(ids --effort minimal)" = "$(ids --effort low)" ] || { echo 'effort minimal: not low'; failed=1; }
[ "$(ids --effort none)" = "$(ids --no-think)" ] || { echo 'effort none: not --no-think'; failed=1; }
[ "$(ids --effort low)" != "$(ids --effort xhigh)" ] || { echo 'effort low: as xhigh'; failed=1; }

said=$(printf '/help\n/nwe x\n' | "$quern" chat "$model" -n 4 2>&1)
[ "$(echo "$said" | grep -c 'no such command; /new starts over')" = 2 ] && [ "$(echo "$said" | wc -l)" = 2 ] ||
  { echo "unknown commands of chat: $said"; failed=1; }
said=$(printf '/etc/hosts?\n' | "$quern" chat "$model" -n 4 --greedy 2>&1)
echo "$said" | grep -q 'no such command' && { echo "a path said to chat: $said"; failed=1; }

# A .safetensors file is a model with the files beside it.
"$quern" convert "$model" "$work/hf" --type bf16 2> /dev/null
file=$(ls "$work/hf"/*.safetensors)  # one
answer() { "$quern" run "$1" --greedy --json -n 8 -p Hi | grep -o '"prompt_ids":.*"text":"[^"]*"'; }
[ -n "$(answer "$file")" ] && [ "$(answer "$file")" = "$(answer "$work/hf")" ] ||
  { echo "$file answers '$(answer "$file")', its folder '$(answer "$work/hf")'"; failed=1; }
[ "$("$quern" tokenize "$file" < "$work/text")" = "$("$quern" tokenize "$model" < "$work/text")" ] ||
  { echo 'tokenize: a .safetensors file not as its folder'; failed=1; }
rm "$work/hf/tokenizer.json"
check 1 'hf: the folder has no tokenizer.json' run "$file" -p Hi

for command in 'run -p Hi' chat bench inspect serve tokenize 'eval --text /dev/null'; do
  set -- $command
  name=$1
  shift
  check 1 "quern: $work/nope: no such file or folder" "$name" "$work/nope" "$@"
  check 1 "quern: $work/nope.safetensors: no such file or folder" "$name" "$work/nope.safetensors" "$@"
  [ "$name" = tokenize ] && continue
  check 2 "--kv: expected f32, bf16 or f16, found 'f8'" "$name" "$model" "$@" --kv f8
  for device in gpu cuda: cuda:x cuda:-1; do
    check 2 "--device: expected cpu or cuda[:i], found '$device'" "$name" "$model" "$@" --device $device
  done
done
check 2 '--kv: expected f32' bench --synthetic full --kv f8
exit $failed
