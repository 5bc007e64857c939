"""Read and write files safely: a killed process leaves no partial state, and untrusted content can do no harm."""
