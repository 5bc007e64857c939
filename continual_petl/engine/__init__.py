"""The engine, which learns the tasks of a stream one after another."""
