"""Owns our own HTTP host for engines that are libraries (transformers) or scripts (simulated).

It runs as a child process in the engine's environment: `python -m jobs.engines.host`. Nothing else imports its modules.
"""

NAME = "SPECSWEEP_HOST_NAME"
"""In its environment, the name under which it serves, and its key: others can read command lines."""
