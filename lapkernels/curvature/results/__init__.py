"""What the functions return: sums over samples that merge, and their decompositions.

Each result knows how many samples it counts and of which model it is, so that sums of several
batches or processes are added rightly. Nothing here runs a model.
"""
