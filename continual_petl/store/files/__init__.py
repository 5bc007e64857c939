"""Reading and writing files safely: kills leave no partial state, and untrusted content does no harm."""
