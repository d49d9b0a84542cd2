"""The OpenAI API over HTTP: parses requests, hands them to the engine, formats what comes back.

Never sees a tensor, and never decodes, templates or tokenizes on the event loop.
"""
