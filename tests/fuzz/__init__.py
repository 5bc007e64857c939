"""Fuzzing: readers of untrusted files get arbitrary input and must accept it or refuse it with a clear error.

``python -m tests.fuzz.run TARGET --count 10000 --seed 0`` runs a target; ``tests/fuzz/corpus/TARGET`` holds its
past findings, which the tests replay. `tests.fuzz.target` defines what a target is; `tests.fuzz.targets` and
`tests.fuzz.store_targets` list them.
"""
