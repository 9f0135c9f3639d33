"""Owns how a benchmark is picked out of a pool of prompts, by what they mean. Does not own the pool, or measuring with it.

The method is SPEED-Bench's (arXiv 2604.09557, section 5): as little similarity within a category as can be had.
"""
