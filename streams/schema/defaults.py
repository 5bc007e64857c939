"""Which release's defaults fill in what a stream leaves open.

A run keeps the defaults that it was begun with, so that a task which was stopped half-way, or a later one, is learned as
the run's first ones were. Streams of releases that had no key ``defaults`` are read by the first ones:

1. The learning rate and epochs of a bank with any option but its size were those of the form of its first modification.
2. A preset keeps its learning rate and epochs whatever its options are.
"""

FIRST, NEWEST = 1, 2
