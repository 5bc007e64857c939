"""Fuzzing: readers of files that come from strangers get anything at all, and answer with a clear error or not at all.

``python -m tests.fuzz.run TARGET --count 10000 --seed 0`` runs a target; ``tests/fuzz/corpus/TARGET`` holds what was
found once, and is replayed by the tests. `tests.fuzz.target` says what a target is, `tests.fuzz.targets` lists them.
"""
