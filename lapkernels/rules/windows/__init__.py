"""Columns that start at one output pixel, carried back as windows of an image.

``lanes`` says which pixels they stand for, ``below`` passes a ``window`` through a call, with the
help of ``borders`` where padding has copies, and ``sums`` is what it brings to a weight. Only
images are carried so: everything else has whole columns.
"""
