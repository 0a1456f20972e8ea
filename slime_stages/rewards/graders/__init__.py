"""Graders: pure functions of a response and its label, one small file each."""
