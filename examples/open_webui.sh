#!/usr/bin/env bash
# Open WebUI in front of kaminari, for one person on this machine (`pip install open-webui` first: Python 3.11 or 3.12).
# Then open the address that it prints.
set -euo pipefail
export OPENAI_API_BASE_URL=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
export OPENAI_API_KEY=${OPENAI_API_KEY:-not-needed}
export WEBUI_AUTH=False ENABLE_OLLAMA_API=False
# else it writes one into this folder
export WEBUI_SECRET_KEY=${WEBUI_SECRET_KEY:-$(python3 -c 'import secrets; print(secrets.token_hex(32))')}
# no models of its own for embeddings, which it would download at the start
export RAG_EMBEDDING_ENGINE=openai
port=${PORT:-8080}
echo "Open WebUI will be at http://127.0.0.1:$port, with the models of $OPENAI_API_BASE_URL"
exec open-webui serve --host 127.0.0.1 --port "$port"
