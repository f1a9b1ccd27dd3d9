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
    echo "quern $*: expected exit code $code and '$text', found $found and '$said'"
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

check 0 'quern 0.' --version
check 0 '--max-tokens' help run
check 2 "'nope' is no command" help nope
[ "$("$quern" help run)" = "$("$quern" run --help)" ] || { echo 'help run: not run --help'; failed=1; }
exit $failed
