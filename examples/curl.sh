#!/usr/bin/env bash
# curl: the models, a question about a picture, and the same as a stream.
set -euo pipefail
cd "$(dirname "$0")"
url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
auth="Authorization: Bearer ${OPENAI_API_KEY:-not-needed}"

curl --silent --show-error --fail "$url/models" --header "$auth"
echo

# the body goes through standard input, since a picture may be longer than a command line
ask() {
  curl --silent --show-error --fail --no-buffer "$url/chat/completions" \
    --header "$auth" --header "Content-Type: application/json" --data @- <<JSON
{
  "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,$(base64 <receipt.png | tr -d '\n')"}},
    {"type": "text", "text": "What is the total?"}
  ]}],
  "temperature": 0,
  "stream": $1
}
JSON
}
ask false
echo
ask true
