"""What several ops are built from: registration with torch, geometry, shapes and references.

Here is how an op is registered, dispatched and differentiated, how a layer reads its input, and
torch's products that stand in for kernels. Formulas and schemas are in the file of their op, and
the choice between implementations in ``serving``.
"""
