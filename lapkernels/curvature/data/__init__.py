"""Checked inputs (models, batches, outputs, parameters), and the state of the process.

Models, batches and labels become plain records here; random state, freed memory and communication
between processes are handled here too. Nothing here differentiates.
"""
