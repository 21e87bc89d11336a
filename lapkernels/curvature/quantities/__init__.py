"""What users ask for, one file a quantity: from a model and data to tensors.

A file holds the public function, its formula, and the collector that adds up what columns bring.
How a batch is run and gone back over is in ``passes`` and below; ``results`` has what is returned.
"""
