"""The engine of a run: learns the tasks of a stream one after another."""
