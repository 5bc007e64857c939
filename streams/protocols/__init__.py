"""Protocols of streams: how rows that name no task are judged, and which labels tasks may share."""
