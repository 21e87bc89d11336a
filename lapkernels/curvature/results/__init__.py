"""What the functions return: sums over samples that merge, and their decompositions.

Each result has its number of samples and its model, so that only sums that belong together are
added. Nothing here runs a model.
"""
