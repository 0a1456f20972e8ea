"""Places where an agent's commands run: on this machine, in Apptainer, at E2B. `open_sandbox` chooses by name."""
