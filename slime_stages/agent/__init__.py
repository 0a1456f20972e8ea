"""Agents: adapters that other runtimes talk to, trajectories made of what was sampled, sandboxes and harnesses."""
