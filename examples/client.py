"""Where the examples find the server: `OPENAI_BASE_URL`, or kaminari's own address."""

from __future__ import annotations

import os

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "not-needed")
