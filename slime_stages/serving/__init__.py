"""Serving: SGLang engines as child processes, their control calls, and the client that asks them for tokens."""
