"""Owns the ways of running a sweep as a cluster job: Ray Jobs, KubeRay, Slurm. Does not own the sweep.

All of them send `python sweep.py ...`. It imports nothing of the rest of the project: a laptop needs Ray's client and this
folder.
"""
