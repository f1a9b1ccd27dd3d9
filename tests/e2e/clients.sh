#!/bin/sh
# Real clients of the APIs (openai, @anthropic-ai/sdk, ai, langchain) against quern on a script: clients.sh NODE QUERN MODEL.
# Exit code 77, with a line that says why, where they are not installed (npm ci in tests/npm/clients).
set -eu
here=$(cd "$(dirname "$0")/../npm/clients" && pwd)
if [ ! -d "$here/node_modules" ]; then
  echo "skipped: tests/npm/clients/node_modules is absent: run npm ci there"
  exit 77
fi
exec "$1" "$here/clients_test.js" "$2" "$3"
