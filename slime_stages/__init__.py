"""The library under the stages: data contract, config, serving, rewards, weights, launch and command line."""

__version__ = "0.1.0"
