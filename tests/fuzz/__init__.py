"""Fuzzing: readers of untrusted files get arbitrary input and must accept it or refuse it with a clear error.

``python -m tests.fuzz.run TARGET --count 10000 --seed 0`` runs a target; ``tests/fuzz/corpus/TARGET`` holds what was
found once, and is replayed by the tests. `tests.fuzz.target` says what a target is, `tests.fuzz.targets` lists them.
"""
