"""The prompts of a run: read once, tokenised once, persisted, and asked in an order that is computed, not remembered.

`settings`, `names` and `order` are light. `locate` finds files, `files` and `arrow` read their rows, `source` and
`media` say what is in a row, `build` makes rows of the prompt table of it, `table` keeps them.
"""
