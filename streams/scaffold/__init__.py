"""Draft a first stream file from data: infer the kind of task and the meaning of the columns."""
