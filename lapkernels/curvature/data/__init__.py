"""What users give, checked: batches, outputs, parameters; and the state of the process.

Models, batches and labels become plain records here; random numbers, memory and other processes are
looked after. Nothing here differentiates.
"""
