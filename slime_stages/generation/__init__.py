"""What user code and our rollouts share: rollout functions, filters, how samples are drawn."""
