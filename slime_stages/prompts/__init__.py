"""The prompts of a run: read once, tokenised once, persisted, and asked in an order that is computed, not remembered.

`settings` and `order` are light. `files` and `source` read prompt data, `build` makes rows of it, `table` keeps them.
"""
