"""Columns that start at one output pixel, carried back as windows of an image.

``lanes`` says which pixels they stand for, ``window`` passes them through a call, and ``sums`` is
what they bring to a weight. Only images are carried so: everything else has whole columns.
"""
