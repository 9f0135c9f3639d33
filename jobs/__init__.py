"""Owns what happens on a node: workloads, engines, the load, what is measured. Does not own where, or what is kept."""

import storage as storage  # first of all: it knows what becomes of a Ctrl-C while one of our commands is imported
