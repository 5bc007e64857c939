"""The run: the loop over the tasks of a stream."""
