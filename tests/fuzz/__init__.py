"""Random small models, judged by autograd: `python -m tests.fuzz --seed 0 --count 500`.

``steps`` is the table of what models are made of, ``pieces`` what their source calls; ``models``
draws and prints them, ``judge`` compares the package with autograd, ``shrink`` reduces failures.
"""
