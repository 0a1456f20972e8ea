"""The data contract: every column, the shards that hold them, and samples to rows and back."""
