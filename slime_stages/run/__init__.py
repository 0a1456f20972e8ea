"""The run folder: its paths, plans, manifests, and how a piece of work is committed to it."""
