"""Owns the local web page over all runs of a folder. Does not own any number: those of views and reports are shown."""
