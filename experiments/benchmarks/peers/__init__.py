"""Peers, each in its own environment: code there imports torch, transformers and the peer, but not this project.

`client` and `scouting` run in our environment and talk to the workers.
"""
