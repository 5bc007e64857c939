"""The course: the loop over the tasks of a stream."""
