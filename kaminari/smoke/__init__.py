"""The smoke battery: a few questions that every vision-language model answers, put to a running server.

Speaks the OpenAI API over HTTP and nothing else: the server may be any. Never imports the engine.
"""
