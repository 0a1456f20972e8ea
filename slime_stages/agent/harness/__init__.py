"""Agents that work in a sandbox: other people's, driven through an adapter, and a small one that needs nothing."""
