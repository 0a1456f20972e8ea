"""The four programs. Each is `python -m stages.<name>`; none imports another."""
