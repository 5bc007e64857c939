"""Peers, each in an environment of its own: what runs there imports torch, transformers and the peer, but not this project.

`client` and `scouting` run here, and talk to them.
"""
