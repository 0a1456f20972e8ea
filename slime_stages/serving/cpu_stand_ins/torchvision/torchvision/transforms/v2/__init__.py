"""The second version of the transforms: names only."""
