"""Reading what a run has committed: samples, where they come from and went to, SQL, traces."""
