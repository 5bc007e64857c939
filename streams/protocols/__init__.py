"""Protocols of streams: how rows without a task name are evaluated, and which labels tasks may share."""
