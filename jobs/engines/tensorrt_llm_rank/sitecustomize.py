"""Owns that a worker of TensorRT-LLM's Ray has what is its node's own, the GPUs first of all. Run by each Python of a rank.

TensorRT-LLM gives its workers the whole environment of rank 0, whose GPUs may have other numbers than those of their node:
they would compute on GPUs that are not ours. `specsweep_rank` notes what a node's own is. Does not own anything else.
"""

import json
import os

os.environ.update(json.loads(os.environ.get("SPECSWEEP_NODE", "{}")))
