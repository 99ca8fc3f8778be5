"""Talking to OpenAI-compatible servers, and starting them: what the backend ``openai`` is made of."""
