"""Owns how data sets that may not be passed on whole are made whole on this machine. Does not own running them."""
