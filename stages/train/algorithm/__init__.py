"""The arithmetic of training as pure functions: rewards, advantages, losses, reducers, schedule, metrics.

S samples, N response tokens of all of them in one flat axis; `sample_index` [N] says which sample a token belongs to,
in non-decreasing order. Nothing here reads a file, a config or a process group. `rewards`, `conversion`, `schedule`,
`packing`, `passrate`, `metrics` and `periodic` need numpy only; the others are torch.
"""
